"""The desk regimes: real images, small models of the same code, chosen so that they fit their training images.

Where a model does not fit its data in the epochs it has, SAM and LookSAM slow it down and lose; these do fit. All use
the first 20 classes of CIFAR-100, made smaller (16² pixels for the ViT, 8² for the ResNet): 1,200 images to train on,
60 a class; 2,000 held out of the rest of the training set, to tune on and for learning curves; and the 2,000 test
images of these classes.
"""

from typing import Any

from looksam.experiments.study import Study
from looksam.trainer.recipe import Recipe

NOISE = 0.3  # share of random training labels in the second column
COLUMNS = {"clean labels": 0.0, "30 % random labels": NOISE}

IMAGES: dict[str, Any] = {
    "dataset": "cifar100",
    "classes": 20,
    "validation": 0.2,
    "train_limit": 1200,
    "batch_size": 50,
}

RESNET = Recipe(
    **IMAGES,
    image_size=8,
    model="resnet",
    width=8,
    optimizer="sgdm",
    schedule="cosine",
    momentum=0.9,
    weight_decay=5e-4,
    epochs=40,
)

VIT = Recipe(
    **IMAGES,
    image_size=16,
    model="vit",
    patch=8,
    width=64,
    depth=2,
    heads=2,
    optimizer="adamw",
    schedule="cosine",
    warmup_steps=50,
    weight_decay=0.1,
    decay_all=False,
    clip_norm=1.0,
    epochs=60,
)


LAMB = VIT.replace(optimizer="lamb", schedule="linear", epochs=40)
WARM_UP_EPOCHS = 2
RATES_OF_BASE = (1.0, 1 / 3)  # what the other methods try, of the learning rate that the base optimizer picks


def _rates(*rates: float) -> list[dict[str, Any]]:
    return [{"learning_rate": rate} for rate in rates]


def _radii(*radii: float) -> list[dict[str, Any]]:
    return [{"of_base": share, "rho": rho} for share in RATES_OF_BASE for rho in radii]


def _strengths(rho: float, *strengths: float) -> list[dict[str, Any]]:
    """LookSAM depends more on α than on ρ: α ‖g‖/‖g_v‖ takes out the length of g_v."""
    return [{"of_base": share, "rho": rho, "alpha": alpha} for share in RATES_OF_BASE for alpha in strengths]


RESNET_GRIDS = {
    "base": _rates(0.05, 0.1, 0.2, 0.3, 0.4, 0.6),
    "sam": _radii(0.1, 0.2, 0.4),
    "sam_k": _radii(0.2, 0.4, 0.8),
    "look_sam": _strengths(0.3, 0.1, 0.3, 0.5),
}
VIT_GRIDS = {
    "base": _rates(0.001, 0.002, 0.003, 0.004, 0.006, 0.008),
    "sam": _radii(0.2, 0.4, 0.8),
    "sam_k": _radii(0.4, 0.8, 1.6),
    "look_sam": _strengths(0.4, 0.1, 0.3, 0.5),
}
LAMB_GRIDS = {
    "base": _rates(0.01, 0.02, 0.04, 0.06),
    "sam": _radii(0.4, 0.8),
    "look_sam": _strengths(0.4, 0.1, 0.3),
    "look_layer_sam:normalized": _strengths(0.4, 0.1, 0.3),
    "look_layer_sam:literal": _strengths(0.01, 0.1, 0.3),
    "look_layer_sam:adaptive": _strengths(0.05, 0.1, 0.3),
}


def resnet(noise: float) -> Study:
    return Study(RESNET.replace(label_noise=noise), RESNET_GRIDS)


def vit(noise: float) -> Study:
    return Study(VIT.replace(label_noise=noise), VIT_GRIDS)


def lamb(noise: float, batch: int) -> Study:
    warm_up = WARM_UP_EPOCHS * IMAGES["train_limit"] // batch
    return Study(LAMB.replace(label_noise=noise, batch_size=batch, warmup_steps=warm_up), LAMB_GRIDS)

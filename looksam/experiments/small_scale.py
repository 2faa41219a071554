"""The small scale: real images and small models of the same code, chosen so that they fit their training images.

Where a model does not fit its data in the epochs it has, SAM and LookSAM slow it down and lose; these do fit. All use
the first 20 classes of CIFAR-100, resized (16² pixels for the ViT, 8² for the ResNet): 1,200 images to train on, 60 per
class; 2,000 held out of the rest of the training set, to tune on and for learning curves; and the 2,000 test images of
these classes. Each study comes with clean and with noisy labels.
"""

from collections.abc import Sequence
from typing import Any

from looksam.experiments.engine.tuner import Study
from looksam.methods import METHODS, settings_of
from looksam.trainer.recipe import Recipe

LABEL_NOISE = {"clean labels": 0.0, "30 % random labels": 0.3}  # the label-noise settings: share of random labels

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
LAMB_BATCHES = (50, 400)  # 24 and 3 steps per epoch
WARM_UP_EPOCHS = 2
LAYER = "look_layer_sam:normalized"  # the default scaling

# --- the settings that each method tries --------------------------------------------------------------------------

RATES_OF_BASE = (1.0, 1 / 3)  # what the other methods try, relative to the learning rate selected for the base


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


def resnet_studies() -> dict[str, Study]:
    """The small ResNet with SGD-M, by label-noise setting."""
    return {labels: Study(RESNET.replace(label_noise=noise), RESNET_GRIDS) for labels, noise in LABEL_NOISE.items()}


def vit_studies() -> dict[str, Study]:
    """The small ViT with AdamW, by label-noise setting."""
    return {labels: Study(VIT.replace(label_noise=noise), VIT_GRIDS) for labels, noise in LABEL_NOISE.items()}


def lamb_studies(batches: Sequence[int] = LAMB_BATCHES) -> dict[tuple[str, int], Study]:
    """The small ViT with LAMB, by label-noise setting and batch; the same epochs and warm-up epochs at every batch."""
    return {
        (labels, batch): Study(_lamb(batch).replace(label_noise=noise), LAMB_GRIDS)
        for labels, noise in LABEL_NOISE.items()
        for batch in batches
    }


def _lamb(batch: int) -> Recipe:
    return LAMB.replace(batch_size=batch, warmup_steps=WARM_UP_EPOCHS * IMAGES["train_limit"] // batch)


# --- the models whose steps are timed: large enough that a step is work and not overhead --------------------------

PERIODS = (5, 10, 20)
# The rows of the paper's tables on CIFAR-100 and of ViTs.
SAM_ROWS = ("base", "sam", *(METHODS[name].row_name(k) for k in PERIODS for name in ("sam_k", "look_sam")))

TIMED_VIT = Recipe(
    dataset="cifar100", mesh="data=1", model="vit", patch=4, width=128, depth=4, heads=4, batch_size=16, epochs=10
)
TIMED: dict[str, Recipe] = {
    "vit": TIMED_VIT.replace(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, decay_all=False, clip_norm=1.0),
    "resnet": Recipe(dataset="cifar100", mesh="data=1", model="resnet_small", batch_size=16, epochs=10),
    "lamb": TIMED_VIT.replace(optimizer="lamb", learning_rate=1e-2, weight_decay=0.1, decay_all=False, clip_norm=1.0),
}
TIMED_ROWS: dict[str, tuple[str, ...]] = {
    "vit": (*SAM_ROWS, "look_sam_1", "look_sam_2", "look_sam_3"),
    "resnet": SAM_ROWS,
    "lamb": ("base", "layer_sam", "look_sam_5", "look_layer_sam"),
}


def timed_recipes(name: str) -> dict[str, Recipe]:
    """The recipes of a timing, by row."""
    return {row: TIMED[name].replace(**settings_of(row)) for row in TIMED_ROWS[name]}

"""The small scale: real images and small models of the same code, chosen so that they fit their training images.

Where a model does not fit its data in the epochs it has, SAM and LookSAM slow it down and lose; these do fit. All use
the first 20 classes of CIFAR-100, resized (16² pixels for the ViT, 8² for the ResNet): 1,200 images to train on, 60 per
class; 2,000 held out of the rest of the training set, to tune on and for learning curves; and the 2,000 test images of
these classes. Each study comes with clean and with noisy labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from looksam.experiments.engine.search import SearchStudy
from looksam.methods import METHODS, parse_row, settings_of
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

PERIODS = (5, 10, 20)
# The rows of the paper's tables on CIFAR-100 and of ViTs, each with a search of its own.
SAM_ROWS = ("base", "sam", *(METHODS[name].row_name(k) for k in PERIODS for name in ("sam_k", "look_sam")))

# --- where each method's search starts ----------------------------------------------------------------------------


def _by_row(**starts: dict[str, float]) -> dict[str, dict[str, float]]:
    """The starts of all rows, from those of their methods: the same for every k."""
    return {row: starts[parse_row(row).method.name] for row in SAM_ROWS}


RESNET_STARTS = _by_row(
    base={"learning_rate": 0.3, "weight_decay": 5e-4},
    sam={"rho": 0.2},
    sam_k={"rho": 0.8},
    look_sam={"rho": 0.3, "alpha": 0.1},
)
VIT_STARTS = _by_row(
    base={"learning_rate": 0.004, "weight_decay": 0.1},
    sam={"rho": 0.8},
    sam_k={"rho": 0.8},
    look_sam={"rho": 0.4, "alpha": 0.5},
)
LAMB_STARTS: dict[str, dict[str, float]] = {
    "base": {"learning_rate": 0.02, "weight_decay": 0.1},
    "sam": {"rho": 0.4},
    "look_sam": {"rho": 0.4, "alpha": 0.3},
    "look_layer_sam:normalized": {"rho": 0.4, "alpha": 0.3},
    "look_layer_sam:literal": {"rho": 0.01, "alpha": 0.3},
    "look_layer_sam:adaptive": {"rho": 0.05, "alpha": 0.3},
}


def _study(recipe: Recipe, noise: float, starts: Mapping[str, dict[str, float]]) -> SearchStudy:
    """Tuning runs have as many epochs as the reported ones."""
    recipe = recipe.replace(label_noise=noise)
    return SearchStudy(recipe, starts, recipe.epochs)


def resnet_studies() -> dict[str, SearchStudy]:
    """The small ResNet with SGD-M, by label-noise setting."""
    return {labels: _study(RESNET, noise, RESNET_STARTS) for labels, noise in LABEL_NOISE.items()}


def vit_studies() -> dict[str, SearchStudy]:
    """The small ViT with AdamW, by label-noise setting."""
    return {labels: _study(VIT, noise, VIT_STARTS) for labels, noise in LABEL_NOISE.items()}


def lamb_studies(batches: Sequence[int] = LAMB_BATCHES) -> dict[tuple[str, int], SearchStudy]:
    """The small ViT with LAMB, by label-noise setting and batch; the same epochs and warm-up epochs at every batch."""
    return {
        (labels, batch): _study(_lamb(batch), noise, LAMB_STARTS)
        for labels, noise in LABEL_NOISE.items()
        for batch in batches
    }


def _lamb(batch: int) -> Recipe:
    return LAMB.replace(batch_size=batch, warmup_steps=WARM_UP_EPOCHS * IMAGES["train_limit"] // batch)


# --- the models whose steps are timed: large enough that a step is work and not overhead --------------------------

TIMED_VIT = Recipe(
    dataset="cifar100", mesh="data=1", model="vit", patch=4, width=128, depth=4, heads=4, batch_size=16, epochs=10
)
TIMED: dict[str, Recipe] = {
    "vit": TIMED_VIT.replace(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, decay_all=False, clip_norm=1.0),
    "resnet": Recipe(dataset="cifar100", mesh="data=1", model="resnet_small", batch_size=16, epochs=10),
    "lamb": TIMED_VIT.replace(optimizer="lamb", learning_rate=1e-2, weight_decay=0.1, decay_all=False, clip_norm=1.0),
}
TIMED_ROWS: dict[str, tuple[str, ...]] = {
    "vit": (*SAM_ROWS, "look_sam_2", "look_sam_3"),
    "resnet": SAM_ROWS,
    "lamb": ("base", "layer_sam", "look_sam_5", "look_layer_sam"),
}


def timed_recipes(name: str) -> dict[str, Recipe]:
    """The recipes of a timing, by row."""
    return {row: TIMED[name].replace(**settings_of(row)) for row in TIMED_ROWS[name]}

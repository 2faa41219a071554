"""Small recipes of our own, for a machine without an accelerator; two sections: digits, and photographs.

An MLP on scikit-learn's digits (600 images to train on, 1,197 to test on, nothing to download): ``DIGITS_RECIPES``.

Paper:    none. The paper's claim at small scale: under label noise LookSAM-5 keeps what SAM gains.
Command:  looksam train digits-noise30
Hardware: two CPU cores.
Time:     seconds per run; base takes 1 gradient per step, LookSAM-5 and SAM-5 1.2, SAM 2.
Score:    none in the paper.

All settings are ours: three hidden layers of 128, SGD with momentum 0.9 and cosine decay, batch 50 (it divides
600), 100 epochs, and in ``digits-noise30`` 30 % of the training labels drawn at random. There is no weight decay except
in ``digits-noise30-decay``, where every method tunes it. ``DIGITS_SELECTED`` has, for each method, the learning rate,
ρ, α and weight decay with the best mean accuracy over five seeds on a quarter of the training images, held out with
clean labels, as found by

    looksam compare digits-noise30 digits-noise30-decay digits --tune \\
        --validation 0.25 --seeds 5 --dtype float64 --out results/digits

which stores every score in results/digits/tuning.json; a test compares the two. Each method has four searches, around
``DIGITS_STARTS``. They are local, so the best of them may be missed. Double precision makes accuracies independent of
the machine; in single precision a run at the edge of divergence may end anywhere.

Small models on photographs: ``PHOTO_RECIPES``.

Paper:    none; the models and the trainer are those of the paper's tables, at small scale.
Command:  looksam train cifar100-small-vit --data-dir data --download
Hardware: two CPU cores.
Time:     about 50 minutes for cifar100-small-resnet and cifar100-small-vit, 25 for imagenette-vit-s32, 10 for the 12
          steps of cifar100-64k; estimated from a few steps.
Score:    none in the paper.

All settings are ours, after those of ``cifar`` and ``imagenet``, with 10,000 of CIFAR-100's training images; every
``--method`` runs on them. rho and alpha of ``cifar100-small-resnet`` and ``cifar100-small-vit`` are those that `looksam
reproduce` selected for LookSAM-5 on smaller models of the same kind with clean labels (results/cifar100, results/vit):
the paper's alpha = 0.7 is too large there. SAM and LookSAM slow down a model that has not fitted its data yet, so
expect them to lose in shorter runs. ``cifar100-64k`` is the paper's largest batch with its augmentation: larger than
the 50,000 training images, so batches are drawn across epochs and processed in micro-batches of 1,024.
``imagenette-vit-s32`` reads a Parquet folder of ten ImageNet classes at 224², by default ``imagenette224-sample``
inside LOOKSAM_DATA.
"""

from typing import Any

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import cifar, imagenet

# --- digits ---

_START = {"learning_rate": 0.05, "rho": 0.4, "alpha": 0.7}
DIGITS_STARTS: dict[str, dict[str, float]] = {  # by recipe: where the searches of all methods start
    "digits": _START,
    "digits-noise30": _START,
    "digits-noise30-decay": _START | {"weight_decay": 0.02},
}
DIGITS_SELECTED: dict[str, dict[str, dict[str, Any]]] = {  # by recipe, then by method
    "digits": {
        "base": {"learning_rate": 0.1},
        "sam": {"learning_rate": 0.025, "rho": 0.1},
        "sam_k": {"learning_rate": 0.1, "rho": 0.2, "k": 5},
        "look_sam": {"learning_rate": 0.05, "rho": 0.2, "alpha": 0.175, "k": 5},
    },
    "digits-noise30": {
        "base": {"learning_rate": 0.003125},
        "sam": {"learning_rate": 0.0125, "rho": 0.4},
        "sam_k": {"learning_rate": 0.005, "rho": 0.4, "k": 5},
        "look_sam": {"learning_rate": 0.05, "rho": 0.4, "alpha": 0.7, "k": 5},
    },
    "digits-noise30-decay": {
        "base": {"learning_rate": 0.04, "weight_decay": 0.02},
        "sam": {"learning_rate": 0.1, "weight_decay": 0.005, "rho": 0.4},
        "sam_k": {"learning_rate": 0.025, "weight_decay": 0.02, "rho": 0.05, "k": 5},
        "look_sam": {"learning_rate": 0.05, "weight_decay": 0.02, "rho": 0.0125, "alpha": 0.0875, "k": 5},
    },
}
DIGITS_SETTINGS = Recipe(
    dataset="digits",
    model="mlp",
    optimizer="sgdm",
    schedule="cosine",
    momentum=0.9,
    weight_decay=0.0,
    batch_size=50,
    epochs=100,
    method="look_sam",
)

DIGITS_RECIPES: dict[str, Recipe] = {
    "digits": DIGITS_SETTINGS.replace(**DIGITS_SELECTED["digits"]["look_sam"]),
    "digits-noise30": DIGITS_SETTINGS.replace(label_noise=0.3, **DIGITS_SELECTED["digits-noise30"]["look_sam"]),
    "digits-noise30-decay": DIGITS_SETTINGS.replace(
        label_noise=0.3, **DIGITS_SELECTED["digits-noise30-decay"]["look_sam"]
    ),
}


def digits_cost(recipe: Recipe) -> str:
    """Returns hardware and time."""
    return "2 CPU cores, seconds"


# --- photographs ---

PHOTO_RECIPES: dict[str, Recipe] = {
    "cifar100-small-resnet": cifar.SETTINGS.replace(
        train_limit=10_000, model="resnet_small", epochs=50, method="look_sam", rho=0.6, alpha=0.1, k=5
    ),
    "cifar100-small-vit": Recipe(
        dataset="cifar100",
        train_limit=10_000,
        model="vit",
        patch=4,
        width=128,
        depth=4,
        heads=4,
        crop_padding=4,
        optimizer="adamw",
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=200,
        weight_decay=0.1,
        decay_all=False,
        clip_norm=1.0,
        batch_size=128,
        epochs=50,
        method="look_sam",
        rho=0.4,
        alpha=0.5,
        k=5,
    ),
    "cifar100-64k": imagenet.AUGMENTED_RECIPES["vit_b16-lamb-65536-look_layer_sam-randaugment-mixup"].replace(
        dataset="cifar100",
        image_size=None,
        workers=0,
        model="vit",
        patch=8,
        width=64,
        depth=2,
        heads=2,
        across_epochs=True,
        microbatch=1024,
        warmup_steps=3,
        epochs=16,
        log_every=1,
    ),
    "imagenette-vit-s32": imagenet.VIT_RECIPES["vit_s32-look_sam-5"].replace(
        dataset="parquet",
        data_dir="imagenette224-sample",
        workers=0,
        randaugment=2,
        randaugment_magnitude=10.0,
        mixup=0.2,
        learning_rate=1e-3,
        warmup_steps=50,
        batch_size=50,
        epochs=30,
    ),
}


def photo_cost(recipe: Recipe) -> str:
    """Returns hardware and estimated time."""
    minutes = 25 if recipe.dataset == "parquet" else 10 if recipe.across_epochs else 50
    return f"2 CPU cores, about {minutes} minutes"


# --- both ---

RECIPES: dict[str, Recipe] = DIGITS_RECIPES | PHOTO_RECIPES


def score(recipe: Recipe) -> float | None:
    """Returns None: none of these is in the paper."""
    return None

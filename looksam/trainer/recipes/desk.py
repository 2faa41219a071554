"""Small models on real photographs, for a machine without an accelerator.

Paper:    not in it; the models and the trainer are those of the paper's tables, in small.
Command:  looksam train cifar100-small-vit --data-dir data --download
Hardware: two CPU cores.
Time:     about 50 minutes for each of the two small ones, 25 for imagenette-vit-s32, 10 for the 12 steps of
          cifar100-64k; reckoned from a few steps.
Score:    not in the paper.

All settings are ours, after cifar100.py and vit.py, with 10,000 of CIFAR-100's training images; any ``--method`` runs
on them. Where a model has not fitted its data yet, SAM and LookSAM slow it down: in shorter runs expect them to lose.
``cifar100-64k`` is the paper's largest batch with its augmentation: more images than the 50,000 there are, so batches
run on over the ends of epochs, and 1,024 are worked at a time.
``imagenette-vit-s32`` reads a Parquet folder of ten ImageNet classes at 224², by default ``imagenette224-sample``
inside of LOOKSAM_DATA.
"""

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import augment_64k, cifar100, vit

RECIPES: dict[str, Recipe] = {
    "cifar100-small-resnet": cifar100.SETTINGS.replace(
        train_limit=10_000, model="resnet_small", epochs=50, method="look_sam", k=5
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
        rho=0.05,
        alpha=0.7,
        k=5,
    ),
    "cifar100-64k": augment_64k.RECIPES["vit_b16-lamb-65536-look_layer_sam-randaugment-mixup"].replace(
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
    "imagenette-vit-s32": vit.RECIPES["vit_s32-look_sam-5"].replace(
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


def score(recipe: Recipe) -> float | None:
    return None


def cost(recipe: Recipe) -> str:
    minutes = 25 if recipe.dataset == "parquet" else 10 if recipe.across_epochs else 50
    return f"2 CPU cores, about {minutes} minutes"

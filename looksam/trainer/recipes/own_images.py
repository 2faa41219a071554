"""Starting points for images of your own: a small ResNet and a small ViT, on a folder of images or on Parquet files.

Paper:    none.
Command:  looksam train folder-resnet --data-dir photos
Hardware: two CPU cores.
Time:     as many images as you have, at 64², for 50 epochs; the first steps show how long it takes.
Score:    none in the paper.

All settings are ours, after ``cifar100-small-resnet`` and ``cifar100-small-vit`` of ``small``, on all training images.
rho, alpha and k are where docs/choosing.md says to start, from the tuning of small models of each kind. Images of any
size are brought to 64², and the batch is 64, so that a few hundred images are enough for several steps per epoch; the
learning rate of the ResNet is that of a batch of 128, scaled. ``--dataset parquet`` reads Parquet files, and with an
accelerator ``--image-size 224 --model resnet18`` or ``--image-size 224 --patch 16 --width 384 --depth 12 --heads 6``
train larger models.
"""

from looksam.trainer.recipe import Recipe

SIDE = 64

RECIPES: dict[str, Recipe] = {
    "folder-resnet": Recipe(
        dataset="folder",
        model="resnet_small",
        image_size=SIDE,
        crop_padding=8,
        optimizer="sgdm",
        learning_rate=0.1,
        scale_from_batch=128,
        schedule="cosine",
        momentum=0.9,
        weight_decay=5e-4,
        batch_size=64,
        epochs=50,
        method="look_sam",
        rho=0.3,
        alpha=0.1,
        k=5,
    ),
    "folder-vit": Recipe(
        dataset="folder",
        model="vit",
        image_size=SIDE,
        patch=8,
        width=128,
        depth=4,
        heads=4,
        crop_padding=8,
        optimizer="adamw",
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=50,
        weight_decay=0.1,
        decay_all=False,
        clip_norm=1.0,
        batch_size=64,
        epochs=50,
        method="look_sam",
        rho=0.4,
        alpha=0.5,
        k=5,
    ),
}


def score(recipe: Recipe) -> float | None:
    """Returns None: none of these is in the paper."""
    return None


def cost(recipe: Recipe) -> str:
    """Returns hardware; the time depends on the images."""
    return "2 CPU cores, by the number of images"

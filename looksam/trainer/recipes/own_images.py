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
from looksam.trainer.recipes.small import PHOTO_RECIPES

# crop_padding is an eighth of the side, as for 32² images
_SETTINGS = {"dataset": "folder", "train_limit": None, "image_size": 64, "crop_padding": 8, "batch_size": 64}

RECIPES: dict[str, Recipe] = {
    "folder-resnet": PHOTO_RECIPES["cifar100-small-resnet"].replace(scale_from_batch=128, **_SETTINGS),
    "folder-vit": PHOTO_RECIPES["cifar100-small-vit"].replace(patch=8, warmup_steps=50, **_SETTINGS),
}


def score(recipe: Recipe) -> float | None:
    """Returns None: none of these is in the paper."""
    return None


def cost(recipe: Recipe) -> str:
    """Returns hardware; the time depends on the images."""
    return "2 CPU cores, by the number of images"

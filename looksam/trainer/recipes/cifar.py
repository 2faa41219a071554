"""ResNet-18, ResNet-50 and WRN-28-10 on CIFAR-100, at the paper's size.

Paper:    Liu et al., CVPR 2022, table "Accuracy of Different Models on CIFAR100".
Command:  looksam train cifar100-resnet18-look_sam-5 --data-dir data --download
Hardware: not reported; one accelerator with 16 GB is enough.
Time:     not reported; base takes 1 gradient per step, SAM 2, SAM-k and LookSAM-k 1 + 1/k.
Score:    paper_tables/cifar100.csv, printed by `looksam recipes cifar100`.

From the paper: the models, SGD with momentum, 200 epochs, batch 128, k = 5, 10, 20.
Ours, since the paper reports none: learning rate 0.1 with cosine decay, momentum 0.9, weight decay 5e-4 on all
parameters, rho = 0.1, random crops after padding by 4 and flips, as in the original SAM work for WRN on CIFAR (Foret et
al., ICLR 2021), and alpha = 0.7, the paper's value for ImageNet.
"""

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables

TABLE_MODELS = ("resnet18", "resnet50", "wrn28_10")
TABLE_METHODS = ("base", "sam", "sam_k", "look_sam")
TABLE_PERIODS = (5, 10, 20)
SETTINGS = Recipe(
    dataset="cifar100",
    crop_padding=4,
    optimizer="sgdm",
    learning_rate=0.1,
    schedule="cosine",
    momentum=0.9,
    weight_decay=5e-4,
    batch_size=128,
    epochs=200,
    rho=0.1,
    alpha=0.7,
)

RECIPES: dict[str, Recipe] = {
    f"cifar100-{model}-{name}": recipe
    for model in TABLE_MODELS
    for name, recipe in paper_tables.recipes_by_method(
        SETTINGS.replace(model=model), TABLE_METHODS, TABLE_PERIODS
    ).items()
}


def score(recipe: Recipe) -> float | None:
    """Returns the paper's top-1 accuracy in percent."""
    return paper_tables.number("cifar100", paper_tables.row_of(recipe), model=recipe.model)


def cost(recipe: Recipe) -> str:
    """Returns hardware and gradients per step."""
    return f"one accelerator; {paper_tables.gradients_per_step(recipe)}"

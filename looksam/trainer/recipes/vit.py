"""Vision Transformers on ImageNet-1k with AdamW.

Paper:    Liu et al., CVPR 2022, table "Top-1 accuracy and training time", settings of the vanilla ViTs.
Command:  looksam train vit_b16-look_sam-5 --data-dir imagenet
Hardware: a TPU pod, the same for all rows; the number of chips is not named with this table.
Time:     paper_tables/vit.csv, in seconds an epoch.
Score:    paper_tables/vit.csv, which `looksam recipes vit_s16` prints.

The paper's: 224² images, batch 4,096, 300 epochs, 10,000 warm-up steps to 3e-3, then cosine, AdamW with weight decay
0.3, clipping at 1.0, and rho for each model, SAM and LookSAM alike.
Ours, since the paper names none: alpha = 0.7, rho of SAM-k as of SAM, decay of kernels and embeddings only,
Inception-style crop and flip as the only augmentation, 8 processes that decode.
"""

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper, variants

RHO = {"vit_b16": 0.18, "vit_b32": 0.15, "vit_s16": 0.1, "vit_s32": 0.05}
PERIODS = (5, 10)
SETTINGS = Recipe(
    dataset="imagenet",
    image_size=224,
    workers=8,
    optimizer="adamw",
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=10_000,
    weight_decay=0.3,
    decay_all=False,
    clip_norm=1.0,
    batch_size=4096,
    epochs=300,
    alpha=0.7,
)

RECIPES: dict[str, Recipe] = {
    f"{model}-{name}": recipe
    for model, rho in RHO.items()
    for name, recipe in variants.by_method(SETTINGS.replace(model=model, rho=rho), PERIODS).items()
}


def score(recipe: Recipe) -> float | None:
    return _cell(recipe, "top1")


def cost(recipe: Recipe) -> str:
    seconds = _cell(recipe, "seconds_per_epoch")
    if seconds is None:
        return f"TPU pod; {variants.gradients(recipe)}"
    return f"TPU pod, {seconds} s an epoch, {seconds * recipe.epochs / 3600:.1f} h"


def _cell(recipe: Recipe, column: str) -> float | None:
    return paper.number("vit", column, model=recipe.model, method=paper.label(recipe, "adamw"))

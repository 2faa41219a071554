"""Look-LayerSAM at batches of 32,768 and 65,536 with RandAugment and Mixup. (Without them: large_batch.py.)

Paper:    Liu et al., CVPR 2022, table "RandAug and Mixup", large-batch settings.
Command:  looksam train vit_b16-lamb-65536-look_layer_sam-randaugment-mixup --data-dir imagenet
Hardware: a TPU pod, 1,024 chips at batch 32,768; not named at 65,536.
Time:     not named there; without augmentation paper_tables/time_hours.csv has 0.7 hours at 32,768.
Score:    paper_tables/augment_64k.csv, which `looksam recipes randaugment` prints.

The paper's: the settings of large_batch.py at the same batch.
Ours, since the paper names none: 2 operations of magnitude 10 an image in RandAugment, 0.2 in Mixup.
"""

from typing import Any

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import large_batch, paper, variants

BATCHES = (32768, 65536)
AUGMENTED: dict[str, dict[str, Any]] = {
    "randaugment": {"randaugment": 2, "randaugment_magnitude": 10.0},
    "randaugment-mixup": {"randaugment": 2, "randaugment_magnitude": 10.0, "mixup": 0.2},
}

RECIPES: dict[str, Recipe] = {
    f"vit_b16-lamb-{batch}-look_layer_sam-{name}": large_batch.RECIPES[f"vit_b16-lamb-{batch}-look_layer_sam"].replace(
        **settings
    )
    for batch in BATCHES
    for name, settings in AUGMENTED.items()
}


def score(recipe: Recipe) -> float | None:
    mixup = "yes" if recipe.mixup else "no"
    return paper.number("augment_64k", str(recipe.batch_size), method="lamb+look_layer_sam", randaug="yes", mixup=mixup)


def cost(recipe: Recipe) -> str:
    return f"TPU pod; {variants.gradients(recipe)}"

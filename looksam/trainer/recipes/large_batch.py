"""ViT-B-16 on ImageNet-1k with LAMB, at batches from 4,096 to 65,536.

Paper:    Liu et al., CVPR 2022, tables "Large-batch training accuracy" and "Training Time", large-batch settings.
Command:  looksam train vit_b16-lamb-32768-look_layer_sam --data-dir imagenet
Hardware: a TPU pod, from 128 chips at batch 4,096 to 1,024 at 32,768; not named at 65,536.
Time:     paper_tables/time_hours.csv: 0.7 to 8.4 hours.
Score:    paper_tables/large_batch.csv (65,536: augment_64k.csv), which `looksam recipes lamb` prints.

The paper's: 300 epochs, linear decay, clipping at 1.0, alpha = 0.7, and for each batch the warm-up steps, peak
learning rate, weight decay, and rho of SAM, LayerSAM and Look-LayerSAM below.
Ours, since the paper names none: plain LAMB as the SAM row; LookSAM's rho as SAM's; rho = 0.18 for SAM and LookSAM at
65,536, where the paper has neither; k = 5; the normalized reading of the layer-wise ball; decay of kernels and
embeddings only; 8 processes that decode.
"""

from typing import Any

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper, variants

BATCHES: dict[int, dict[str, Any]] = {
    4096: {"warmup_steps": 10_000, "learning_rate": 1e-2, "weight_decay": 0.1},
    8192: {"warmup_steps": 10_000, "learning_rate": 1.7e-2, "weight_decay": 0.1},
    16384: {"warmup_steps": 7_000, "learning_rate": 1.8e-2, "weight_decay": 0.1},
    32768: {"warmup_steps": 6_000, "learning_rate": 1.8e-2, "weight_decay": 0.1},
    65536: {"warmup_steps": 3_500, "learning_rate": 2e-2, "weight_decay": 0.2},
}
RHO = {"base": 0.18, "sam": 0.18, "look_sam": 0.18, "layer_sam": 1.0, "look_layer_sam": 1.0}
IMAGES_A_CHIP = 32  # of a batch, in the paper: 4,096 on 128 chips
SETTINGS = Recipe(
    dataset="imagenet",
    image_size=224,
    workers=8,
    model="vit_b16",
    optimizer="lamb",
    schedule="linear",
    decay_all=False,
    clip_norm=1.0,
    epochs=300,
    alpha=0.7,
    k=5,
)

RECIPES: dict[str, Recipe] = {
    f"vit_b16-lamb-{batch}-{method}": SETTINGS.replace(batch_size=batch, method=method, rho=rho, **settings)
    for batch, settings in BATCHES.items()
    for method, rho in RHO.items()
}


def score(recipe: Recipe) -> float | None:
    batch, row = str(recipe.batch_size), _row(recipe)
    found = paper.number("large_batch", batch, method=row)
    return paper.number("augment_64k", batch, method=row, randaug="no", mixup="no") if found is None else found


def cost(recipe: Recipe) -> str:
    hours = paper.number("time_hours", str(recipe.batch_size), method=_row(recipe))
    chips = f", {recipe.batch_size // IMAGES_A_CHIP:,} chips" if recipe.batch_size <= 32768 else ""
    if hours is None:
        return f"TPU pod{chips}; {variants.gradients(recipe)}"
    return f"TPU pod{chips}, {hours} h"


def _row(recipe: Recipe) -> str:
    return "lamb" if recipe.method == "base" else f"lamb+{recipe.method}"

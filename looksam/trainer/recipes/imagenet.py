"""The paper's recipes for ImageNet-1k, one section per table: ViTs with AdamW, large batches with LAMB, augmentation.

Vision Transformers with AdamW: ``VIT_RECIPES``.

Paper:    Liu et al., CVPR 2022, table "Top-1 accuracy and training time", settings of the vanilla ViTs.
Command:  looksam train vit_b16-look_sam-5 --data-dir imagenet
Hardware: a TPU pod, the same for all rows; this table does not report the number of chips.
Time:     paper_tables/vit.csv, in seconds per epoch.
Score:    paper_tables/vit.csv, printed by `looksam recipes vit_s16`.

From the paper: 224² images, batch 4,096, 300 epochs, 10,000 warm-up steps to 3e-3, then cosine decay, AdamW with weight
decay 0.3, clipping at 1.0, and rho for each model, the same for SAM and LookSAM.
Ours, since the paper reports none: alpha = 0.7, rho of SAM-k as of SAM, decay of kernels and embeddings only,
Inception-style crops and flips as the only augmentation, 8 processes that decode.

ViT-B-16 with LAMB, at batches from 4,096 to 65,536: ``LARGE_BATCH_RECIPES``.

Paper:    Liu et al., CVPR 2022, tables "Large-batch training accuracy" and "Training Time", large-batch settings.
Command:  looksam train vit_b16-lamb-32768-look_layer_sam --data-dir imagenet
Hardware: a TPU pod, from 128 chips at batch 4,096 to 1,024 at 32,768; not reported at 65,536.
Time:     paper_tables/time_hours.csv, 0.7 to 8.4 hours.
Score:    paper_tables/large_batch.csv (65,536: augment_64k.csv), printed by `looksam recipes lamb`.

From the paper: 300 epochs, linear decay, clipping at 1.0, alpha = 0.7, and for each batch the warm-up steps, peak
learning rate, weight decay, and rho of SAM, LayerSAM and Look-LayerSAM.
Ours, since the paper reports none: plain LAMB with the settings of the SAM row; LookSAM's rho as SAM's; rho = 0.18 for
SAM and LookSAM at 65,536, where the paper has neither; k = 5; the normalized scaling of layer-wise perturbations; decay
of kernels and embeddings only; 8 processes that decode.

Look-LayerSAM at batches of 32,768 and 65,536 with RandAugment and Mixup: ``AUGMENTED_RECIPES``.

Paper:    Liu et al., CVPR 2022, table "RandAug and Mixup", large-batch settings.
Command:  looksam train vit_b16-lamb-65536-look_layer_sam-randaugment-mixup --data-dir imagenet
Hardware: a TPU pod, 1,024 chips at batch 32,768; not reported at 65,536.
Time:     not reported; without augmentation paper_tables/time_hours.csv has 0.7 hours at 32,768.
Score:    paper_tables/augment_64k.csv, printed by `looksam recipes randaugment`.

From the paper: the settings of the large-batch recipe of the same batch.
Ours, since the paper reports none: RandAugment with 2 operations of magnitude 10 per image, Mixup with parameter 0.2.
"""

from typing import Any

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables

IMAGENET = Recipe(dataset="imagenet", image_size=224, workers=8, decay_all=False, clip_norm=1.0, epochs=300, alpha=0.7)

# --- Vision Transformers with AdamW ---

VIT_RHO = {"vit_b16": 0.18, "vit_b32": 0.15, "vit_s16": 0.1, "vit_s32": 0.05}
VIT_METHODS = ("base", "sam", "sam_k", "look_sam")  # the rows of the table
VIT_PERIODS = (5, 10)
VIT_SETTINGS = IMAGENET.replace(
    optimizer="adamw",
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=10_000,
    weight_decay=0.3,
    batch_size=4096,
)

VIT_RECIPES: dict[str, Recipe] = {
    f"{model}-{name}": recipe
    for model, rho in VIT_RHO.items()
    for name, recipe in paper_tables.recipes_by_method(
        VIT_SETTINGS.replace(model=model, rho=rho), VIT_METHODS, VIT_PERIODS
    ).items()
}


def vit_score(recipe: Recipe) -> float | None:
    """Returns the paper's top-1 accuracy in percent."""
    return _vit_number(recipe, "top1")


def vit_cost(recipe: Recipe) -> str:
    """Returns hardware, seconds per epoch and hours, as in the paper."""
    seconds = _vit_number(recipe, "seconds_per_epoch")
    if seconds is None:
        return f"TPU pod; {paper_tables.gradients_per_step(recipe)}"
    return f"TPU pod, {seconds} s per epoch, {seconds * recipe.epochs / 3600:.1f} h"


def _vit_number(recipe: Recipe, column: str) -> float | None:
    row = paper_tables.row_of(recipe)
    return paper_tables.number("vit", column, model=recipe.model, method=row)


# --- large batches with LAMB ---

LARGE_BATCH_SETTINGS: dict[int, dict[str, Any]] = {  # by batch size
    4096: {"warmup_steps": 10_000, "learning_rate": 1e-2, "weight_decay": 0.1},
    8192: {"warmup_steps": 10_000, "learning_rate": 1.7e-2, "weight_decay": 0.1},
    16384: {"warmup_steps": 7_000, "learning_rate": 1.8e-2, "weight_decay": 0.1},
    32768: {"warmup_steps": 6_000, "learning_rate": 1.8e-2, "weight_decay": 0.1},
    65536: {"warmup_steps": 3_500, "learning_rate": 2e-2, "weight_decay": 0.2},
}
LARGE_BATCH_RHO = {"base": 0.18, "sam": 0.18, "look_sam": 0.18, "layer_sam": 1.0, "look_layer_sam": 1.0}
IMAGES_PER_CHIP = 32  # of a batch, in the paper: 4,096 on 128 chips
LARGEST_BATCH_WITH_CHIPS = 32768  # the largest batch for which the paper reports the number of chips
LAMB = IMAGENET.replace(model="vit_b16", optimizer="lamb", schedule="linear", k=5)

LARGE_BATCH_RECIPES: dict[str, Recipe] = {
    f"vit_b16-lamb-{batch}-{method}": LAMB.replace(batch_size=batch, method=method, rho=rho, **settings)
    for batch, settings in LARGE_BATCH_SETTINGS.items()
    for method, rho in LARGE_BATCH_RHO.items()
}


def large_batch_score(recipe: Recipe) -> float | None:
    """Returns the paper's top-1 accuracy in percent, at 65,536 from the table on augmentation."""
    batch, row = str(recipe.batch_size), paper_tables.row_of(recipe)
    score = paper_tables.number("large_batch", batch, method=row)
    return paper_tables.number("augment_64k", batch, method=row, randaug="no", mixup="no") if score is None else score


def large_batch_cost(recipe: Recipe) -> str:
    """Returns the number of chips and the hours, as in the paper."""
    hours = paper_tables.number("time_hours", str(recipe.batch_size), method=paper_tables.row_of(recipe))
    reported = recipe.batch_size <= LARGEST_BATCH_WITH_CHIPS
    chips = f", {recipe.batch_size // IMAGES_PER_CHIP:,} chips" if reported else ""
    if hours is None:
        return f"TPU pod{chips}; {paper_tables.gradients_per_step(recipe)}"
    return f"TPU pod{chips}, {hours} h"


# --- RandAugment and Mixup at the largest batches ---

AUGMENTED_BATCHES = (32768, 65536)
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "randaugment": {"randaugment": 2, "randaugment_magnitude": 10.0},
    "randaugment-mixup": {"randaugment": 2, "randaugment_magnitude": 10.0, "mixup": 0.2},
}

AUGMENTED_RECIPES: dict[str, Recipe] = {
    f"{name}-{augmentation}": LARGE_BATCH_RECIPES[name].replace(**settings)
    for name in (f"vit_b16-lamb-{batch}-look_layer_sam" for batch in AUGMENTED_BATCHES)
    for augmentation, settings in AUGMENTATIONS.items()
}


def augmented_score(recipe: Recipe) -> float | None:
    """Returns the paper's top-1 accuracy in percent."""
    row, mixup = paper_tables.row_of(recipe), "yes" if recipe.mixup else "no"
    return paper_tables.number("augment_64k", str(recipe.batch_size), method=row, randaug="yes", mixup=mixup)


def augmented_cost(recipe: Recipe) -> str:
    """Returns hardware and gradients per step."""
    return f"TPU pod; {paper_tables.gradients_per_step(recipe)}"

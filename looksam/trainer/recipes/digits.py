"""An MLP on scikit-learn's digits: 600 real images to train on, 1,197 to test on, nothing to download.

Paper:    not in it. The paper's claim in small: under label noise LookSAM-5 keeps what SAM gains.
Command:  looksam train digits-noise30
Hardware: two CPU cores.
Time:     seconds a run; base 1 gradient a step, LookSAM-5 and SAM-5 1.2, SAM 2.
Score:    not in the paper.

All settings are ours: three hidden layers of 128, SGD with momentum 0.9, learning rate 0.05 with cosine decay, batch
50 (it divides 600), 100 epochs, no weight decay, and in ``digits-noise30`` 30 % of the training labels drawn at random.
``GRIDS`` has eight settings for each method, ``PICKS`` the one of them that did best on a quarter of the training
images, held out with clean labels, over five seeds, by

    looksam compare digits-noise30 digits --tune --validation 0.25 --seeds 5 --out results/digits

which leaves every score in results/digits/tuning.json; a test holds the picks to it.
"""

from typing import Any

from looksam.trainer.recipe import Recipe

GRIDS: dict[str, list[dict[str, Any]]] = {
    "sam": [{"rho": rho} for rho in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)],
    "sam_k": [{"rho": rho, "k": 5} for rho in (0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4)],
    "look_sam": [{"rho": rho, "alpha": alpha, "k": 5} for rho in (0.1, 0.2, 0.4, 0.8) for alpha in (0.3, 0.7)],
}
PICKS: dict[str, dict[str, dict[str, Any]]] = {  # of each recipe, for each method
    "digits": {
        "sam": {"rho": 0.3},
        "sam_k": {"rho": 0.1, "k": 5},
        "look_sam": {"rho": 0.2, "alpha": 0.3, "k": 5},
    },
    "digits-noise30": {
        "sam": {"rho": 0.6},
        "sam_k": {"rho": 1.2, "k": 5},
        "look_sam": {"rho": 0.4, "alpha": 0.7, "k": 5},
    },
}
SETTINGS = Recipe(
    dataset="digits",
    model="mlp",
    optimizer="sgdm",
    learning_rate=0.05,
    schedule="cosine",
    momentum=0.9,
    weight_decay=0.0,
    batch_size=50,
    epochs=100,
    method="look_sam",
)

RECIPES: dict[str, Recipe] = {
    "digits": SETTINGS.replace(**PICKS["digits"]["look_sam"]),
    "digits-noise30": SETTINGS.replace(label_noise=0.3, **PICKS["digits-noise30"]["look_sam"]),
}


def score(recipe: Recipe) -> float | None:
    return None


def cost(recipe: Recipe) -> str:
    return "2 CPU cores, seconds"

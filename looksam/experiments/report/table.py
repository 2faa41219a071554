"""The table of a comparison, for the terminal and for documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.report.text import lines_markdown, lines_text

NAMES = {
    "base": "base",
    "sam": "SAM",
    "sam_k": "SAM-{k}",
    "look_sam": "LookSAM-{k}",
    "layer_sam": "LayerSAM",
    "look_layer_sam": "Look-LayerSAM-{k}",
}
HEADER = ("method", "ρ", "α", "test accuracy, %", "gradients a step", "time of base", "sharpness, train", "test")


def title(result: dict[str, Any]) -> str:
    recipe = result["recipe"]
    noise = f", {100 * recipe['label_noise']:.0f} % of the training labels random" if recipe["label_noise"] else ""
    return f"{recipe['dataset']}{noise}, {recipe['model']}, {recipe['optimizer']}, {result['seeds']} seeds"


def display_name(method: str, settings: dict[str, Any]) -> str:
    return NAMES[method].format(k=settings.get("k", "k"))


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [_row(method, outcome) for method, outcome in result["methods"].items()]


def _row(method: str, outcome: dict[str, Any]) -> tuple[str, ...]:
    settings, low_middle_high = outcome["settings"], outcome["time_ratio"]
    return (
        display_name(method, settings),
        f"{settings['rho']:g}" if "rho" in settings else "–",
        f"{settings['alpha']:g}" if "alpha" in settings else "–",
        mean_and_error(outcome["accuracy"], 2),
        f"{outcome['gradients_per_step']:.1f}",
        f"{low_middle_high[1]:.2f}×",
        mean_and_error(outcome["sharpness_train"], 4),
        mean_and_error(outcome["sharpness_test"], 3),
    )


def mean_and_error(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """Mean ± standard error over seeds; the mean alone where there is one seed."""
    mean, error = mean_and_standard_error(values)
    return f"{mean:.{digits}f}" if len(values) < 2 else f"{mean:.{digits}f} ± {error:.{digits}f}"


def as_text(result: dict[str, Any]) -> str:
    return f"{title(result)}\n\n{lines_text([HEADER, *rows(result)])}"


def as_markdown(result: dict[str, Any]) -> str:
    return f"**{title(result)}**\n\n{lines_markdown([HEADER, *rows(result)], left=range(len(HEADER)))}"

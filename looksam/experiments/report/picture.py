"""The picture of a comparison: accuracy against cost, and learning curves."""

import pathlib
from typing import Any

import numpy as np

from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.report.style import style
from looksam.experiments.report.table import display_name, title


def draw_comparison(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    """One row a result. The file's ending says the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4 * len(results)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(results), 2, squeeze=False, width_ratios=(1, 1.3))
    for (cost, curves), result in zip(grid, results, strict=True):
        _cost(cost, result)
        _curves(curves, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _cost(axes: Any, result: dict[str, Any]) -> None:
    for method, outcome in result["methods"].items():
        look = style(method)
        mean, error = mean_and_standard_error(outcome["accuracy"])
        axes.errorbar(
            outcome["time_ratio"][1], mean, error, color=look.colour, marker=look.marker, markersize=8, capsize=3
        )
    axes.set(xlabel="time a step, relative to base", ylabel="test accuracy, %")
    axes.margins(0.1)
    axes.set_title(title(result), loc="left", fontsize=9)
    axes.grid(alpha=0.25)


def _curves(axes: Any, result: dict[str, Any]) -> None:
    for method, outcome in result["methods"].items():
        look = style(method)
        curve = np.array(outcome["curve"])
        mean, error = mean_and_standard_error(curve.T)
        label = display_name(method, outcome["settings"])
        axes.plot(result["curve_epochs"], mean, color=look.colour, marker=look.marker, markersize=4, label=label)
        axes.fill_between(result["curve_epochs"], mean - error, mean + error, color=look.colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test accuracy, %")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)

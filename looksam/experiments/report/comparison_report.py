"""The table and the picture of a comparison of methods: accuracy, cost and sharpness, and learning curves."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.report.plot_data import style
from looksam.experiments.report.text import gradients_text, lines_markdown, lines_text
from looksam.methods import label, parse_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADER = (
    *("method", "learning rate", "weight decay", "ρ", "α", "test accuracy, %", "gradients per step"),
    *("relative step time", "sharpness, train", "test"),
)


def as_text(result: dict[str, Any]) -> str:
    """The table for the terminal and for documents, with its title."""
    return f"{title(result)}\n\n{lines_text([HEADER, *_rows(result)])}"


def as_markdown(result: dict[str, Any]) -> str:
    """The same table in Markdown."""
    return f"**{title(result)}**\n\n{lines_markdown([HEADER, *_rows(result)], left=range(len(HEADER)))}"


def title(result: dict[str, Any]) -> str:
    """What was trained: dataset, label noise, model, optimizer, the number of seeds, and weight decays of their own."""
    recipe = result["recipe"]
    tuned = any("weight_decay" in outcome["settings"] for outcome in result.get("methods", {}).values())
    noise = f", {100 * recipe['label_noise']:.0f} % of the training labels random" if recipe["label_noise"] else ""
    model = f"{recipe['model']}, {recipe['optimizer']}{', weight decay tuned' if tuned else ''}"
    return f"{recipe['dataset']}{noise}, {model}, {result['seeds']} seeds"


def mean_and_error(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """Mean ± standard error over seeds; the mean alone where there is one seed."""
    mean, error = mean_and_standard_error(values)
    return f"{mean:.{digits}f}" if len(values) < 2 else f"{mean:.{digits}f} ± {error:.{digits}f}"


def draw_comparison(results: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """Draw accuracy against cost, and learning curves, in one row per result. The suffix of the file is its format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4 * len(results)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(results), 2, squeeze=False, width_ratios=(1, 1.3))
    for (cost, curves), result in zip(grid, results, strict=True):
        _draw_cost(cost, result)
        _draw_curves(curves, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [_row(method, outcome, result["recipe"]) for method, outcome in result["methods"].items()]


def _row(method: str, outcome: dict[str, Any], recipe: dict[str, Any]) -> tuple[str, ...]:
    settings, (_, time_ratio, _) = outcome["settings"], outcome["time_ratio"]
    return (
        label(method, k=settings.get("k")),
        f"{settings.get('learning_rate', recipe['learning_rate']):.3g}",
        f"{settings.get('weight_decay', recipe['weight_decay']):.3g}",
        f"{settings['rho']:.3g}" if "rho" in settings else "–",
        f"{settings['alpha']:.3g}" if "alpha" in settings else "–",
        mean_and_error(outcome["accuracy"], 2),
        gradients_text(outcome["gradients_per_step"]),
        f"{time_ratio:.2f}×",
        mean_and_error(outcome["sharpness_train"], 4),
        mean_and_error(outcome["sharpness_test"], 3),
    )


def _style(row: str) -> dict[str, Any]:
    """Colour and marker of the method; a rule that starts late has hollow markers and dashed lines."""
    method, late = style(parse_row(row).method.name), bool(parse_row(row).start)
    hollow = {"markerfacecolor": "white", "linestyle": "--"} if late else {}
    return {"color": method.colour, "marker": method.marker, **hollow}


def _draw_cost(axes: "Axes", result: dict[str, Any]) -> None:
    for method, outcome in result["methods"].items():
        mean, error = mean_and_standard_error(outcome["accuracy"])
        axes.errorbar(outcome["time_ratio"][1], mean, error, **_style(method), markersize=8, capsize=3)
    axes.set(xlabel="time per step, relative to base", ylabel="test accuracy, %")
    axes.margins(0.1)
    axes.set_title(title(result), loc="left", fontsize=9)
    axes.grid(alpha=0.25)


def _draw_curves(axes: "Axes", result: dict[str, Any]) -> None:
    epochs = result["curve_epochs"]
    for method, outcome in result["methods"].items():
        drawn, name = _style(method), label(method, k=outcome["settings"].get("k"))
        mean, error = mean_and_standard_error(np.array(outcome["curve"]).T)
        axes.plot(epochs, mean, **drawn, markersize=4, label=name)
        axes.fill_between(epochs, mean - error, mean + error, color=drawn["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test accuracy, %")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)

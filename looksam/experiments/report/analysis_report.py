"""The tables and figures of ``looksam analyze``: how flat the loss is around a checkpoint."""

import json
import math
import pathlib
from typing import Any

from looksam.experiments.report.document import Figure, Heatmap, Series, Table
from looksam.experiments.report.figures import draw
from looksam.experiments.report.text import table_text
from looksam.trainer.run_folder.run_directory import write_atomically


def write(result: dict[str, Any], folder: pathlib.Path) -> str:
    """Write analysis.json and the figures of a result to a folder; return the tables as text."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "analysis.json", (json.dumps(result, allow_nan=False) + "\n").encode())
    for figure in figures(result):
        draw(figure, folder)
    return "\n\n".join(map(table_text, tables(result)))


def tables(result: dict[str, Any]) -> list[Table]:
    """Sharpness, curvature, the second-order prediction of g_v, and the PAC-Bayes bound."""
    hessian, bound = result["hessian"], result["bound"]
    sharpness = [
        ("loss", "loss"),
        ("one step", "one_step"),
        (f"{result['ascent_steps']} steps", "ascent"),
        (f"groups of {result['m']}, one step", "m_sharpness"),
    ]
    pairs = enumerate(zip(hessian["eigenvalues"], hessian["residuals"], strict=True), 1)
    return [
        Table(
            f"Sharpness at radius {result['rho']:g} around the parameters of step {result['step']}",
            ("", _sample(result, "images", "training images"), _sample(result, "test_images", "test images")),
            [
                (label, _number(result["train"].get(name)), _number(result["test"].get(name)))
                for label, name in sharpness
            ],
        ),
        Table(
            f"Hessian of the loss on {_sample(result, 'images', 'training images')}; {hessian['steps']} products for "
            f"the eigenvalues, {hessian['probes']} for the trace",
            ("", "value", "residual", "standard error"),
            [(f"eigenvalue {i}", _number(value), _number(residual), None) for i, (value, residual) in pairs]
            + [("trace", _number(hessian["trace"]), None, _number(hessian["trace_error"]))],
        ),
        Table(
            f"g_v, of norm {_number(result['second_order']['g_v_norm'])}, predicted by one product with the Hessian",
            ("prediction", "norm", "relative error", "cosine"),
            [
                _prediction("projected off g", result["second_order"]["projected"]),
                _prediction("as the paper prints it", result["second_order"]["printed"]),
            ],
        ),
        Table(
            f"PAC-Bayes bound, {bound['n']:,} training images, {result['parameters']:,} parameters",
            ("term", "value"),
            [(name.replace("_", " "), _number(bound[name])) for name in bound if name != "n"],
        ),
    ]


def figures(result: dict[str, Any]) -> list[Figure | Heatmap]:
    """The loss along a random direction, along g and g_v, and over a random plane."""
    line, plane, named = (result["landscape"][name] for name in ("line", "plane", "named"))
    loss = "cross-entropy"
    near = [Series(name, named["distance"], _points(named[name]), style=i) for i, name in enumerate(("g", "g_v"))]
    both = [
        Series(f"{name} images", line["at"], _points(line[name]), style=i) for i, name in enumerate(("train", "test"))
    ]
    return [
        Figure("landscape_line", "Loss along a random direction", "filter-normalised distance", loss, both),
        Figure("landscape_named", "Training loss along g and g_v", "distance", loss, near),
        Heatmap(
            "landscape_plane",
            "Training loss over a random plane",
            "first direction, filter-normalised",
            "second direction",
            plane["at"],
            plane["at"],
            [_points(row) for row in plane["train"]],
            value_label=loss,
            log=all(value is not None and value > 0 for row in plane["train"] for value in row),
        ),
    ]


def _sample(result: dict[str, Any], name: str, what: str) -> str:
    used, of = result[name], result[f"{name}_of"]
    return f"{used:,} {what}" if used == of else f"{used:,} of {of:,} {what}"


def _prediction(name: str, result: dict[str, Any]) -> tuple[str, str, str, str]:
    return name, _number(result["norm"]), _number(result["relative_error"]), _number(result["cosine"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _points(values: list[float | None]) -> list[float]:
    """The values with NaN where there is none: a figure leaves a gap there."""
    return [math.nan if value is None else value for value in values]

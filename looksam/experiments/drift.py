"""Figure "Difference of gradients between every 5 steps": is g_v the slow component?"""

from collections.abc import Iterator

import numpy as np

from looksam.experiments import vit
from looksam.experiments.compare.sweep import curve_epochs
from looksam.experiments.drifting import LAG, NAMES
from looksam.experiments.entries import spread
from looksam.experiments.report.document import Entry, Figure, Section, Series, Table
from looksam.experiments.store import Store
from looksam.experiments.study import tuning_stages
from looksam.experiments.task import Task
from looksam.experiments.work import CURVE_POINTS
from looksam.trainer.recipe import Recipe

NAME = "drift"
TITLE = "How fast the parts of the gradient change"
QUESTION = "Is g_v, the part that LookSAM reuses, the slow component of SAM's gradient?"
FULL = ("vit_b16-sam",)
PHASES = {"first 30 %": slice(0, 3), "middle 40 %": slice(3, 7), "last 30 %": slice(7, 10)}  # of training
LABELS = {
    "g": "g, the gradient at w",
    "g_s": "g_s, SAM's gradient",
    "g_h": "g_h, its part along g",
    "g_v": "g_v, the rest",
}


def recipes(store: Store) -> dict[str, Recipe]:
    return {column: study.tuned(store, "sam") for column, study in vit.studies().items()}


def _tasks(recipe: Recipe, seeds: int) -> list[Task]:
    return [Task("drift", recipe.replace(seed=seed)) for seed in range(seeds)]


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from tuning_stages(vit.studies().values(), store, ("base", "sam"))
    yield [task for recipe in recipes(store).values() for task in _tasks(recipe, seeds)]


def section(store: Store, seeds: int) -> Section:
    measured = {column: _measured(recipe, store, seeds) for column, recipe in recipes(store).items()}
    epochs = {column: curve_epochs(recipe.epochs, CURVE_POINTS) for column, recipe in recipes(store).items()}
    figures = [
        _figure(f"drift-{kind}-{i}", f"{title}, {column}", label, kind, epochs[column], measured[column])
        for i, column in enumerate(measured)
        for kind, title, label in (
            ("absolute", "Absolute drift over 5 steps", "‖x(t) − x(t − 5)‖"),
            ("relative", "Relative drift over 5 steps", "‖x(t) − x(t − 5)‖ / ‖x(t)‖"),
        )
    ]
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [sentence for column, found in measured.items() for sentence in _answers(column, found)],
        [_table(column, found) for column, found in measured.items()],
        figures,
        [
            f"Exact, on every step of {seeds} SAM runs of the small ViT, each step with its own images; means over "
            f"tenths of training, the first {LAG} steps left out.",
            "The paper's figure shows the absolute drift of g_s, g_h and g_v for a ViT on ImageNet, in which g_v "
            "changes least; it prints no numbers. Relative drift and cosine are ours.",
            "Two unrelated vectors of one length have a relative drift of 1.41 and a cosine of 0.",
        ],
    )


Measured = dict[str, dict[str, np.ndarray]]  # component, number -> (seeds, parts)


def _measured(recipe: Recipe, store: Store, seeds: int) -> Measured:
    records = [store.get(task) for task in _tasks(recipe, seeds)]
    if any(record is None for record in records):
        raise ValueError("some drift runs are not there; run `looksam reproduce drift`.")
    return {
        name: {
            number: np.array([r[name][number] for r in records if r], float)  # None, not finite, becomes NaN
            for number in ("norm", "absolute", "relative", "cosine")
        }
        for name in NAMES
    }


def _figure(name: str, title: str, label: str, kind: str, epochs: list[int], found: Measured) -> Figure:
    series = []
    for i, part in enumerate(NAMES):
        values = found[part][kind]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        series.append(Series(LABELS[part], epochs, values.mean(0).round(5).tolist(), error.round(5).tolist(), i))
    return Figure(name, title, "epoch", label, series, log_y=kind == "absolute")


def _table(column: str, found: Measured) -> Table:
    header = ("phase", "part", "norm", "absolute drift", "relative drift", "cosine")
    lines: list[tuple[Entry, ...]] = []
    for phase, where in PHASES.items():
        for part in NAMES:
            values = [
                spread(found[part][n][:, where].mean(axis=1).tolist(), 3)
                for n in ("norm", "absolute", "relative", "cosine")
            ]
            lines.append((phase, part, *values))
    return Table(f"Over {LAG} steps, {column}", header, lines)


def _answers(column: str, found: Measured) -> list[str]:
    """For each phase, where g_v stands among g_s, g_h and g_v."""
    sentences = []
    for phase, where in PHASES.items():

        def mean(part: str, kind: str, where: slice = where) -> float:
            return float(found[part][kind][:, where].mean())

        verdicts = []
        for kind in ("absolute", "relative"):
            g_v, g_h, g_s = (mean(part, kind) for part in ("g_v", "g_h", "g_s"))
            is_it = "is" if g_v < min(g_h, g_s) else "is not"
            numbers = f"{g_v:.3f} against {g_h:.3f} of g_h and {g_s:.3f} of g_s"
            verdicts.append(f"{is_it} the slow one in {kind} terms ({numbers})")
        sentences.append(f"{column}, {phase}: g_v {' and '.join(verdicts)}.")
    return sentences

"""Figure "Difference of gradients between every 5 steps": is g_v the slow component?"""

from collections.abc import Iterator

import numpy as np

from looksam.experiments import claims
from looksam.experiments.engine.records import LAG, MEASURES, PARTS
from looksam.experiments.engine.reported import load_records
from looksam.experiments.engine.runner import curve_epochs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import tuning_stages
from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.experiment import Experiment, Findings, mean_entry
from looksam.experiments.report.document import Entry, Figure, Series, Table
from looksam.experiments.small_scale import vit_studies
from looksam.trainer.recipe import Recipe

PHASES = {"first 30 %": slice(0, 3), "middle 40 %": slice(3, 7), "last 30 %": slice(7, 10)}  # of training, in tenths
LABELS = {
    "g": "g, the gradient at w",
    "g_s": "g_s, SAM's gradient",
    "g_h": "g_h, its part along g",
    "g_v": "g_v, the rest",
}
AXES = {"absolute": "‖x(t) − x(t − 5)‖", "relative": "‖x(t) − x(t − 5)‖ / ‖x(t)‖"}

Measured = dict[str, dict[str, np.ndarray]]  # by part of the gradient, then by measure: (seeds, tenths)


def recipes(store: Store) -> dict[str, Recipe]:
    """The tuned SAM by label-noise setting."""
    return {labels: study.tuned(store, "sam") for labels, study in vit_studies().items()}


def _runs(recipe: Recipe, seeds: int) -> list[Run]:
    return [Run("drift", recipe.replace(seed=seed)) for seed in range(seeds)]


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    yield from tuning_stages(vit_studies().values(), store, ("base", "sam"))
    yield [run for recipe in recipes(store).values() for run in _runs(recipe, seeds)]


def findings(store: Store, seeds: int) -> Findings:
    measured = {labels: _measured(recipe, store, seeds) for labels, recipe in recipes(store).items()}
    epochs = {labels: curve_epochs(recipe.epochs) for labels, recipe in recipes(store).items()}
    return Findings(
        [sentence for labels, values in measured.items() for sentence in _answers(labels, values)],
        [_table(labels, values) for labels, values in measured.items()],
        [
            _figure(f"drift-{kind}-{i}", labels, kind, epochs[labels], measured[labels])
            for i, labels in enumerate(measured)
            for kind in AXES
        ],
        [
            f"Exact, on every step of {seeds} SAM runs of the small ViT, each step with its own images; means over "
            f"tenths of training, the first {LAG} steps left out.",
            "The paper's figure shows the absolute drift of g_s, g_h and g_v for a ViT on ImageNet, in which g_v "
            "changes least; it prints no numbers. Relative drift and cosine are ours.",
            "Two unrelated vectors of one length have a relative drift of 1.41 and a cosine of 0.",
        ],
        [claims.claim("g_v changes more slowly than g_s and g_h", {k: _slow(v) for k, v in measured.items()})],
    )


def _slow(measured: Measured) -> claims.Finding:
    """Whether the absolute drift of g_v, over all of training, is the smallest."""
    g_v, g_h, g_s = (float(measured[part]["absolute"].mean()) for part in ("g_v", "g_h", "g_s"))
    return g_v < min(g_h, g_s), f"{g_v:.3f} against {g_s:.3f} and {g_h:.3f}"


def _measured(recipe: Recipe, store: Store, seeds: int) -> Measured:
    records = load_records(store, _runs(recipe, seeds))
    return {
        part: {
            measure: np.array([record[part][measure] for record in records], float)  # None, not finite, becomes NaN
            for measure in MEASURES
        }
        for part in PARTS
    }


def _figure(name: str, labels: str, kind: str, epochs: list[int], measured: Measured) -> Figure:
    series = []
    for i, part in enumerate(PARTS):
        mean, error = mean_and_standard_error(measured[part][kind])
        series.append(Series(LABELS[part], epochs, mean.round(5).tolist(), error.round(5).tolist(), i))
    title = f"{kind.capitalize()} drift over {LAG} steps, {labels}"
    return Figure(name, title, "epoch", AXES[kind], series, log_y=kind == "absolute")


def _table(labels: str, measured: Measured) -> Table:
    header = ("phase", "part", "norm", "absolute drift", "relative drift", "cosine")
    lines: list[tuple[Entry, ...]] = []
    for phase, tenths in PHASES.items():
        for part in PARTS:
            means = [measured[part][measure][:, tenths].mean(axis=1) for measure in MEASURES]
            lines.append((phase, part, *(mean_entry(values.tolist(), 3) for values in means)))
    return Table(f"Over {LAG} steps, {labels}", header, lines)


def _answers(labels: str, measured: Measured) -> list[str]:
    """For each phase, whether g_v is the slowest of g_s, g_h and g_v."""
    sentences = []
    for phase, tenths in PHASES.items():
        verdicts = []
        for kind in AXES:
            g_v, g_h, g_s = (float(measured[part][kind][:, tenths].mean()) for part in ("g_v", "g_h", "g_s"))
            verb = "is" if g_v < min(g_h, g_s) else "is not"
            numbers = f"{g_v:.3f} against {g_h:.3f} of g_h and {g_s:.3f} of g_s"
            verdicts.append(f"{verb} the slow one in {kind} terms ({numbers})")
        sentences.append(f"{labels}, {phase}: g_v {' and '.join(verdicts)}.")
    return sentences


DRIFT = Experiment(
    name="drift",
    title="How fast the parts of the gradient change",
    question="Is g_v, the part that LookSAM reuses, the slow component of SAM's gradient?",
    stages=stages,
    findings=findings,
    full=("vit_b16-sam",),
)

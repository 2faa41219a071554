"""Table "Sensitivity of α"."""

from collections.abc import Iterator

from looksam.experiments import lamb, sweeps
from looksam.experiments.report.document import Section
from looksam.experiments.store import Store
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper

NAME = "alpha"
TITLE = "Sensitivity to α"
QUESTION = "How much does the accuracy of Look-LayerSAM depend on α, the strength of the reused part?"
FULL = tuple(f"vit_b16-lamb-{batch}-look_layer_sam" for batch in sweeps.BATCHES.values())
FULL_SETTINGS = tuple({"alpha": alpha} for alpha in (0.5, 0.7, 1.0))
NOTE = "The paper's values of α, and two smaller ones, since desk models pick smaller ones; ρ and rate as tuned."


def _point(alpha: float) -> sweeps.Point:
    return sweeps.Point(f"{alpha:g}", f"{alpha:.1f}", alpha, lambda recipe: recipe.replace(alpha=alpha))


def full_score(recipe: Recipe) -> float | None:
    return paper.number("alpha", f"{recipe.alpha:.1f}", batch=str(recipe.batch_size))


POINTS = [_point(alpha) for alpha in (0.1, 0.3, 0.5, 0.7, 1.0)]


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from lamb.tuning(store, tuple(sweeps.BATCHES), ("base", lamb.LAYER))
    yield lamb.reported([r for here in sweeps.recipes(store, POINTS).values() for r in here], seeds)


def section(store: Store, seeds: int) -> Section:
    return sweeps.section(NAME, TITLE, QUESTION, "α", POINTS, store, seeds, NOTE)

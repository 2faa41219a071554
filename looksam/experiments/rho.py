"""Table "Sensitivity of ρ"."""

from collections.abc import Iterator

from looksam.experiments import lamb, sweeps
from looksam.experiments.report.document import Section
from looksam.experiments.store import Store
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper

NAME = "rho"
TITLE = "Sensitivity to ρ"
QUESTION = "How much does the accuracy of Look-LayerSAM depend on ρ, the radius of the ball?"
FULL = tuple(f"vit_b16-lamb-{batch}-look_layer_sam" for batch in sweeps.BATCHES.values())
FULL_SETTINGS = tuple({"rho": rho} for rho in (0.5, 0.8, 1.0, 1.2))
NOTE = (
    "The desk recipe's ρ stands where the paper's optimum, ρ = 1, does, and the other values are the same multiples of "
    "it. Rate and α are as tuned."
)


def _point(factor: float) -> sweeps.Point:
    def move(recipe: Recipe) -> Recipe:
        return recipe.replace(rho=round(recipe.rho * factor, 6))

    return sweeps.Point(f"{factor:g} × ρ", f"{factor:.1f}", factor, move)


def full_score(recipe: Recipe) -> float | None:
    return paper.number("rho", f"{recipe.rho:.1f}", batch=str(recipe.batch_size))


POINTS = [_point(factor) for factor in (0.5, 0.8, 1.0, 1.2)]


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from lamb.tuning(store, tuple(sweeps.BATCHES), ("base", lamb.LAYER))
    yield lamb.reported([r for here in sweeps.recipes(store, POINTS).values() for r in here], seeds)


def section(store: Store, seeds: int) -> Section:
    return sweeps.section(NAME, TITLE, QUESTION, "ρ, of the desk recipe's", POINTS, store, seeds, NOTE)

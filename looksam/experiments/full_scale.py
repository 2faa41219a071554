"""Full scale: the paper's recipes, unchanged. They are trained where the hardware is, or compiled and estimated."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from looksam.experiments.engine.runs import provenance
from looksam.experiments.experiment import Experiment, mean_entry, printed
from looksam.experiments.report.document import Entry, Section, Table
from looksam.experiments.report.text import section_markdown
from looksam.methods import METHODS
from looksam.trainer import recipes
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import RunError


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A run was stopped by ``signal``; it is saved, and the same command resumes it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


def full_recipes(experiment: Experiment, **changes: Any) -> dict[str, tuple[Recipe, float | None]]:
    """The recipes by name, each with the paper's score where it prints one.

    ``changes`` are settings that distribute the work, and do not change what is computed.
    """
    results: dict[str, tuple[Recipe, float | None]] = {}
    for name in experiment.full:
        for settings in experiment.full_settings:
            recipe = _changed(name, changes).replace(**settings)
            label = name + "".join(f"-{key}-{value:g}" for key, value in settings.items())
            score = experiment.full_score(recipe) if experiment.full_score else recipes.find(name).score
            results[label] = recipe, score
    return results


def _changed(name: str, changes: dict[str, Any]) -> Recipe:
    recipe = recipes.find(name).recipe.replace(**changes)
    return recipe if recipe.dataset == "cifar100" else recipe.replace(download=False)  # no other can be downloaded


def planned(experiment: Experiment, **changes: Any) -> dict[str, Recipe]:
    """One recipe for each model, batch and augmentation: the method with the most settings.

    The plan of LookSAM also contains those of the base and of SAM.
    """
    best: dict[Recipe, tuple[str, Recipe]] = {}
    for name in experiment.full:
        recipe = _changed(name, changes)
        key = recipe.replace(method="base", rho=0.0, alpha=0.0, k=1)
        if key not in best or _settings(recipe) > _settings(best[key][1]):
            best[key] = name, recipe
    return dict(best.values())


def _settings(recipe: Recipe) -> int:
    return len(METHODS[recipe.method].settings)


def train(
    experiment: Experiment, seeds: int, out: pathlib.Path, report: Callable[[str], None], **changes: Any
) -> tuple[Section, dict[str, Any]]:
    """Trains every recipe on every seed, as `looksam train` does: with checkpoints, from which runs resume.

    Returns the results as a report and as numbers.
    """
    rows: list[tuple[Entry, ...]] = []
    scores: dict[str, list[float]] = {}
    for name, (recipe, score) in full_recipes(experiment, **changes).items():
        scores[name] = [_run(name, recipe.replace(seed=seed), out / "runs", report) for seed in range(seeds)]
        rows.append((name, mean_entry(scores[name]), printed(score)))
    source = provenance() | {"scale": "full", "seeds": seeds}
    table = Table("Test accuracy in %", ("recipe", "ours", "paper"), rows)
    about = {name: value for name, value in source.items() if name != "versions"}
    section = Section(experiment.name, experiment.title, experiment.question, (), [table], source=about)
    return section, source | {"test_accuracy": scores}


def write(section: Section, scores: dict[str, Any], folder: pathlib.Path) -> None:
    """Writes full.json and full.md."""
    (folder / "full.json").write_text(json.dumps(scores) + "\n")
    (folder / "full.md").write_text(section_markdown(section))


def _run(name: str, recipe: Recipe, folder: pathlib.Path, report: Callable[[str], None]) -> float:
    """Trains one run and returns its test accuracy."""
    from looksam.trainer.loop import run

    report(f"{name}, seed {recipe.seed}")
    result = run(recipe, folder / f"{name}-seed{recipe.seed}", report=report)
    if result["status"] == "interrupted":
        raise Stopped(int(result["signal"]))
    if result["status"] != "finished":
        raise RunError(f"{name}, seed {recipe.seed}, has {result['status']}; see {result['run_dir']}.")
    return result["test_accuracy"]

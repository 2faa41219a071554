"""Table "RandAug and Mixup": the largest batches, with and without augmentation."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from looksam.experiments import claims
from looksam.experiments.engine.reported import accuracies, reported_runs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import tuning_stages
from looksam.experiments.engine.statistics import RULE, difference, gain_text, significant
from looksam.experiments.experiment import Experiment, Findings, mean_entry, paper_entry
from looksam.experiments.report.document import Entry, Table
from looksam.experiments.small_scale import LAYER, lamb_studies
from looksam.trainer import recipes as listed
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes.paper_tables import paper_row

BATCHES = {50: 32768, 400: 65536}  # ours, with the paper's that they stand for
AUGMENTED = ("randaugment", "randaugment-mixup")  # names of the paper's recipes end so


class AddedRow(NamedTuple):
    """A row of the table, which adds one thing to the row above."""

    method: str
    augmentation: dict[str, Any]

    def paper(self) -> dict[str, str]:
        """Where the row is in the paper's table."""
        randaugment, mixup = (self.augmentation.get(name) for name in ("randaugment", "mixup"))
        words = {True: "yes", False: "no"}
        return {
            "method": paper_row(self.method, "lamb"),
            "randaug": words[bool(randaugment)],
            "mixup": words[bool(mixup)],
        }


def _augmentation(name: str) -> dict[str, Any]:
    """The augmentation of the paper's recipes."""
    recipe = listed.find(f"vit_b16-lamb-{BATCHES[400]}-look_layer_sam-{name}").recipe
    return {name: getattr(recipe, name) for name in ("randaugment", "randaugment_magnitude", "mixup")}


ROWS = {
    "LAMB": AddedRow("base", {}),
    "+ Look-LayerSAM-5": AddedRow(LAYER, {}),
    "+ RandAugment": AddedRow(LAYER, _augmentation(AUGMENTED[0])),
    "+ Mixup": AddedRow(LAYER, _augmentation(AUGMENTED[1])),
}


def recipes(store: Store) -> dict[tuple[str, int], dict[str, Recipe]]:
    """By label-noise setting and batch, then by row."""
    return {
        place: {name: study.tuned(store, row.method, **row.augmentation) for name, row in ROWS.items()}
        for place, study in lamb_studies(tuple(BATCHES)).items()
    }


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    yield from tuning_stages(lamb_studies(tuple(BATCHES)).values(), store, ("base", LAYER))
    yield reported_runs([recipe for rows in recipes(store).values() for recipe in rows.values()], seeds)


def findings(store: Store, seeds: int) -> Findings:
    trained = recipes(store)
    scores = {
        place: {name: accuracies(store, recipe, seeds) for name, recipe in rows.items()}
        for place, rows in trained.items()
    }
    ours = [f"{labels}, batch {batch}" for labels, batch in trained]
    header = ("", *ours, *(f"paper: {batch:,}" for batch in BATCHES.values()))
    lines: list[tuple[Entry, ...]] = []
    for name, row in ROWS.items():
        theirs = [paper_entry("augment_64k", str(batch), **row.paper()) for batch in BATCHES.values()]
        lines.append((name, *(mean_entry(here[name]) for here in scores.values()), *theirs))
    epochs = next(iter(trained.values()))["LAMB"].epochs
    return Findings(
        [_answer(f"{labels}, batch {batch}", scores[labels, batch]) for labels, batch in trained],
        [Table("Test accuracy in %, small ViT; each row adds to the one above", header, lines)],
        (),
        [
            "RandAugment with 2 operations of magnitude 10 and Mixup of 0.2, as in the full recipes; ρ, α and the "
            f"learning rate are those tuned without augmentation, and the {epochs} epochs are the same.",
            RULE,
        ],
        [
            claims.gains(
                "RandAugment and Mixup add accuracy at the largest batch",
                {labels: rows for (labels, batch), rows in scores.items() if batch == max(BATCHES)},
                "+ Mixup",
                "+ Look-LayerSAM-5",
            )
        ],
    )


def _answer(place: str, scores: dict[str, list[float]]) -> str:
    gains = {row: difference(scores[row], scores[before]) for before, row in itertools.pairwise(ROWS)}
    clear = significant(gains)
    parts = [f"{row[2:]} {gain_text(gain.mean, clear[row])}" for row, gain in gains.items()]
    return f"{place}: each against the row above it: {'; '.join(parts)}."


AUGMENT_64K = Experiment(
    name="augment-64k",
    title="The largest batches with RandAugment and Mixup",
    question="Does augmentation still add to Look-LayerSAM at the largest batch?",
    stages=stages,
    findings=findings,
    full=(
        *(f"vit_b16-lamb-{batch}-{method}" for batch in BATCHES.values() for method in ("base", "look_layer_sam")),
        *(f"vit_b16-lamb-{batch}-look_layer_sam-{name}" for batch in BATCHES.values() for name in AUGMENTED),
    ),
)

"""The plan of the medium scale: images, epochs, runs and hours, written down before anything is trained."""

from typing import NamedTuple

from looksam.experiments import medium_scale
from looksam.experiments.engine.pool import cost
from looksam.experiments.engine.runs import Run
from looksam.experiments.engine.search import BUDGET, SearchStudy
from looksam.experiments.report.document import Section, Table, Value
from looksam.methods import label
from looksam.trainer.training import total_steps

HOURS = 3_600_000  # milliseconds in one


class Planned(NamedTuple):
    """What one study takes."""

    experiment: str
    name: str
    study: SearchStudy
    seeds: int
    tunes: bool = True  # False where the tuning is that of another study
    again: tuple[str, ...] = ()  # rows that are reported once more, at settings of another row

    def rows(self) -> list[str]:
        """All rows that are reported."""
        return [*self.study.rows(), *self.again]

    def tried(self, row: str) -> int:
        """The settings that a row is expected to try; the outcome decides."""
        searched = set(self.study.starts.get(row, {})) | {"learning_rate", "weight_decay"}
        return max(BUDGET, 2 * len(searched)) + 1 if self.tunes else 0

    def hours(self) -> float:
        """Hours of one core, for tuning and for the reported runs."""
        return sum(map(self._milliseconds, self.rows())) / HOURS

    def _milliseconds(self, row: str) -> float:
        one = cost(Run("train", self.study.shared(row, self.study.recipe.epochs)))
        return one * (self.seeds + self.tried(row) * self.study.epochs / self.study.recipe.epochs)

    def line(self) -> tuple[str | Value, ...]:
        """A row of the table."""
        recipe, rows = self.study.recipe, self.rows()
        numbers = (recipe.batch_size, recipe.epochs, self.study.epochs, total_steps(recipe))
        runs = len(rows), sum(map(self.tried, rows)), self.seeds * len(rows)
        return self.experiment, self.name, *map(str, (*numbers, *runs)), Value(self.hours(), digits=1)


def planned() -> list[Planned]:
    """All that the scale has, in the order of training."""
    rivals = [
        Planned("rivals", f"{medium_scale.MODELS[place.model].label}, {place.labels}", study, medium_scale.SEEDS)
        for place, study in medium_scale.studies().items()
    ]
    lamb = [
        Planned(
            *("large-batch", f"Small ViT, {label('base', 'lamb')}, {medium_scale.LAMB_LABELS}"),
            *(study, medium_scale.LAMB_SEEDS),
        )
        for study in medium_scale.lamb_studies().values()
    ]
    confirmed = [
        Planned(
            *("confirm", f"{medium_scale.MODELS[model].label}, {medium_scale.CONFIRMED_LABELS}"),
            *(study, len(medium_scale.further_seeds(medium_scale.SEEDS))),
            tunes=False,
            again=("look_sam_5",) * len(medium_scale.REUSE_ALPHAS),
        )
        for model, study in medium_scale.confirmed_studies().items()
    ]
    return rivals + confirmed + lamb


def section() -> Section:
    """The plan as a document."""
    studies, images = planned(), medium_scale.IMAGES
    hours = sum(study.hours() for study in studies)
    columns = ("experiment", "study", "batch", "epochs", "when tuning", "steps", "rows")
    header = (*columns, "tuning runs", "reported runs", "hours")
    return Section(
        "plan",
        "The plan of the medium scale",
        "Does LookSAM keep SAM's gain on thousands of real images, and is it worth more than its rivals?",
        [
            f"{images['train_limit']:,} training images of the first {images['classes']} classes of CIFAR-100 at "
            f"{images['image_size']}² pixels, 2,000 held out of the training set, 2,000 to test on; no augmentation.",
            f"About {hours:.0f} hours of one core, {hours / 2:.0f} hours of two; at most 24 and 12 are allowed.",
            f"Each method tries about {BUDGET + 1} settings, {BUDGET + 3} where it has an α, in runs on one seed, "
            "scored on the held-out images at their end: the weight decay, ρ and α where it has them, and the learning "
            "rate. The search starts at values that single runs suggest, by factors of 2 and then of √2, and a line of "
            "values is extended until the best is inside it.",
            "Reported runs have other seeds than tuning. Both the last epoch and the one with the best accuracy on "
            "held-out images are reported; the test set selects nothing.",
        ],
        [Table("Runs and hours of one core", header, [study.line() for study in studies])],
        (),
        medium_scale.REASONS,
    )

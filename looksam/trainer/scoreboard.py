"""The scores of a run: its last evaluation on each split, the best one so far, and whether it still improves.

A run is evaluated on the split that selects its best checkpoint: the validation split, or the test set where there is
none. With a validation split, the test set is evaluated at the end, at the last step and at the best checkpoint.
"""

import math
from typing import Any

from looksam.trainer.batches import Split
from looksam.trainer.data import Dataset

Scores = dict[str, float]  # loss, and accuracy in percent


def selection_split(dataset: Dataset) -> Split:
    """Returns the split that a run is evaluated and its best checkpoint selected on."""
    return "test" if dataset.validation is None else "validation"


def best_metric(dataset: Dataset) -> str:
    """Returns the name of the metric that selects the best checkpoint."""
    return f"{selection_split(dataset)}_accuracy"


class Scoreboard:
    """What is known of a run's evaluations. ``meta`` is plain JSON, for checkpoints, and ``restore`` takes it back.

    Args:
        dataset: what the run trains on.
        patience: the number of evaluations without a better accuracy after which the run ends; None for no end.
    """

    def __init__(self, dataset: Dataset, patience: int | None) -> None:
        self.split, self.metric = selection_split(dataset), best_metric(dataset)
        self.best_step: int | None = None
        self.best_accuracy = -math.inf
        self.evaluations_since = 0  # the best one
        self._patience = patience
        self._scores: dict[str, Scores] = {}  # of the last evaluation on each split, and "best_test"
        self._steps: dict[str, int] = {}  # of these evaluations

    def record(self, step: int, split: Split, scores: Scores) -> None:
        """Takes the scores of a step. On the split that selects, they may be the best so far."""
        if split != self.split:
            self._scores[split], self._steps[split] = scores, step
            return
        self._scores, self._steps = {split: scores}, {split: step}  # a test at an earlier step counts no more
        self.evaluations_since += 1
        if scores["accuracy"] > self.best_accuracy:
            self.best_accuracy, self.best_step, self.evaluations_since = scores["accuracy"], step, 0

    def record_best_test(self, scores: Scores) -> None:
        """Takes the scores of the best checkpoint on the test set."""
        self._scores["best_test"] = scores

    def has(self, step: int, split: Split) -> bool:
        """Returns whether a step was evaluated on this split."""
        return self._steps.get(split) == step

    def out_of_patience(self) -> bool:
        """Returns whether the run has not improved for too long."""
        return self._patience is not None and self.evaluations_since >= self._patience

    def of(self, split: str) -> Scores:
        """Returns the last scores on a split; empty without any."""
        return self._scores.get(split, {})

    def losses(self) -> Scores:
        """Returns the last loss by split."""
        return {split: self._scores[split]["loss"] for split in ("validation", "test") if split in self._scores}

    def selecting(self, step: int) -> Scores | None:
        """Returns what a checkpoint of this step is selected by; None where the step was not evaluated."""
        return {self.metric: self._scores[self.split]["accuracy"]} if self.has(step, self.split) else None

    def meta(self) -> dict[str, Any]:
        """Returns all of it as plain JSON."""
        best = {"step": self.best_step, "accuracy": self.best_accuracy, "evaluations_since": self.evaluations_since}
        return {"best": best, "scores": self._scores, "steps": self._steps}

    def restore(self, meta: dict[str, Any]) -> None:
        """Takes what ``meta`` returned."""
        best, self._scores, self._steps = meta["best"], meta["scores"], meta["steps"]
        self.best_step, self.best_accuracy = best["step"], best["accuracy"]
        self.evaluations_since = best["evaluations_since"]

    def results(self) -> dict[str, Any]:
        """Returns the scores by name, such as ``test_accuracy``, for the result of a run; None where there are none."""
        scores = {
            f"{split}_{name}": self.of(split).get(name)
            for split in ("validation", "test", "best_test")
            for name in ("accuracy", "loss")
        }
        accuracy = None if self.best_step is None else self.best_accuracy
        best = {"best_metric": self.metric, "best_accuracy": accuracy, "best_step": self.best_step}
        return {"split": self.split} | scores | best

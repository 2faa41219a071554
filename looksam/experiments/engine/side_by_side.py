"""Rows of a comparison side by side: their runs are trained and stored, and their steps are timed together.

A stored run is not trained again if it was trained by this code on the same images. So an interrupted comparison
resumes, and one with more rows or seeds trains only what is missing.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from looksam.experiments.engine.runner import Runner, device_arrays
from looksam.experiments.engine.runs import Record, Run, Store, versions
from looksam.experiments.engine.timer import steps_of_runner, time_ratios
from looksam.trainer.batches import load
from looksam.trainer.kept_parts import digest_of
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.training import parameter_count

VMAPPED_PARAMETERS = 150_000  # larger models train one run at a time, to bound the memory
Progress = Callable[[str, float, float], None]  # progress(what is being done, work done, all work)


class SideBySide:
    """Trains the runs of several rows that are not in the store, and times the steps of all rows.

    Args:
      recipe: what all rows share.
      runs: the runs of each row, by its name.
      store: where finished runs and timings are kept; without one, nothing is.
      progress: called with what is being done, the work done and all work, in gradients.
    """

    def __init__(
        self, recipe: Recipe, runs: Mapping[str, Sequence[Run]], store: Store | None, progress: Progress
    ) -> None:
        dataset = load(recipe)
        arrays = device_arrays(dataset)
        first = {name: own[0].recipe for name, own in runs.items()}
        self.runners = {name: Runner(own, dataset, arrays) for name, own in first.items()}  # raises at once
        self._runs, self._store, self._progress = dict(runs), store, progress
        self._small = parameter_count(recipe, dataset) <= VMAPPED_PARAMETERS
        test = next(iter(self.runners.values())).test
        self._source = {"source": digest_of(versions(), (*arrays, test.images, test.labels))}
        self._memory: dict[Run, Record] = {}
        self._gradients = {name: gradients_per_step(own, self.runners[name].total_steps) for name, own in first.items()}
        self._done, self._total = 0.0, sum(self._work(name) * len(self._missing(name)) for name in runs)

    def replace_runs(self, name: str, runs: Sequence[Run]) -> None:
        """Goes on with other runs of a row, which differ from its first ones in what is vmapped."""
        self._runs[name] = runs
        self._total = self._done + sum(self._work(row) * len(self._missing(row)) for row in self._runs)

    def records(self, name: str, points: int, measured: Callable[[Runner], Record]) -> tuple[list[Record], int]:
        """The records of the runs of a row, and how many were trained for them now."""
        missing, runner = self._missing(name), self.runners[name]
        together = max(1, len(missing)) if self._small else 1
        each = self._work(name) / runner.recipe.epochs
        for first in range(0, len(missing), together):
            self._advance(name, 0.0)  # the first epoch compiles
            group = missing[first : first + together]
            after_epoch = functools.partial(self._advance, name, each * len(group))
            curves = runner.start([run.recipe for run in group]).run(points, after_epoch=after_epoch)
            record = {"accuracy": curves.accuracy.T} | measured(runner)
            for i, run in enumerate(group):
                self._put(run, {field: values[i].tolist() for field, values in record.items()})
        found = [self._get(run) for run in self._runs[name]]
        return [record for record in found if record is not None], len(missing)

    def kept_text(self, count: int) -> str:
        """A note on runs that were not trained now."""
        return f" ({count} of the runs from {self._store.folder})" if count and self._store else ""

    # --- step times

    def add_timing(self, rounds: int) -> None:
        """Adds the work of the timing, if it is not stored."""
        if self._stored_timing(rounds) is None:
            self._total += (rounds + 1) * self._round_work()

    def timed(self, rounds: int) -> dict[str, list[float]]:
        """The quartiles of each row's relative step time, all measured in one interleaved run."""
        stored = self._stored_timing(rounds)
        if stored is not None:
            return stored
        for name, runner in self.runners.items():
            runner.start([run.recipe for run in self._timed_runs(name)])
        steps = {name: steps_of_runner(runner) for name, runner in self.runners.items()}
        ratios = time_ratios(steps, rounds, functools.partial(self._advance, "step times", self._round_work()))
        if self._store:
            self._store.write(self._timing_name(rounds), {"ratios": ratios} | self._source)
        return ratios

    def _timed_runs(self, name: str) -> Sequence[Run]:
        return self._runs[name] if self._small else self._runs[name][:1]

    def _round_work(self) -> float:
        return sum(
            steps_of_runner(runner).per_turn * self._gradients[name] * len(self._timed_runs(name))
            for name, runner in self.runners.items()
        )

    def _stored_timing(self, rounds: int) -> dict[str, list[float]] | None:
        stored = self._store.measurement(self._timing_name(rounds)) if self._store else None
        return stored["ratios"] if stored and self._is_ours(stored) else None

    def _timing_name(self, rounds: int) -> str:
        rows = {name: [(run.key, run.recipe.seed) for run in self._timed_runs(name)] for name in self._runs}
        return f"timing-{hashlib.sha256(json.dumps([rounds, rows]).encode()).hexdigest()[:12]}"

    # --- stored runs

    def _missing(self, name: str) -> list[Run]:
        return [run for run in self._runs[name] if self._get(run) is None]

    def _get(self, run: Run) -> Record | None:
        record = self._store.get(run) if self._store else self._memory.get(run)
        return record if record and self._is_ours(record) else None

    def _put(self, run: Run, record: Record) -> None:
        if self._store:
            self._store.add(run, record | self._source)
        else:
            self._memory[run] = record | self._source

    def _is_ours(self, record: Record) -> bool:
        return self._source.items() <= record.items()

    # --- progress

    def _work(self, name: str) -> float:
        """The gradients of one run."""
        return self.runners[name].total_steps * self._gradients[name]

    def _advance(self, title: str, work: float, after: object = None) -> None:
        """Counts the work of an epoch, or of a round of timing."""
        self._done += work
        self._progress(title, self._done, self._total)

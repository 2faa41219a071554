"""Ctrl-C and SIGTERM as a flag, so that a run stops between two steps and not in the middle of one.

A run read back: what it trains with, and the state of its newest good checkpoint.

The loop: steps, evaluation, metrics and checkpoints, until the run is done or told to stop.
"""

import contextlib
import math
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import jax

from looksam.trainer import distributed
from looksam.trainer.checkpoints import Checkpoints, SharedCheckpoints
from looksam.trainer.metrics import MetricsLog, NoMetrics
from looksam.trainer.progress import Progress
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_directory import RunError, claim, read_recipe
from looksam.trainer.step import TrainState
from looksam.trainer.training import Training


class Interrupts:
    """While it is open, the first SIGINT or SIGTERM only sets ``signal``; a further Ctrl-C interrupts at once.

    Signals that the process ignores stay ignored. Outside the main thread, where Python has no signals, it does
    nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):  # None: set from C, and could not be set back
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@contextlib.contextmanager
def restored(directory: pathlib.Path, **changes: Any) -> Iterator[tuple[Training, int, TrainState]]:
    """The training, the step and the state, on one device. The run may still be going on."""
    recipe = read_recipe(directory).replace(mesh="data=1", microbatch=None, groups=None, **changes)
    training = Training(recipe)
    checkpoints = Checkpoints(directory / "checkpoints", keep=recipe.keep_checkpoints, read_only=True)
    try:
        found = checkpoints.restore(training.programs.abstract_state)
        if found is None:
            raise RunError(f"{directory} has no checkpoint yet; train longer, or lower checkpoint_every.")
        yield training, found[0], found[1]
    finally:
        training.batches.close()
        checkpoints.close()


def run(
    recipe: Recipe, run_dir: str | pathlib.Path, *, report: Callable[[str], None] = print, quiet: bool = False
) -> dict[str, Any]:
    """Train by ``recipe`` in ``run_dir``, going on from the newest good checkpoint there.

    The same recipe gives the same bits, however often the run is cut off and taken up again.
    """
    directory, first = pathlib.Path(run_dir), distributed.first()
    distributed.check_alike(recipe)
    if first:
        claim(directory, recipe)
    else:
        report, quiet = _say_nothing, True
    training = Training(recipe)
    with contextlib.ExitStack() as stack:
        stack.callback(training.batches.close)
        log = stack.enter_context(contextlib.closing(MetricsLog(directory) if first else NoMetrics()))
        checkpoints = stack.enter_context(contextlib.closing(_open_checkpoints(directory, recipe, report)))
        interrupts = stack.enter_context(Interrupts())
        return _Loop(training, directory, checkpoints, log, report, quiet).run(interrupts)


def _say_nothing(line: str) -> None:
    pass


def _open_checkpoints(
    directory: pathlib.Path, recipe: Recipe, report: Callable[[str], None]
) -> Checkpoints | SharedCheckpoints:
    def open_folder() -> Checkpoints:
        return Checkpoints(directory / "checkpoints", keep=recipe.keep_checkpoints, report=report)

    return open_folder() if jax.process_count() == 1 else SharedCheckpoints(open_folder)


class _Loop:
    def __init__(
        self,
        training: Training,
        directory: pathlib.Path,
        checkpoints: Checkpoints | SharedCheckpoints,
        log: MetricsLog | NoMetrics,
        report: Callable[[str], None],
        quiet: bool,
    ) -> None:
        self.training, self.recipe, self.directory = training, training.recipe, directory
        self.checkpoints, self.log, self.report, self.quiet = checkpoints, log, report, quiet
        self.best, self.test = -math.inf, {}  # type: tuple[float, dict[str, float]]
        self.waiting: tuple[int, dict[str, jax.Array]] | None = None  # metrics still on the device
        self.safe_step: int | None = None

    def run(self, interrupts: Interrupts) -> dict[str, Any]:
        start, state = self._start()
        agreed = distributed.Agreement(self.training.layout)
        stop = min(self.recipe.steps or self.training.total_steps, self.training.total_steps)
        progress = Progress(stop, start, images_per_step=self.recipe.batch_size, quiet=self.quiet)
        with contextlib.closing(progress):
            for i in range(start, stop):
                done = i + 1
                logged = done % self.recipe.log_every == 0 or done == stop
                state, metrics = self.training.step(state, i, log=logged)
                if logged:
                    self._log(done, metrics, progress)
                evaluated = self._evaluates(done, stop)
                improved = evaluated and self._evaluate(done, state, progress)
                told = agreed(interrupts.signal if done < stop else None)
                if told or improved or done == stop or done % self.recipe.checkpoint_every == 0:
                    self._save(done, state, metrics, evaluated)
                if told:
                    return self._finish(done, "interrupted", told)
        return self._finish(stop, "finished", None)

    def _start(self) -> tuple[int, TrainState]:
        found = self.checkpoints.restore(self.training.programs.abstract_state)
        if found is None:
            self.log.cut_back(0)
            return 0, self.training.init()
        step, state, meta = found
        self.log.cut_back(step)
        self.best, self.test, self.safe_step = meta["best"], meta["test"], step
        self.report(f"going on from step {step} in {self.directory}")
        return step, state

    def _log(self, step: int, metrics: dict[str, jax.Array], progress: Progress) -> None:
        """Write the metrics of the log before this one: they have long been computed, so no step waits for them."""
        self._flush(progress)
        self.waiting = (step, metrics)

    def _flush(self, progress: Progress | None = None) -> None:
        if self.waiting is None:
            return
        step, metrics = self.waiting
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._check_finite(step, values["loss"])
        self.log.write(step, "train", values | {"epoch": self.training.epoch_schedule.epochs(step)})
        if progress:
            progress.update(step, loss=values["loss"], accuracy=100 * values["accuracy"])
        self.waiting = None

    def _check_finite(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            return
        safe = "nothing is saved yet" if self.safe_step is None else f"the checkpoint of step {self.safe_step} is good"
        raise RunError(
            f"the training loss is {loss} at step {step}; {safe} in {self.directory}. "
            "Lower learning_rate or rho, or clip with clip_norm, in a new --run-dir."
        )

    def _evaluates(self, done: int, stop: int) -> bool:
        """At the end of an epoch that is to be evaluated, and of the run."""
        schedule, every = self.training.epoch_schedule, self.recipe.eval_every
        return done == stop or schedule.whole_epochs(done) // every > schedule.whole_epochs(done - 1) // every

    def _evaluate(self, done: int, state: TrainState, progress: Progress) -> bool:
        """Is this the best so far?"""
        started = time.perf_counter()
        self.test = self.training.evaluate(state)
        self._flush(progress)
        times = {"evaluation_seconds": time.perf_counter() - started}
        self.log.write(done, "test", self.test | {"epoch": self.training.epoch_schedule.epochs(done)} | times)
        progress.evaluated(done, **self.test)
        improved = self.test["accuracy"] > self.best
        self.best = max(self.best, self.test["accuracy"])
        return improved

    def _save(self, done: int, state: TrainState, metrics: dict[str, jax.Array], evaluated: bool) -> None:
        self._flush()
        self._check_finite(done, float(metrics["loss"]))  # never save a state that is lost
        scores = {"test_accuracy": self.test["accuracy"]} if evaluated else None
        self.checkpoints.save(done, state, {"best": self.best, "test": self.test}, scores)
        self.safe_step = done

    def _finish(self, step: int, status: str, signal_number: int | None) -> dict[str, Any]:
        self._flush()
        self.checkpoints.wait()
        if signal_number is not None:
            self.report(f"stopped at step {step}, which is saved; the same command goes on from there")
        return {
            "status": status,
            "signal": signal_number,
            "step": step,
            "test_accuracy": self.test.get("accuracy"),
            "test_loss": self.test.get("loss"),
            "best_test_accuracy": None if self.best == -math.inf else self.best,
            "run_dir": str(self.directory),
        }


def evaluate_run(run_dir: str | pathlib.Path) -> dict[str, Any]:
    """Accuracy and loss on the test set of the newest good checkpoint of a run."""
    directory = pathlib.Path(run_dir)
    with restored(directory) as (training, step, state):
        scores = training.evaluate(state)
    return {"step": step, "test_accuracy": scores["accuracy"], "test_loss": scores["loss"], "run_dir": str(directory)}

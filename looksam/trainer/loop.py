"""The training loop: steps, evaluation, metrics and checkpoints, until the run is finished or asked to stop.

``run`` trains a recipe in a folder, resuming from the latest valid checkpoint there. ``restored``
reads a run back. ``Interrupts`` turns Ctrl-C and SIGTERM into a flag, so that a run stops between two
steps.
"""

import contextlib
import math
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

import jax

from looksam.trainer import distributed, fine_tune
from looksam.trainer.checkpoints import CheckpointChoice, Checkpoints
from looksam.trainer.metrics import MetricsLog
from looksam.trainer.progress import Progress
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_directory import RunError, claim, read_recipe
from looksam.trainer.step import TrainState
from looksam.trainer.training import Training

T = TypeVar("T")


def run(
    recipe: Recipe,
    run_dir: str | pathlib.Path,
    *,
    report: Callable[[str], None] = print,
    quiet: bool = False,
    started: float | None = None,
) -> dict[str, Any]:
    """Trains a recipe with its outputs in ``run_dir``, resuming from the latest valid checkpoint there.

    A run that was interrupted and resumed is bitwise identical to one that was not.

    Args:
        recipe: all settings of the run.
        run_dir: the run's folder, created if need be.
        report: takes one line about what the user should know.
        quiet: show no progress.
        started: ``time.perf_counter()`` at the start of the program, from which the time to the first step is measured;
            the time of this call if not given.

    Returns:
        ``status`` ("finished" or "interrupted") and ``signal``; ``step``; the last ``test_accuracy`` and ``test_loss``,
        and the ``split`` that they are of: "test", or "validation" where the recipe holds images out in its place;
        ``best_metric``, the name of what selects the best checkpoint, and ``best_accuracy``, its highest value;
        ``run_dir``.
    """
    started = time.perf_counter() if started is None else started
    directory, primary = pathlib.Path(run_dir), distributed.is_primary()
    distributed.check_same_recipe(recipe)
    if primary:
        claim(directory, recipe)
    else:
        report, quiet = lambda line: None, True
    distributed.check_shared(directory)
    if not (directory / "checkpoints").is_dir():  # a run that resumes has its weights
        fine_tune.check_source(recipe)
    training = Training(recipe)
    with contextlib.ExitStack() as stack:
        stack.callback(training.batches.close)
        log = stack.enter_context(contextlib.closing(MetricsLog(directory, enabled=primary)))
        checkpoints = stack.enter_context(contextlib.closing(_open_checkpoints(directory, recipe, report=report)))
        interrupts = stack.enter_context(Interrupts())
        return _Loop(training, directory, checkpoints, log, report, quiet, started).run(interrupts)


def evaluated_split(recipe: Recipe) -> str:
    """Returns the name of the images that a run is evaluated on."""
    return "validation" if recipe.validation else "test"


def best_metric(recipe: Recipe) -> str:
    """Returns the name of the metric that selects the best checkpoint: on held-out images where the recipe has any."""
    return f"{evaluated_split(recipe)}_accuracy"


def _open_checkpoints(directory: pathlib.Path, recipe: Recipe, **options: Any) -> Checkpoints:
    folder = directory / "checkpoints"
    return Checkpoints(folder, keep=recipe.keep_checkpoints, best_metric=best_metric(recipe), **options)


class _Loop:
    def __init__(
        self,
        training: Training,
        directory: pathlib.Path,
        checkpoints: Checkpoints,
        log: MetricsLog,
        report: Callable[[str], None],
        quiet: bool,
        started: float,
    ) -> None:
        self.training, self.recipe, self.directory = training, training.recipe, directory
        self.checkpoints, self.log, self.report, self.quiet = checkpoints, log, report, quiet
        self.split = evaluated_split(self.recipe)
        self.best, self.test = -math.inf, {}  # type: tuple[float, dict[str, float]]
        self.pending: tuple[int, dict[str, jax.Array]] | None = None  # metrics to be logged, still on the device
        self.safe_step: int | None = None
        self.started, self.compile_seconds = started, 0.0
        self.start_times: dict[str, float] = {}  # how long the start took, until it is logged

    def run(self, interrupts: "Interrupts") -> dict[str, Any]:
        start, state = self._start()
        shared_signal = distributed.SharedSignal(self.training.layout)
        stop = min(self.recipe.steps or self.training.total_steps, self.training.total_steps)
        progress = Progress(stop, start, images_per_step=self.recipe.batch_size, quiet=self.quiet)
        with contextlib.closing(progress):
            for i in range(start, stop):
                done = i + 1
                logged = done % self.recipe.log_every == 0 or done == stop
                if i == start:
                    state, metrics = self._first_step(state, i, logged, progress)
                else:
                    state, metrics = self.training.step(state, i, log=logged)
                self._write_pending(progress)  # of the step before: the device has this one to work on meanwhile
                if logged:
                    self.pending = (done, metrics)
                evaluated = self._evaluates(done, stop)
                improved = evaluated and self._evaluate(done, state, progress)
                received = shared_signal(interrupts.signal if done < stop else None)
                if received or improved or done == stop or done % self.recipe.checkpoint_every == 0:
                    self._save(done, state, metrics, evaluated, progress)
                if received:
                    return self._finish(done, "interrupted", received)
        return self._finish(stop, "finished", None)

    def _start(self) -> tuple[int, TrainState]:
        restored = self.checkpoints.restore(self.training.programs.abstract_state)
        if restored is None:
            self.log.cut_back(0)
            state = self._compiled(self.training.init)
            return 0, fine_tune.with_initial_weights(self.training, state, self.report)
        step, state, meta = restored
        self.log.cut_back(step)
        self.best, self.test, self.safe_step = meta["best"], meta["test"], step
        self.report(f"resuming from step {step} in {self.directory}")
        return step, state

    def _first_step(
        self, state: TrainState, i: int, logged: bool, progress: Progress
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Takes a step, waits for it, and shows how long the start took; the next training line of the log has it."""
        result = self._compiled(lambda: self.training.step(state, i, log=logged))
        jax.block_until_ready(result)
        seconds = time.perf_counter() - self.started
        self.start_times = {"first_step_seconds": seconds, "compile_seconds": self.compile_seconds}
        progress.first_step(seconds, self.compile_seconds)
        return result

    def _compiled(self, program: Callable[[], T]) -> T:
        """Calls a program for the first time. The call returns once it is compiled: devices run asynchronously."""
        called = time.perf_counter()
        result = program()
        self.compile_seconds += time.perf_counter() - called
        return result

    def _write_pending(self, progress: Progress) -> None:
        if self.pending is None:
            return
        step, metrics = self.pending
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._check_finite(step, values["loss"])
        epoch = {"epoch": self.training.epoch_schedule.epochs(step)}
        self.log.write(step, "train", values | epoch | self.start_times)
        self.start_times = {}
        progress.update(step, loss=values["loss"], accuracy=100 * values["accuracy"])
        self.pending = None

    def _check_finite(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            return
        safe = "nothing is saved yet" if self.safe_step is None else f"the checkpoint of step {self.safe_step} is good"
        raise RunError(
            f"the training loss is {loss} at step {step}; {safe} in {self.directory}. "
            "Lower learning_rate or rho, or clip with clip_norm, in a new --run-dir."
        )

    def _evaluates(self, done: int, stop: int) -> bool:
        """Returns whether an epoch that is to be evaluated ends at this step, or the run."""
        schedule, every = self.training.epoch_schedule, self.recipe.eval_every
        return done == stop or schedule.whole_epochs(done) // every > schedule.whole_epochs(done - 1) // every

    def _evaluate(self, done: int, state: TrainState, progress: Progress) -> bool:
        """Evaluates the state, and returns whether it is the best so far."""
        started = time.perf_counter()
        self.test = self.training.evaluate(state)
        self._write_pending(progress)
        times = {"evaluation_seconds": time.perf_counter() - started}
        self.log.write(done, self.split, self.test | {"epoch": self.training.epoch_schedule.epochs(done)} | times)
        progress.evaluated(done, self.split, **self.test)
        improved = self.test["accuracy"] > self.best
        self.best = max(self.best, self.test["accuracy"])
        return improved

    def _save(
        self, done: int, state: TrainState, metrics: dict[str, jax.Array], evaluated: bool, progress: Progress
    ) -> None:
        self._write_pending(progress)
        self._check_finite(done, float(metrics["loss"]))  # never save a state that is lost
        scores = {best_metric(self.recipe): self.test["accuracy"]} if evaluated else None
        self.checkpoints.save(done, state, {"best": self.best, "test": self.test}, scores)
        self.safe_step = done

    def _finish(self, step: int, status: str, signal_number: int | None) -> dict[str, Any]:
        self.checkpoints.wait()
        if signal_number is not None:
            self.report(f"stopped at step {step}, which is saved; run the same command to resume")
        return {
            "status": status,
            "signal": signal_number,
            "step": step,
            "split": self.split,
            "test_accuracy": self.test.get("accuracy"),
            "test_loss": self.test.get("loss"),
            "best_metric": best_metric(self.recipe),
            "best_accuracy": None if self.best == -math.inf else self.best,
            "run_dir": str(self.directory),
        }


@contextlib.contextmanager
def restored(
    directory: pathlib.Path, *, checkpoint: CheckpointChoice = "last", **changes: Any
) -> Iterator[tuple[Training, int, TrainState]]:
    """Gives the training, the step and the state of a run, on one device. The run may still be training.

    Args:
        directory: the run's folder.
        checkpoint: "last" for the latest valid one, "best" for the one with the highest best metric, or a step.
        changes: settings that replace those of the run's recipe.
    """
    recipe = read_recipe(directory).replace(mesh="data=1", microbatch=None, groups=None, **changes)
    training = Training(recipe)
    checkpoints = _open_checkpoints(directory, recipe, read_only=True)
    try:
        result = checkpoints.restore(training.programs.abstract_state, checkpoint)
        if result is None:
            raise RunError(f"{directory} has no checkpoint yet; train longer, or lower checkpoint_every.")
        step, state, _ = result
        yield training, step, state
    finally:
        training.batches.close()
        checkpoints.close()


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

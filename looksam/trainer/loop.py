"""The training loop: steps, evaluation, metrics and checkpoints, until the run is finished or asked to stop.

``run`` trains a recipe in a folder, resuming from the latest valid checkpoint there, and ``restored`` reads a run back.
"""

import contextlib
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from looksam.trainer import distributed
from looksam.trainer.batches import Split, UnreadableError
from looksam.trainer.progress import Progress
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder import dataset_summary
from looksam.trainer.run_folder.checkpoints import CheckpointChoice, Checkpoints
from looksam.trainer.run_folder.dataset_summary import DatasetSummary
from looksam.trainer.run_folder.metrics import MetricsLog
from looksam.trainer.run_folder.run_directory import RunError, check_recipe, claim, holds_run, read_recipe, writing_to
from looksam.trainer.run_folder.run_lock import working_in
from looksam.trainer.run_folder.trackers import check_installed, open_trackers
from looksam.trainer.scoreboard import Scoreboard, best_metric
from looksam.trainer.step import TrainState
from looksam.trainer.stopping import TIME_IS_UP, Fallbacks, Interrupts, divergence, stop_request
from looksam.trainer.trained import fine_tune
from looksam.trainer.training import Training

T = TypeVar("T")
LOWER = "Lower --learning-rate or --rho, or clip with --clip-norm,"
RESUME = "which is saved; run the same command to resume"


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

    Where the data has a validation split, of its own or by ``recipe.validation``, the run is evaluated and the best
    checkpoint selected on that; the test set is evaluated once, at the end. Without one, the test set is used for both.

    Args:
        recipe: all settings of the run.
        run_dir: the run's folder, created if need be.
        report: takes one line about what the user should know.
        quiet: show no progress.
        started: ``time.perf_counter()`` at the start of the program, from which the time to the first step and
            ``max_minutes`` are measured; the time of this call if not given.

    Returns:
        A dictionary of what came out:

        - ``status``: "finished", "diverged" (see ``stopping.divergence``), "interrupted" by the ``signal``, or
          "stopped" by ``max_minutes``. The last two are saved, and resume;
        - ``reason``: "patience" or "max_minutes" where that ended the run before its last step; else None;
        - ``step``: the last step;
        - ``split``: what the run is evaluated and its best checkpoint selected on, "validation" or "test";
        - ``validation_accuracy``, ``validation_loss``: of the last evaluation; None without a validation split;
        - ``test_accuracy``, ``test_loss``: of the last evaluation; with a validation split those of the last step, None
          until the run is finished;
        - ``best_metric``, ``best_accuracy``, ``best_step``: the name of what selects the best checkpoint, its highest
          value, and the step;
        - ``best_test_accuracy``, ``best_test_loss``: of the best checkpoint, where a validation split selected it;
        - ``run_dir``.
    """
    started = time.perf_counter() if started is None else started
    directory, primary = pathlib.Path(run_dir), distributed.is_primary()
    check_installed(recipe)
    distributed.check_same_recipe(recipe)
    if not primary:
        report, quiet = lambda line: None, True
    with contextlib.ExitStack() as stack:
        if primary:
            stack.enter_context(working_in(directory, report))
            check_recipe(directory, recipe)
        distributed.check_shared(directory)
        progress = stack.enter_context(contextlib.closing(Progress(images_per_step=recipe.batch_size, quiet=quiet)))
        if not (directory / "checkpoints").is_dir():  # a run that resumes has its weights
            fine_tune.check_source(recipe)
        progress.stage(f"loading {recipe.dataset}")
        training = Training(recipe)
        stack.callback(training.batches.close)
        for note in training.dataset.notes:
            report(note)
        checkpoints = stack.enter_context(contextlib.closing(_open_checkpoints(directory, training, report=report)))
        trackers = open_trackers(recipe, directory) if primary else []
        log = stack.enter_context(contextlib.closing(MetricsLog(directory, trackers=trackers, enabled=primary)))
        interrupts = stack.enter_context(Interrupts())
        return _Loop(training, directory, checkpoints, log, report, progress, started).run(interrupts)


def _open_checkpoints(directory: pathlib.Path, training: Training, **options: Any) -> Checkpoints:
    folder, keep = directory / "checkpoints", training.recipe.keep_checkpoints
    return Checkpoints(folder, keep=keep, best_metric=best_metric(training.dataset), **options)


class _Loop:
    def __init__(
        self,
        training: Training,
        directory: pathlib.Path,
        checkpoints: Checkpoints,
        log: MetricsLog,
        report: Callable[[str], None],
        progress: Progress,
        started: float,
    ) -> None:
        self.training, self.recipe, self.directory = training, training.recipe, directory
        self.checkpoints, self.log, self.report, self.progress = checkpoints, log, report, progress
        self.scores = Scoreboard(training.dataset, self.recipe.patience)
        self.fallbacks = Fallbacks(report)
        self.pending: tuple[int, dict[str, jax.Array]] | None = None  # metrics to be logged, still on the device
        self.safe_step: int | None = None
        self.compiled: set[bool | None] = set()  # the kinds of steps that were taken
        self.started, self.compile_seconds = started, 0.0
        self.start_times: dict[str, float] = {}  # how long the start took, until it is logged

    def run(self, interrupts: Interrupts) -> dict[str, Any]:
        start, state = self._start()
        shared_signal = distributed.SharedSignal(self.training.layout)
        stop = min(self.recipe.steps or self.training.total_steps, self.training.total_steps)
        self.progress.begin(stop, start)
        if start:  # what is due may not have been possible when it was saved
            self._catch_up(start, stop, state)
        done, metrics = start, None
        while done < stop and not self.scores.out_of_patience():
            logged = (done + 1) % self.recipe.log_every == 0 or done + 1 == stop
            with self._saving_first(done, state, metrics):
                state, metrics = self._step(state, done, logged, first=done == start)
            done += 1
            self.fallbacks.add(done, metrics, self.training.programs.refreshes(done - 1))
            self._write_pending()  # of the step before: the device has this one to work on meanwhile
            if logged:
                self.pending = (done, metrics)
            with self._saving_first(done, state, metrics):
                self._evaluate_due(done, stop, state)
            last, improved = self._is_last(done, stop), self.scores.best_step == done
            request = stop_request(interrupts, self.started, self.recipe.max_minutes)
            received = shared_signal(None if last else request)
            if received or improved or last or done % self.recipe.checkpoint_every == 0:
                self._save(done, state, metrics)
            if received:
                return self._finish(done, received)
        return self._finish(done)

    def _start(self) -> tuple[int, TrainState]:
        if distributed.is_primary():
            self._check_data()
        self.progress.stage("looking for a checkpoint")
        restored = self.checkpoints.restore(self.training.programs.abstract_state)
        if restored is None:
            self.log.cut_back(0)
            self.progress.stage("initialising the model")
            state = self._compiled(self.training.init)
            return 0, fine_tune.with_initial_weights(self.training, state, self.report)
        step, state, meta = restored
        self.log.cut_back(step)
        self.scores.restore(meta)
        self.safe_step = step
        self.report(f"resuming from step {step} in {self.directory}")
        return step, state

    def _step(self, state: TrainState, i: int, logged: bool, *, first: bool) -> tuple[TrainState, dict[str, jax.Array]]:
        refresh = self.training.programs.refreshes(i)
        is_new = refresh not in self.compiled
        self.compiled.add(refresh)
        if first:
            return self._first_step(state, i, logged)
        if is_new:
            self.progress.stage(f"compiling the step {'with' if refresh else 'without'} a second gradient")
        state, metrics = self.training.step(state, i, log=logged)
        self.progress.step(i + 1, metrics["loss"])
        return state, metrics

    def _first_step(self, state: TrainState, i: int, logged: bool) -> tuple[TrainState, dict[str, jax.Array]]:
        """Takes a step, waits for it, and shows how long the start took; the next training line of the log has it.

        From this step on, the folder belongs to the run.
        """
        self.progress.stage("compiling the training step")
        result = self._compiled(lambda: self.training.step(state, i, log=logged))
        self.progress.stage("taking the first step")
        jax.block_until_ready(result)
        seconds = time.perf_counter() - self.started
        self.start_times = {"first_step_seconds": seconds, "compile_seconds": self.compile_seconds}
        self.progress.first_step(i + 1, seconds, self.compile_seconds)
        if distributed.is_primary():
            self._claim()
        return result

    def _check_data(self) -> None:
        """Raises RunError where the folder holds a run on other data."""
        if holds_run(self.directory) and (self.directory / dataset_summary.NAME).exists():
            DatasetSummary.of(self.training.dataset).check_same(DatasetSummary.read(self.directory), self.directory)

    def _claim(self) -> None:
        """Makes the folder this run's own: its recipe is written last."""
        if not (holds_run(self.directory) and (self.directory / dataset_summary.NAME).exists()):
            with writing_to(self.directory):
                DatasetSummary.of(self.training.dataset).write(self.directory)
        claim(self.directory, self.recipe)

    def _compiled(self, program: Callable[[], T]) -> T:
        """Calls a program for the first time. The call returns once it is compiled: devices run asynchronously."""
        called = time.perf_counter()
        result = program()
        self.compile_seconds += time.perf_counter() - called
        return result

    def _write_pending(self) -> None:
        if self.pending is None:
            return
        step, metrics = self.pending
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._check_finite(step, values["loss"])
        values["accuracy"] *= 100
        epoch = {"epoch": self.training.epoch_schedule.epochs(step)}
        self.log.write(step, "train", values | epoch | self.start_times)
        self.start_times = {}
        share = self.fallbacks.share(step)
        shown = {"fell_back": share} if share else {}
        self.progress.update(step, loss=values["loss"], accuracy=values["accuracy"], **shown)
        self.pending = None

    def _check_finite(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"the training loss is {loss} at step {step}; {self._safe()} in {self.directory}. "
                f"{LOWER} in a new --run-dir."
            )

    def _safe(self) -> str:
        return "nothing is saved yet" if self.safe_step is None else f"the checkpoint of step {self.safe_step} is good"

    @contextlib.contextmanager
    def _saving_first(self, done: int, state: TrainState, metrics: dict[str, jax.Array] | None) -> Iterator[None]:
        """Saves the run if images cannot be read any more, which is found out before the state is used.

        Several processes do not: each may be at another step by then.
        """
        try:
            yield
        except UnreadableError as error:
            if metrics is not None and jax.process_count() == 1:
                self._save(done, state, metrics)
                self.checkpoints.wait()
            raise RunError(
                f"the data cannot be read any more after step {done} ({error}); {self._safe()} in {self.directory}. "
                "Bring the data back, or pass its new place as --data-dir, and run the same command again to resume."
            ) from error

    def _evaluates(self, done: int, stop: int) -> bool:
        """Returns whether an epoch that is to be evaluated ends at this step, or the run."""
        schedule, every = self.training.epoch_schedule, self.recipe.eval_every
        return done == stop or schedule.whole_epochs(done) // every > schedule.whole_epochs(done - 1) // every

    def _is_last(self, done: int, stop: int) -> bool:
        return done == stop or self.scores.out_of_patience()

    def _evaluate_due(self, done: int, stop: int, state: TrainState) -> bool:
        """Evaluates what is due after this step and was not done yet, and returns whether there was anything."""
        evaluated = self._evaluates(done, stop) and not self.scores.has(done, self.scores.split)
        if evaluated:
            self._evaluate(done, state, self.scores.split)
        if self._is_last(done, stop) and not self.scores.has(done, "test"):
            self._evaluate(done, state, "test")
            self._test_best(done)
            evaluated = True
        return evaluated

    def _catch_up(self, start: int, stop: int, state: TrainState) -> None:
        """Evaluates what was due when the run ended, because images could not be read or ``steps`` was larger."""
        with self._saving_first(start, state, None):
            if self._evaluate_due(start, stop, state):
                self.checkpoints.save(start, state, self.scores.meta(), self.scores.selecting(start), again=True)

    def _evaluate(self, done: int, state: TrainState, split: Split) -> None:
        """Evaluates the state on a split, and logs and shows its scores."""
        self._write_pending()
        jax.block_until_ready(state)  # steps that are under way are training, and count as such
        started = time.perf_counter()
        with self.progress.evaluating(split):
            scores = self.training.evaluate(state, split)
        times = {"evaluation_seconds": time.perf_counter() - started}
        self.log.write(done, split, scores | {"epoch": self.training.epoch_schedule.epochs(done)} | times)
        self.progress.evaluated(done, split, **scores)
        self.scores.record(done, split, scores)

    def _test_best(self, done: int) -> None:
        """Evaluates the best checkpoint on the test set."""
        best = self.scores.best_step
        if best in (done, None):
            self.scores.record_best_test(self.scores.of("test"))
            return
        try:
            restored = self.checkpoints.restore(self.training.programs.abstract_state, best)
            assert restored is not None  # it raises if it cannot read a checkpoint that is asked for by its step
            self.scores.record_best_test(self.training.evaluate(restored[1], "test"))
        except (RunError, jax.errors.JaxRuntimeError) as error:  # damaged, or too large to be held with the last one
            self.report(f"the best checkpoint, of step {best}, could not be tested: {error}")

    def _save(self, done: int, state: TrainState, metrics: dict[str, jax.Array]) -> None:
        self._write_pending()
        self._check_finite(done, float(metrics["loss"]))  # never save a state that is lost
        self.checkpoints.save(done, state, self.scores.meta(), self.scores.selecting(done))
        self.safe_step = done

    def _finish(self, step: int, received: int | None = None) -> dict[str, Any]:
        self.checkpoints.wait()
        status, reason = "finished", "patience" if self.scores.out_of_patience() else None
        diverged = divergence(self.scores.losses(), self.training.dataset.num_classes)
        if received == TIME_IS_UP:
            status, reason, received = "stopped", "max_minutes", None
            self.report(f"{self.recipe.max_minutes:g} minutes have passed: stopped at step {step}, {RESUME}")
        elif received is not None:
            status, reason = "interrupted", None
            self.report(f"stopped at step {step}, {RESUME}")
        elif diverged:
            status = "diverged"
            self.report(f"{diverged}. {LOWER} in a new --run-dir.")
        elif reason:
            best, count = self.scores.best_accuracy, self.scores.evaluations_since
            since = f"{count} evaluations without a better {self.scores.metric} than {best:.2f}"
            self.report(f"stopped early at step {step}: {since} of step {self.scores.best_step}")
        results = self.scores.results() | {"run_dir": str(self.directory)}
        return {"status": status, "reason": reason, "signal": received, "step": step, **results}


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
    checkpoints = _open_checkpoints(directory, training, read_only=True)
    try:
        result = checkpoints.restore(training.programs.abstract_state, checkpoint)
        if result is None:
            raise RunError(f"{directory} has no checkpoint yet; train longer, or lower checkpoint_every.")
        step, state, _ = result
        yield training, step, state
    finally:
        training.batches.close()
        checkpoints.close()

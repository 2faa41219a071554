"""The pool: worker processes that train the runs that are missing, and report their progress.

Each worker trains the runs of one program at a time, and every finished run is stored at once. A worker uses about one
core: the steps of small models are too short to spread over more.
"""

import datetime
import itertools
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from looksam.experiments.engine.records import program, records
from looksam.experiments.engine.runs import Record, Run, Store, provenance
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.run_folder.run_directory import RunError
from looksam.trainer.training import total_steps

Report = Callable[[str], None]
Done = Callable[[Run, Record], None]
Ready = Callable[[], Iterable[Run]]
Stages = Callable[[Store, int], Iterable[list[Run]]]  # of one experiment: each list may depend on those before it

# Milliseconds of a gradient on one image, roughly, with evaluations; other models count as resnet. The small scale's,
# then the medium scale's, whose ViT has smaller patches.
MILLISECONDS = {"mlp": 0.01, "vit": 0.08, "resnet": 0.16, "vit, patch 4": 0.24, "resnet8": 0.42}


def train_missing(
    store: Store,
    experiments: Sequence[Stages],
    *,
    seeds: int,
    workers: int,
    data_dir: str | None = None,
    download: bool = False,
    in_order: bool = False,
    report: Report = print,
) -> None:
    """Trains every run that is missing. Finished runs are kept, so that an interrupted call can be resumed.

    ``in_order``: runs are trained one by one in the order in which the stages list them, and what a finished run makes
    possible does not wait for others. That is for long runs; short ones are faster in groups that share their programs.
    """
    progress, source = _Progress(report), provenance()

    def done(run: Run, record: Record) -> None:
        store.add(run, record | source)
        progress.done(run, record)

    def ready() -> list[Run]:
        now, later = missing(store, experiments, seeds)
        progress.plan([*now, *later])
        return [run.with_data(data_dir, download) for run in now]

    with tempfile.TemporaryDirectory(prefix="looksam-programs-") as cache_dir:
        while runs := ready():
            train_all(runs, workers, done, cache_dir, ready if in_order else None)


def missing(store: Store, experiments: Sequence[Stages], seeds: int) -> tuple[list[Run], list[Run]]:
    """The missing runs that can be trained now, and those that depend on them."""
    ready: dict[tuple[str, int], Run] = {}
    later: dict[tuple[str, int], Run] = {}
    for stages in experiments:
        place = ready
        for stage in stages(store, seeds):
            absent = {(run.key, run.recipe.seed): run for run in stage if run not in store}
            place |= absent
            place = later if absent else place
    return list(ready.values()), [run for name, run in later.items() if name not in ready]


def cost(run: Run) -> float:
    """A rough estimate of the milliseconds that a run takes on one core, to estimate the time left."""
    recipe = run.recipe
    gradients = 4.0 if run.kind == "drift" else gradients_per_step(recipe, total_steps(recipe))
    images = (recipe.train_limit or 600) * recipe.epochs
    augmented = 2.0 if recipe.randaugment else 1.0
    names = (f"{recipe.model}, patch {recipe.patch}", recipe.model, "resnet")
    return images * gradients * augmented * next(MILLISECONDS[name] for name in names if name in MILLISECONDS)


class _Progress:
    """Reports one line per finished run, with an estimate of the time left for all of them."""

    def __init__(self, report: Report) -> None:
        self._report, self._began, self._work, self._runs = report, time.monotonic(), 0.0, 0
        self._left: dict[tuple[str, int], float] = {}

    def plan(self, runs: Sequence[Run]) -> None:
        self._left = {(run.key, run.recipe.seed): cost(run) for run in runs}

    def done(self, run: Run, record: Record) -> None:
        self._work += self._left.pop((run.key, run.recipe.seed), cost(run))
        self._runs += 1
        seconds = (time.monotonic() - self._began) * sum(self._left.values()) / self._work
        left = datetime.timedelta(seconds=round(seconds))
        self._report(f"[{self._runs} done, {len(self._left)} to go, {left} left] {describe(run)}: {outcome(record)}")


def describe(run: Run) -> str:
    """One run in a few words."""
    recipe = run.recipe
    noise = [f"noise {recipe.label_noise:g}"] if recipe.label_noise else []
    settings = METHODS[recipe.method].settings
    tuned = [f"{name} {getattr(recipe, name):g}" for name in ("rho", "alpha", "k") if name in settings]
    late = [f"{name} {getattr(recipe, name)}" for name in ("start", "stop") if getattr(recipe, name)]
    parts = [run.kind, recipe.model, *noise, f"batch {recipe.batch_size}", recipe.method, *tuned, *late]
    return ", ".join([*parts, f"rate {recipe.learning_rate:g}", f"seed {recipe.seed}"])


def outcome(record: Record) -> str:
    """The accuracy of a finished run in a few words."""
    if "test_accuracy" in record:
        return f"test {record['test_accuracy']:.2f} %"
    return f"held-out {record['validation_accuracy'][-1]:.2f} %" if "validation_accuracy" in record else "measured"


# --- worker processes -------------------------------------------------------------------------------------------


def train_all(runs: Sequence[Run], workers: int, done: Done, cache_dir: str, ready: Ready | None = None) -> None:
    """Trains all runs; ``done`` is called in this process, for one run at a time.

    ``cache_dir`` is a folder for compiled programs, so that no process compiles what another one has. Where ``ready``
    is given, it is asked before every run which ones can be trained by then, and the first of them is trained next.
    """
    jobs, taken = _jobs(runs), set[Run]()

    def next_job() -> list[Run] | None:
        if ready is None:
            return jobs.pop(0) if jobs else None
        job = [run for run in ready() if run not in taken][:1]
        taken.update(job)
        return job

    context = multiprocessing.get_context("spawn")  # JAX must not be forked
    started = [_Worker(context, cache_dir, i) for i in range(workers if ready else min(workers, len(jobs)))]
    try:
        idle = list(started)
        while True:
            while idle and (job := next_job()):
                idle.pop().take(job)
            busy = [worker for worker in started if worker not in idle]
            if not busy:
                return
            for connection in multiprocessing.connection.wait([worker.connection for worker in busy]):
                worker = next(worker for worker in busy if worker.connection is connection)
                if worker.answered(done):
                    idle.append(worker)
    finally:
        for worker in started:
            worker.stop()


def _jobs(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups runs that share their data and programs, the longest group first, so that none is left at the end.

    Label-noise settings differ in their data only: the second of two waits until the first has compiled its programs.
    """

    def name(run: Run) -> str:
        return repr(program(run))

    grouped = [list(group) for _, group in itertools.groupby(sorted(runs, key=name), key=name)]
    grouped.sort(key=lambda group: -sum(map(cost, group)))
    first: dict[Recipe, list[Run]] = {}
    for group in grouped:
        first.setdefault(program(group[0])[1].replace(label_noise=0.0), group)
    firsts = list(first.values())
    return firsts + [group for group in grouped if group not in firsts]


class _Worker:
    """A training process, seen from the process that started it."""

    def __init__(self, context: Any, cache_dir: str, number: int) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, cache_dir, number), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, job: list[Run]) -> None:
        try:
            self.connection.send(job)
        except OSError:
            raise self._ended() from None

    def answered(self, done: Done) -> bool:
        """Receives one message, and returns whether the job is done."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):  # OSError: it ended within a message
            raise self._ended() from None
        if kind == "error":
            raise RunError(value)
        for run, record in value:
            done(run, record)
        return kind == "done"

    def _ended(self) -> RunError:
        self.process.join()
        return RunError(
            f"a training process ended with code {self.process.exitcode}; finished runs are kept. "
            "If it ran out of memory, pass --workers 1."
        )

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Any, cache_dir: str, number: int) -> None:
    """The loop of a worker: receives jobs and sends their records."""
    if hasattr(os, "sched_setaffinity"):  # a core of its own is half as fast again as sharing all cores
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    jax.config.update("jax_compilation_cache_dir", cache_dir)  # label-noise settings and seeds share programs
    while True:
        try:
            job = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            for finished in records(job):
                connection.send(("records", finished))
            connection.send(("done", []))
        except (KeyboardInterrupt, BrokenPipeError):  # or the process that started this one has ended
            return
        except (ValueError, TypeError, OSError) as error:  # bad input, reported without a traceback
            connection.send(("error", str(error)))
        except Exception:
            connection.send(("error", f"{job[0].recipe}\n{traceback.format_exc()}"))

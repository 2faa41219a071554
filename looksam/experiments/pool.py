"""Tasks over processes: each trains one program's tasks at a time, and every finished lane is stored at once.

One process uses about one core: the steps of desk models are too small to spread over more.
"""

import itertools
import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from looksam.experiments.cost import cost
from looksam.experiments.store import Record
from looksam.experiments.task import Task
from looksam.experiments.work import program, records
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_directory import RunError

Done = Callable[[Task, Record], None]


def run_all(tasks: Sequence[Task], workers: int, done: Done, programs: str) -> None:
    """Do all tasks; ``done`` is called here, in the calling process, for one at a time.

    ``programs`` is a folder for what is compiled, so that no process compiles what another one has.
    """
    jobs = _jobs(tasks)
    context = multiprocessing.get_context("spawn")  # JAX must not be forked
    started = [_Worker(context, programs, i) for i in range(min(workers, len(jobs)))]
    try:
        idle = list(started)
        while jobs or len(idle) < len(started):
            while idle and jobs:
                idle.pop().take(jobs.pop(0))
            busy = [worker for worker in started if worker not in idle]
            for connection in multiprocessing.connection.wait([worker.connection for worker in busy]):
                worker = next(worker for worker in busy if worker.connection is connection)
                if worker.answered(done):
                    idle.append(worker)
    finally:
        for worker in started:
            worker.stop()


def _jobs(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that share their data and programs together, the longest first, so that none is left at the end.

    Columns differ in their labels alone: the second of two comes when the first has compiled its programs.
    """

    def name(task: Task) -> str:
        return repr(program(task))

    grouped = [list(group) for _, group in itertools.groupby(sorted(tasks, key=name), key=name)]
    grouped.sort(key=lambda group: -sum(map(cost, group)))
    first: dict[Recipe, list[Task]] = {}
    for group in grouped:
        first.setdefault(program(group[0])[1].replace(label_noise=0.0), group)
    firsts = list(first.values())
    return firsts + [group for group in grouped if group not in firsts]


class _Worker:
    def __init__(self, context: Any, programs: str, number: int) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, programs, number), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, job: list[Task]) -> None:
        try:
            self.connection.send(job)
        except OSError:
            raise self._ended() from None

    def answered(self, done: Done) -> bool:
        """Takes one message. Is the job done?"""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):  # OSError: it ended within a message
            raise self._ended() from None
        if kind == "error":
            raise RunError(value)
        for task, record in value:
            done(task, record)
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


def _serve(connection: Any, programs: str, number: int) -> None:
    if hasattr(os, "sched_setaffinity"):  # a core of its own: half as fast again where all share all cores
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    jax.config.update("jax_compilation_cache_dir", programs)  # columns and seeds differ in data alone
    while True:
        try:
            job = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            for found in records(job):
                connection.send(("records", found))
            connection.send(("done", []))
        except KeyboardInterrupt:
            return
        except (ValueError, TypeError, OSError) as error:  # bad input, told without a traceback
            connection.send(("error", str(error)))
        except Exception:
            connection.send(("error", f"{job[0].recipe}\n{traceback.format_exc()}"))

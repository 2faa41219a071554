"""A measurement: cases in, times relative to their base, memory and where it was measured out, as plain numbers."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import math
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import looksam
from looksam.bench.cycle import cycle, miniature
from looksam.bench.harness import Report, Timings, interleave, joined, whole_cycles
from looksam.bench.subjects import FORMS, Case
from looksam.bench.worker import Worker
from looksam.trainer.recipe import Recipe

VERSION = 1  # of the result
STEPS = 10  # per turn, at least
TURN_SECONDS = 0.1  # that a turn takes, at least: its first step is slow
BASES = 3  # processes of each base: the noise of a single one would be in every ratio
PACKAGES = ("jax", "jaxlib", "optax", "flax", "torch", "pytorch_optimizer")
FLAGS = ("XLA_FLAGS", "JAX_PLATFORMS", "OMP_NUM_THREADS")


def measure(
    name: str,
    recipe: Recipe,
    cases: Sequence[Case],
    *,
    rounds: int,
    sets: int = 1,
    bases: int = BASES,
    report: Report = lambda line: None,
) -> dict[str, Any]:
    """Times all cases in one interleaved run, each in a process of its own, and returns plain numbers.

    Args:
      name: of the recipe, for titles.
      recipe: what all cases share.
      cases: with names of their own; among them the base of each.
      rounds: the number of rounds per set of processes.
      sets: the number of sets of processes, one after another: which memory a process gets is luck.
      bases: the number of processes of each base.
      report: receives lines of progress.
    """
    from looksam.trainer.training import total_steps  # needs JAX

    cases = [dataclasses.replace(case, recipe=miniature(case.recipe, total_steps(case.recipe))) for case in cases]
    by_name = {case.name: case for case in cases}
    copies = {
        base: [base, *(f"{base} #{i}" for i in range(2, bases + 1))]
        for base in dict.fromkeys(case.denominator for case in cases)
    }
    everything = by_name | {copy: by_name[base] for base, names in copies.items() for copy in names}
    parts = [_timed(everything, rounds, report) for _ in range(sets)]
    timings, facts = joined([part for part, _ in parts]), parts[-1][1]
    rows = [_row(case, timings, copies[case.denominator], facts[case.name]) for case in cases]
    return {
        "version": VERSION,
        "name": name,
        "recipe": recipe.to_dict(),
        "rounds": rounds,
        "sets": sets,
        "bases": bases,
        "rows": rows,
        "environment": environment(),
    }


def _timed(cases: Mapping[str, Case], rounds: int, report: Report) -> tuple[Timings, dict[str, dict[str, float]]]:
    with contextlib.ExitStack() as stack:
        workers = _started(cases, stack, report)
        steps = _steps_per_turn(workers, cases)
        turns = {name: functools.partial(worker.turn, steps[name]) for name, worker in workers.items()}
        timings = interleave(turns, rounds, report)
        return timings, {name: worker.facts() for name, worker in workers.items()}


def _started(cases: Mapping[str, Case], stack: contextlib.ExitStack, report: Report) -> dict[str, Worker]:
    """Starts the process of every case, as many at a time as there are cores."""
    workers: dict[str, Worker] = {}
    waiting: list[Worker] = []
    for name, case in cases.items():
        workers[name] = stack.enter_context(start(name, case))
        waiting.append(workers[name])
        if len(waiting) == _cores():
            _wait(waiting.pop(0), report)
    for worker in waiting:
        _wait(worker, report)
    return workers


def _wait(worker: Worker, report: Report) -> None:
    worker.wait_until_ready()
    report(f"{worker.name} is ready")


def _steps_per_turn(workers: Mapping[str, Worker], cases: Mapping[str, Case]) -> dict[str, int]:
    """Whole cycles, about as many steps for all, and enough for the shortest base step to fill ``TURN_SECONDS``."""
    bases = dict.fromkeys(case.denominator for case in cases.values())
    first, second = ([workers[base].turn(STEPS).wall for base in bases] for _ in range(2))
    del first  # to warm up
    enough = max(STEPS, math.ceil(TURN_SECONDS / min(second)))
    return {name: whole_cycles(cycle(case.recipe), enough) for name, case in cases.items()}


def start(name: str, case: Case) -> Worker:
    """Starts the process of a case."""
    from looksam.trainer.training import abstract_dataset  # needs JAX

    dataset = abstract_dataset(case.recipe)
    arguments = case.arguments(dataset.image_shape, dataset.num_classes)
    return Worker(name, f"looksam.bench.{FORMS[case.form].target}", arguments, case.environment)


def _row(case: Case, timings: Timings, bases: Sequence[str], facts: Mapping[str, float]) -> dict[str, Any]:
    milliseconds = timings.milliseconds(case.name)
    return {
        "name": case.name,
        "method": case.method,
        "row": case.row,
        "form": case.form,
        "variant": case.variant,
        "relative_to": case.denominator,
        "environment": dict(case.environment),
        **timings.ratios(case.name, bases),
        "milliseconds": milliseconds,
        "images_per_second": 1e3 * case.recipe.batch_size / milliseconds,
        **facts,
    }


# --- where it was measured ----------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """The machine, the versions of the packages that are installed, and the variables that decide speed."""
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "versions": {"looksam": looksam.__version__, "python": platform.python_version(), **_installed(PACKAGES)},
        "variables": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _installed(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions

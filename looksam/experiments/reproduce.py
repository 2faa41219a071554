"""Run what experiments ask for, until nothing is missing."""

import datetime
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence

from looksam.experiments.cost import cost
from looksam.experiments.made import made_by
from looksam.experiments.pool import run_all
from looksam.experiments.store import Record, Store
from looksam.experiments.task import Task
from looksam.experiments.work import with_data_dir

Say = Callable[[str], None]


Stages = Callable[[Store, int], Iterable[list[Task]]]  # of one experiment


def fill(
    store: Store,
    experiments: Sequence[Stages],
    *,
    seeds: int,
    workers: int,
    data_dir: str | None = None,
    download: bool = False,
    say: Say = print,
) -> None:
    """Train every cell that is missing. What is finished is kept, so that an interrupted call goes on."""
    progress, source = _Progress(say), made_by()

    def done(task: Task, record: Record) -> None:
        store.add(task, record | source)
        progress.done(task, record)

    with tempfile.TemporaryDirectory(prefix="looksam-programs-") as programs:
        while True:
            ready, later = missing(store, experiments, seeds)
            if not ready:
                return
            progress.plan([*ready, *later])
            run_all([with_data_dir(task, data_dir, download) for task in ready], workers, done, programs)


def missing(store: Store, experiments: Sequence[Stages], seeds: int) -> tuple[list[Task], list[Task]]:
    """The tasks that can be done now, and those that wait for them."""
    ready: dict[tuple[str, int], Task] = {}
    later: dict[tuple[str, int], Task] = {}
    for stages in experiments:
        place = ready
        for stage in stages(store, seeds):
            missing = {(task.key, task.recipe.seed): task for task in stage if task not in store}
            place |= missing
            place = later if missing else place
    return list(ready.values()), [task for name, task in later.items() if name not in ready]


class _Progress:
    """One line for each finished run, with the time left over the whole grid."""

    def __init__(self, say: Say) -> None:
        self._say, self._began, self._work, self._runs = say, time.monotonic(), 0.0, 0
        self._left: dict[tuple[str, int], float] = {}

    def plan(self, tasks: Sequence[Task]) -> None:
        self._left = {(task.key, task.recipe.seed): cost(task) for task in tasks}

    def done(self, task: Task, record: Record) -> None:
        self._work += self._left.pop((task.key, task.recipe.seed), cost(task))
        self._runs += 1
        seconds = (time.monotonic() - self._began) * sum(self._left.values()) / self._work
        left = datetime.timedelta(seconds=round(seconds))
        self._say(f"[{self._runs} done, {len(self._left)} to go, {left} left] {describe(task)}: {outcome(record)}")


def describe(task: Task) -> str:
    recipe = task.recipe
    parts = [task.kind, recipe.model, f"batch {recipe.batch_size}", recipe.method]
    if recipe.label_noise:
        parts.insert(2, f"noise {recipe.label_noise:g}")
    if recipe.method != "base":
        parts.append(f"rho {recipe.rho:g}")
    if recipe.method.startswith("look"):
        parts.append(f"alpha {recipe.alpha:g}")
    if recipe.method in ("sam_k", "look_sam", "look_layer_sam"):
        parts.append(f"k {recipe.k}")
    return ", ".join([*parts, f"rate {recipe.learning_rate:g}", f"seed {recipe.seed}"])


def outcome(record: Record) -> str:
    if "test_accuracy" in record:
        return f"test {record['test_accuracy']:.2f} %"
    return f"held-out {record['validation_accuracy'][-1]:.2f} %" if "validation_accuracy" in record else "measured"

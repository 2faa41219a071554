"""Long measurements in parts: a finished part is kept and not measured again, and the others report their progress.

A part is a loop on the host over one compiled program. What is kept, and where, is up to ``Kept``: the numbers of each
finished part, and now and then the state of the loop of the part that is being measured.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

KEEP_SECONDS = 20.0  # between two states of a loop that are kept
Progress = Callable[[str, float, float], None]  # progress(what is being measured, work done, all work)
State = tuple[int, list[np.ndarray]]  # the steps done, and the arrays of the loop's state


class Kept(Protocol):
    """Where finished parts are kept, by name. It belongs to one loss, its weights and its batches."""

    def get(self, name: str) -> Any | None:
        """The numbers of a part, nested dicts and lists; None if it is not finished."""

    def put(self, name: str, numbers: Any) -> None:
        """Keeps the numbers of a finished part."""

    def get_state(self, name: str) -> State | None:
        """The last state of a part's loop; None if there is none."""

    def put_state(self, name: str, state: State) -> None:
        """Keeps the state of a part's loop, in place of any other state."""


class InMemory:
    """Keeps parts for as long as the process runs, for a call that is repeated after Ctrl-C in a notebook."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.states: dict[str, State] = {}

    def get(self, name: str) -> Any | None:
        return self.parts.get(name)

    def put(self, name: str, numbers: Any) -> None:
        self.parts[name] = numbers
        self.states.clear()

    def get_state(self, name: str) -> State | None:
        return self.states.get(name)

    def put_state(self, name: str, state: State) -> None:
        self.states = {name: state}


class Part(NamedTuple):
    """One part of a measurement."""

    name: str  # unique, with the settings that its numbers depend on
    title: str  # for people
    work: float  # in any unit that all parts share
    measure: Callable[["Loop"], Any]  # returns nested dicts and lists of numbers


class Loop:
    """The loop of one part. It resumes from the state that was kept, and reports every step."""

    def __init__(self, part: Part, kept: Kept, report: Callable[[float, float], None]) -> None:
        self._part, self._kept, self._report = part, kept, report
        self.left = part.work

    def run(
        self,
        start: Any,
        step: Callable[[int, Any], Any],
        count: int,
        ended: Callable[[Any], bool] = lambda state: False,
    ) -> Any:
        """Returns the state after ``count`` calls of ``step(i, state)``, or after the first that has ``ended``.

        States are pytrees of arrays of fixed shapes.
        """
        done, state = self._resumed(start)
        last_kept, each = time.monotonic(), self._part.work / count
        self.count(saved=done * each)
        while done < count and not (done and ended(state)):
            state = jax.block_until_ready(step(done, state))
            done += 1
            self.count(each)
            if time.monotonic() - last_kept > KEEP_SECONDS:
                leaves = [np.array(x) for x in jax.tree.leaves(state)]  # a copy: the next step may overwrite its state
                self._kept.put_state(self._part.name, (done, leaves))
                last_kept = time.monotonic()
        self.count(saved=(count - done) * each)
        return state

    def count(self, work: float = 0.0, *, saved: float = 0.0) -> None:
        """Reports work that was done, or that need not be done."""
        self.left -= work + saved
        self._report(work, saved)

    def _resumed(self, start: Any) -> tuple[int, Any]:
        found = self._kept.get_state(self._part.name)
        if found is None:
            return 0, start
        done, leaves = found
        return done, jax.tree.unflatten(jax.tree.structure(start), leaves)


def measured(parts: Sequence[Part], kept: Kept, progress: Progress) -> dict[str, Any]:
    """Measures the parts that are not kept yet, keeps each as soon as it is finished, and returns all by name."""
    missing = [part for part in parts if kept.get(part.name) is None]
    done, total = 0.0, sum(part.work for part in missing)
    for part in missing:

        def report(work: float, saved: float, title: str = part.title) -> None:
            nonlocal done, total
            done, total = done + work, total - saved
            progress(title, done, total)

        loop = Loop(part, kept, report)
        loop.count()  # the program is compiled before the first step
        kept.put(part.name, part.measure(loop))
        loop.count(loop.left)
    return {part.name: kept.get(part.name) for part in parts}

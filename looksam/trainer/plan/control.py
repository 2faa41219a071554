"""Loops, branches and calls of a compiled program: which computation runs how often."""

import json

from looksam.trainer.plan.hlo import Instruction

ONCE = {"fusion": "calls", "call": "to_apply", "async-start": "calls"}  # and the attribute that names what is called


def trip_count(loop: Instruction) -> int | None:
    """How often a ``while`` runs, where the compiler has found it out."""
    config = loop.attribute("backend_config")
    count = json.loads(config).get("known_trip_count") if config else None
    return int(count["n"]) if count else None


def passes(loop: Instruction) -> list[tuple[str, int | None]]:
    """The computations of a ``while`` and how often each runs: the condition once more than the body."""
    trips = trip_count(loop)
    body = [(name, trips) for name in loop.names("body")]
    return body + [(name, None if trips is None else trips + 1) for name in loop.names("condition")]


def branches(conditional: Instruction) -> tuple[str, ...]:
    pair = conditional.names("true_computation") + conditional.names("false_computation")
    return conditional.names("branch_computations") or pair

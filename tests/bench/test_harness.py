"""The interleaved timing, on a clock that is set by hand, and its workers."""

import collections
import functools
import os
import pathlib

import pytest

from looksam.bench import harness
from looksam.bench.harness import Turn, interleave, joined, quartiles
from looksam.bench.worker import Worker, WorkerError

SUPPORT = str(pathlib.Path(__file__).parents[1] / "support")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def clock(monkeypatch):
    """Wall and CPU clocks that only move when a step says so."""
    now = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(harness.time, "process_time", lambda: now["cpu"])
    return now


# --- turns ------------------------------------------------------------------------------------------------------


def test_a_turn_is_the_time_per_step(clock):
    def run(steps):
        clock["wall"] += 3.0 * steps
        clock["cpu"] += 5.0 * steps

    assert harness.clocked(run, 10) == (3.0, 5.0)


def test_every_subject_takes_one_turn_per_round_in_a_changing_order():
    order = []

    def turn(name):
        order.append(name)
        return Turn(1.0, 1.0)

    names = ["a", "b", "c", "d"]
    lines = []
    timings = interleave({name: functools.partial(turn, name) for name in names}, 8, lines.append)
    rounds = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert len(rounds) == 9  # one more, to warm up
    assert all(sorted(taken) == names for taken in rounds)
    assert len({tuple(taken) for taken in rounds}) > 4
    assert {name: len(turns) for name, turns in timings.turns.items()} == dict.fromkeys(names, 8)
    assert lines == ["timing: warmed up", *(f"timing: round {i}/8" for i in range(1, 9))]


def test_the_first_round_is_not_counted():
    seconds = {"base": iter([50.0, 1.0, 1.0]), "sam": iter([1000.0, 2.0, 2.0])}
    turns = {name: (lambda times=times: Turn(*[next(times)] * 2)) for name, times in seconds.items()}
    assert interleave(turns, 2).ratios("sam", ["base"])["wall"] == [2.0, 2.0, 2.0]


def test_ratios_are_to_the_mean_of_the_bases_in_the_same_round():
    """The machine is ten times slower in the second round, which no ratio shows."""
    turns = {
        "base": [Turn(1.0, 4.0), Turn(10.0, 40.0)],
        "base #2": [Turn(3.0, 4.0), Turn(30.0, 40.0)],
        "sam": [Turn(6.0, 2.0), Turn(60.0, 20.0)],
    }
    timings = harness.Timings(turns)
    assert timings.ratios("sam", ["base", "base #2"]) == {"wall": [3.0] * 3, "cpu": [0.5] * 3}
    assert timings.ratios("sam", ["base"])["wall"] == [6.0] * 3
    assert timings.ratios("base", ["base", "base #2"])["wall"] == [0.5] * 3
    assert timings.milliseconds("sam") == 33_000


def test_quartiles_are_over_rounds():
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == [2.0, 3.0, 4.0]
    assert quartiles([7.0]) == [7.0, 7.0, 7.0]


def test_rounds_of_several_sets_are_joined():
    parts = [harness.Timings({"base": [Turn(1.0, 1.0)], "sam": [Turn(x, x)]}) for x in (2.0, 4.0)]
    assert joined(parts).ratios("sam", ["base"])["cpu"] == [2.5, 3.0, 3.5]


def test_at_least_one_round():
    with pytest.raises(ValueError, match="rounds=0 is out of range; pass rounds >= 1"):
        interleave({"base": lambda: Turn(1.0, 1.0)}, 0)


# --- workers ----------------------------------------------------------------------------------------------------


def worker(function="Fake", environment=ENVIRONMENT, **arguments):
    return Worker("the subject", f"bench_subjects:{function}", arguments, environment)


def test_a_worker_takes_turns_in_a_process_with_its_own_environment():
    with worker(environment=ENVIRONMENT | {"MARK": "7"}) as one, worker() as other:
        turn = one.turn(20)
        assert 0 < turn.wall < 10 and 0 <= turn.cpu < 10
        one.turn(5)
        assert one.facts() == {"steps": 25, "mark": 7}
        assert other.facts() == {"steps": 0, "mark": 0}


def test_workers_and_functions_interleave():
    counts = collections.Counter()

    def in_process():
        counts["steps"] += 1
        return Turn(1.0, 1.0)

    with worker() as subject:
        timings = interleave({"base": in_process, "subject": functools.partial(subject.turn, 2)}, 3)
        assert subject.facts()["steps"] == 8
    assert counts["steps"] == 4
    assert len(timings.turns["subject"]) == 3


def test_a_worker_that_dies_says_why():
    with worker(dies_at=4) as subject:
        subject.turn(2)
        with pytest.raises(WorkerError, match="(?s)process of the subject ended with code 3.*the disk is on fire"):
            subject.turn(2)
        with pytest.raises(WorkerError, match="ended with code 3"):
            subject.turn(2)


def test_a_worker_that_cannot_start_says_why():
    with worker("fails") as subject, pytest.raises(WorkerError, match="(?s)code 1.*ValueError: there is no such model"):
        subject.wait_until_ready()


def test_a_closed_worker_has_ended():
    subject = worker()
    subject.wait_until_ready()
    subject.close()
    with pytest.raises(ProcessLookupError):
        os.kill(subject._process.pid, 0)


def test_a_worker_ends_with_its_input():
    """If this process is killed, nothing closes its workers; their input ends."""
    with worker() as subject:
        subject.wait_until_ready()
        subject._process.stdin.close()
        assert subject._process.wait(timeout=60) == 0

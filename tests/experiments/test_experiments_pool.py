"""Training processes: what they give back, and what is reported when one fails or dies."""

import multiprocessing
import os
import signal
import types

import pytest

from looksam.experiments.engine import pool
from looksam.experiments.engine.runs import Run
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import RunError

TINY = Recipe(mesh="data=1", validation=0.25, train_limit=200, batch_size=200, epochs=1)
MISSING = TINY.replace(dataset="cifar100", data_dir="no-such-folder")


def test_two_processes_do_two_programs(tmp_path):
    runs = [
        Run("tune", TINY.replace(label_noise=noise, seed=seed, learning_rate=0.01 * (1 + seed)))
        for noise in (0.0, 0.5)
        for seed in (0, 1)
    ]
    results, here = {}, set()

    def done(run, record):
        here.add(os.getpid())
        assert run not in results
        results[run] = record

    pool.train_all(runs, 2, done, str(tmp_path))
    assert results.keys() == set(runs) and here == {os.getpid()}
    for record in results.values():
        assert record.keys() == {"validation_accuracy", "train_loss", "seconds"}
    assert len({record["train_loss"][0] for record in results.values()}) == 4  # each has its own labels, seed and rate
    assert not multiprocessing.active_children()


def test_what_a_finished_run_makes_possible_is_trained_in_order(tmp_path):
    first, second, last = (Run("tune", TINY.replace(seed=seed)) for seed in (0, 1, 2))
    finished = []

    def ready():
        return [run for run in (first, *([second] if first in finished else []), last) if run not in finished]

    pool.train_all([first, last], 1, lambda run, record: finished.append(run), str(tmp_path), ready)
    assert finished == [first, second, last]
    assert not multiprocessing.active_children()


def test_a_late_rule_costs_less_and_says_when_it_acts():
    late = TINY.replace(method="sam", start=0.5, stop=0.75, epochs=20)
    costs = [pool.cost(Run("tune", recipe)) for recipe in (late.replace(method="base"), late)]
    assert costs[1] / costs[0] == pytest.approx(1.25)
    assert "sam, rho 0.05, start 0.5, stop 0.75, rate" in pool.describe(Run("tune", late))


def test_an_error_comes_back_as_one_message(tmp_path):
    with pytest.raises(RunError, match="no-such-folder") as caught:
        pool.train_all([Run("tune", MISSING)], 1, lambda run, record: None, str(tmp_path))
    assert "Traceback" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_killed_process_is_reported_and_what_it_finished_is_kept(tmp_path):
    runs = [Run("tune", TINY), Run("tune", MISSING.replace(epochs=1, train_limit=10, batch_size=10))]
    finished = []

    def done(run, record):
        finished.append(run)
        (worker,) = multiprocessing.active_children()
        worker.kill()
        worker.join()

    with pytest.raises(RunError, match=r"ended with code -9; finished runs are kept\. .*pass --workers 1"):
        pool.train_all(runs, 1, done, str(tmp_path))
    assert finished == runs[:1]
    assert not multiprocessing.active_children()


@pytest.fixture
def half_dead():
    """A worker whose process is gone, and the other end of its connection."""
    worker = object.__new__(pool._Worker)
    worker.connection, theirs = multiprocessing.Pipe()
    worker.process = types.SimpleNamespace(exitcode=-signal.SIGKILL, join=lambda: None)
    yield worker, theirs
    worker.connection.close()
    theirs.close()


def test_a_process_that_died_before_its_job(half_dead):
    worker, theirs = half_dead
    theirs.close()
    with pytest.raises(RunError, match="ended with code -9"):
        worker.take([Run("tune", TINY)])


def test_a_process_that_died_within_its_answer(half_dead):
    worker, theirs = half_dead
    os.write(theirs.fileno(), (100).to_bytes(4, "big") + b"a tenth of it")
    theirs.close()
    with pytest.raises(RunError, match="ended with code -9"):
        worker.answered(lambda run, record: None)


def test_an_error_no_one_foresaw_has_its_traceback(half_dead):
    worker, theirs = half_dead
    theirs.send(("error", "the whole traceback"))
    with pytest.raises(RunError, match="the whole traceback"):
        worker.answered(lambda run, record: None)


def test_jobs_share_a_program_and_the_longest_is_first():
    short, long = TINY, TINY.replace(epochs=9)
    runs = [Run("tune", recipe.replace(seed=seed)) for seed in (0, 1) for recipe in (short, long)]
    jobs = pool._jobs(runs)
    assert [{run.recipe.epochs for run in job} for job in jobs] == [{9}, {1}]
    assert [[run.recipe.seed for run in job] for job in jobs] == [[0, 1], [0, 1]]

"""A run resumes with other devices and micro-batches than it began with, on the same path, in float64."""

import contextlib
import json
import shutil

import jax
import numpy as np
import pytest
import spread

from looksam.trainer import run, training
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import RunError, check_recipe, claim
from looksam.trainer.training import Training

pytestmark = pytest.mark.usefixtures("in_float64")
RECIPE = Recipe(
    **{"batch_size": 48, "epochs": 10, "learning_rate": 0.02, "clip_norm": 1.0, "method": "look_layer_sam", "rho": 0.1},
    **{"k": 4, "mesh": "data=1", "log_every": 1, "eval_every": 10, "checkpoint_every": 3, "keep_checkpoints": 9},
)
START, END = 3, 12
# (last step, mesh, microbatch): after a leg on data=1, and each but the last ends between two refreshes, with a g_v
LEGS = [(6, "data=8", 16), (9, "fsdp=8", None), (END, "data=1", 24)]


@pytest.fixture
def smooth(monkeypatch):
    """The trainer with the smooth model and data of tests/spread.py in place of its own."""
    monkeypatch.setattr(training, "make_model", lambda recipe, dataset: spread.smooth_model())
    monkeypatch.setattr(training, "load", lambda recipe: spread.DATA)


def state_of(folder, recipe):
    with contextlib.closing(Checkpoints(folder / "checkpoints", keep=2, read_only=True)) as checkpoints:
        return checkpoints.restore(Training(recipe).programs.abstract_state)


def lines(folder, split):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.endswith("_seconds")} for r in records if r.pop("split") == split]


def same_lines(ours, theirs):
    """Losses are float64; norms and accuracy are written as float32."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-6, atol=1e-9)
        assert abs(a["loss"] - b["loss"]) < 1e-9


@pytest.mark.parametrize("method", ["look_layer_sam", "msam"])  # which keep g_v and the momentum v
def test_a_run_moves_from_mesh_to_mesh(smooth, method, tmp_path):
    whole, moved, reported, recipe = tmp_path / "whole", tmp_path / "moved", [], RECIPE.replace(method=method)
    run(recipe.replace(steps=END), whole, quiet=True)
    shutil.copytree(whole, moved)
    for step in (6, 9, END):
        shutil.rmtree(moved / "checkpoints" / str(step))
    for steps, mesh, microbatch in LEGS:
        run(recipe.replace(steps=steps, mesh=mesh, microbatch=microbatch), moved, quiet=True, report=reported.append)
    assert reported == [f"resuming from step {step} in {moved}" for step in (START, 6, 9)]
    (step, ours, _), (whole_step, theirs, _) = state_of(moved, recipe), state_of(whole, recipe)
    assert step == whole_step == END
    assert theirs.params["in"].dtype == np.float64
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), ours, theirs)
    same_lines(lines(moved, "train"), lines(whole, "train"))
    same_lines(lines(moved, "test")[-1:], lines(whole, "test"))
    losses = [line["loss"] for line in lines(whole, "train")]
    assert losses[0] - losses[-1] > 1e-3  # the weights have moved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 24}, "batch_size: 48 there, 24 here"),
        ({"mesh": "data=4"}, "groups: 8 there, 4 here"),
        ({"mesh": "auto", "groups": 4}, "groups: 8 there, 4 here"),
    ],
)
def test_another_path_is_refused(tmp_path, change, words):
    """Groups by device are another algorithm on another number of devices."""
    recipe = RECIPE.replace(mesh="data=8", groups="device")
    claim(tmp_path, recipe)
    check_recipe(tmp_path, recipe)
    check_recipe(tmp_path, RECIPE.replace(mesh="data=4", groups=8))  # the same eight, two on each of four devices
    with pytest.raises(RunError, match=words):
        check_recipe(tmp_path, recipe.replace(**change))

"""DistributedDataParallel and FSDP2 on two processes, against one process and against the definition."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch_ranks
from torch_problems import (
    LAYER_RULES,
    LOOK_RULES,
    ONE_GRADIENT_RULES,
    RULES,
    TWO_GRADIENT_RULES,
    build,
    flat,
    refreshes,
)
from torch_ranks import CHECKPOINTS, FSDP_OPTIONS, RANKS, STEPS, X, Y

every_rule = pytest.mark.parametrize("name", RULES)
two_gradient_rule = pytest.mark.parametrize("name", TWO_GRADIENT_RULES)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Returns what each rank wrote before it ended. How it ended does not matter: gloo may abort at exit."""
    folder = tmp_path_factory.mktemp("ranks")
    script = pathlib.Path(torch_ranks.__file__)
    root = str(script.parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    ranks = []
    for rank in range(RANKS):
        with open(folder / f"{rank}.log", "w") as log:
            command = [sys.executable, str(script), str(rank), str(folder)]
            ranks.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        for process in ranks:
            process.wait(timeout=120)
    finally:
        for process in ranks:
            process.kill()
    for rank in range(RANKS):
        assert (folder / f"{rank}.pt").exists(), (folder / f"{rank}.log").read_text()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def one_process(rule, width=7, **options):
    model = torch_ranks.network(width)
    return torch_ranks.train(model, build(rule, torch_ranks.base_for(model), **options), X, Y)


def agree(ours, reference, tolerance=1e-11):
    for (w, norm), (expected, expected_norm) in zip(ours, reference, strict=True):
        np.testing.assert_allclose(flat(w), flat(expected), rtol=tolerance, atol=tolerance)
        if norm is not None:
            np.testing.assert_allclose(float(norm), float(expected_norm), rtol=tolerance)


def identical(ours, other):
    for (w, _), (v, _) in zip(ours, other, strict=True):
        np.testing.assert_array_equal(flat(w), flat(v))


@every_rule
@pytest.mark.parametrize("kind", ["ddp", "views"])
def test_data_parallel_equals_one_process(results, name, kind):
    """With ``views``, gradients share memory with DDP's buckets."""
    agree(results[0][kind, name]["steps"], one_process(name))
    identical(results[0][kind, name]["steps"], results[1][kind, name]["steps"])


@every_rule
def test_sharded_equals_one_process(results, name):
    for rank in results:
        agree(rank["fsdp", name]["steps"], one_process(name))


@every_rule
@pytest.mark.parametrize(("kind", "width"), [("replicas", 7), ("tensor parallel", 8)])
def test_other_shardings_equal_one_process(results, name, kind, width):
    for rank in results:
        agree(rank[kind, name]["steps"], one_process(name, width))
        identical(rank[kind, name]["resumed"], rank[kind, name]["steps"])


def test_a_gradient_scaler_on_shards(results):
    """An overflow on one rank skips the step on both."""
    steps = results[0]["scaled"]["steps"]
    identical(steps[2:3], steps[1:2])
    agree(steps[:2] + steps[3:], one_process("look_sam"))
    identical(steps, results[1]["scaled"]["steps"])
    assert results[0]["scaled"]["scale"] == results[1]["scaled"]["scale"] == 512.0


@pytest.mark.parametrize("name", [name for name in FSDP_OPTIONS if name not in RULES])
def test_sharded_options_equal_one_process(results, name):
    rule, options = FSDP_OPTIONS[name]
    tolerance = 1e-3 if "store_dtype" in options else 1e-11  # bfloat16: another last bit of float64 may round away
    agree(results[0]["fsdp", name]["steps"], one_process(rule, **options), tolerance)


@pytest.mark.parametrize("name", FSDP_OPTIONS)
def test_sharded_resume_in_mid_cycle(results, name):
    run = results[0]["fsdp", name]
    identical(run["resumed"], run["steps"])


@pytest.mark.parametrize("key", CHECKPOINTS, ids="/".join)
def test_distributed_checkpoint_in_mid_cycle(results, key):
    """From files with the shards, and from whole tensors on one rank: the same steps, to the bit."""
    for rank in results:
        runs = rank["checkpoint", key]
        assert ("whole" in runs) == (key[1:] != ("sgd", "sam"))
        for how in set(runs) - {"straight"}:
            identical(runs[how], runs["straight"])


def test_whole_tensors_are_refused_by_shards(results):
    for rank in results:
        assert "has a Tensor as its g_v, and the parameter is a DTensor; use set_optimizer" in rank["whole into shards"]


@every_rule
def test_sharded_rules_need_few_reductions(results, name):
    """One all-reduce for the scalars of all tensors.

    They are for ε, the sums and ‖g_v‖ or ‖g_⊥‖ on a refresh, for ‖g‖ on reuse, and for ‖g‖ and ‖v‖ with MSAM.
    """
    first, second = results[0]["fsdp", name]["reductions"]
    assert first == (3 if name in LOOK_RULES or name == "gsam" else 2)
    expected = first if refreshes(name, 1) or name in ONE_GRADIENT_RULES else int(name in LOOK_RULES)
    assert second == expected


def by_definition(name):
    """m-sharpness: each half has a perturbation of its own, and g_s is the mean; g_v and g_⊥ are made of the means."""
    model = torch_ranks.network()
    base, kept, seen = torch_ranks.base_for(model), None, []
    params, sizes = list(model.parameters()), [p.numel() for p in model.parameters()]

    def gradient(x, y, shift=0.0):
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, part in zip(
                params, np.split(np.broadcast_to(shift, sum(sizes)), np.cumsum(sizes)[:-1]), strict=True
            ):
                p.add_(torch.tensor(part.reshape(p.shape)))
        model.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        with torch.no_grad():
            for p, w in zip(params, before, strict=True):
                p.copy_(w)
        return flat([p.grad for p in params])

    def epsilon(g, w):
        if name == "asam":
            scale = np.abs(w) + 0.01
            return 0.1 * scale**2 * g / np.linalg.norm(scale * g)
        if name not in LAYER_RULES:
            return 0.1 * g / np.linalg.norm(g)
        parts = zip(np.split(g, np.cumsum(sizes)[:-1]), np.split(w, np.cumsum(sizes)[:-1]), strict=True)
        u = np.concatenate([np.linalg.norm(v) / np.linalg.norm(part) * part for part, v in parts])
        return 0.1 * u / np.linalg.norm(u)

    halves = list(zip(X.chunk(RANKS), Y.chunk(RANKS), strict=True))
    for step in range(STEPS):
        g = [gradient(*half) for half in halves]
        mean, returned = np.mean(g, 0), np.mean(g, 0)
        if refreshes(name, step):
            w = flat(params)
            returned = np.mean([gradient(*half, epsilon(own, w)) for half, own in zip(halves, g, strict=True)], 0)
            kept = returned - (mean @ returned) / (mean @ mean) * mean
            if name == "gsam":
                returned = returned - 0.7 * (mean - (mean @ returned) / (returned @ returned) * returned)
        elif name in LOOK_RULES:
            returned = mean + 0.7 * np.linalg.norm(mean) / np.linalg.norm(kept) * kept
        for p, part in zip(params, np.split(returned, np.cumsum(sizes)[:-1]), strict=True):
            p.grad = torch.tensor(part.reshape(p.shape))
        base.step()
        seen.append((torch_ranks.weights(model), None))
    return seen


@two_gradient_rule
@pytest.mark.parametrize("kind", ["rank", "rank, views"])
def test_one_perturbation_per_rank_is_m_sharpness(results, name, kind):
    ours, other = (rank[kind, name]["steps"] for rank in results)
    agree([(w, None) for w, _ in ours], by_definition(name))
    identical(ours, other)


@two_gradient_rule
def test_one_perturbation_per_rank_skips_the_first_synchronisation(results, name):
    """DDP reduces its buckets once on every step, whatever the rule; with a global ε, twice on refresh steps."""
    assert results[0]["rank", name]["buckets"] == [1] * STEPS
    assert results[0]["ddp", name]["buckets"] == [1 + refreshes(name, i) for i in range(STEPS)]


def test_the_documented_recipe(results):
    identical(results[0]["recipe"], results[1]["recipe"])
    assert any(norm > 0 for _, norm in results[0]["recipe"])


@two_gradient_rule
def test_ranks_fall_back_together(results, name):
    """The squares of one rank's gradient overflow: all ranks return the mean gradient."""
    ours, other = (rank["overflow", name] for rank in results)
    assert ours["fell_back"] and other["fell_back"]
    identical(ours["steps"], other["steps"])
    model = torch_ranks.network()
    start = flat(model.parameters())
    moved = (start - flat(ours["steps"][0][0])) / 0.1
    loss = ((model(X) - Y) ** 2).mean()
    g = flat(torch.autograd.grad(loss, list(model.parameters())))
    assert moved[0] == pytest.approx(1e200 / RANKS)
    np.testing.assert_allclose(moved[1:], g[1:], rtol=1e-9, atol=1e-12)

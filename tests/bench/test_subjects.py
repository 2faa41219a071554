"""What can be measured of a recipe: which cases are chosen, and what each of them runs."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from looksam.bench import jax_subjects, subjects, torch_subjects
from looksam.bench.cycle import miniature
from looksam.bench.subjects import FORMS, Case, choose
from looksam.methods import settings_of
from looksam.trainer.optimizers import make_optimizer
from looksam.trainer.recipe import Recipe

DIGITS = Recipe(dataset="digits", batch_size=8, mesh="data=1", k=3, rho=0.1, learning_rate=0.01)
SHAPE = {"image_shape": (8, 8, 1), "num_classes": 10}


# --- choice -----------------------------------------------------------------------------------------------------


def names(recipe, rows, forms):
    return [case.name for case in choose(recipe, rows, forms).cases]


def test_every_form_has_its_methods_and_its_base():
    rows = ("sam", "look_sam")
    assert names(DIGITS, rows, ["static"]) == ["static/base", "static/sam", "static/look_sam"]
    assert names(DIGITS, rows, ["traced"]) == ["static/base", "traced/look_sam"]  # SAM has one program in any case
    assert names(DIGITS, rows, ["optax", "static"])[:3] == ["static/base", "optax/sam", "static/sam"]
    assert names(DIGITS, rows, ["pytorch_optimizer"]) == [
        *("torch/base", "pytorch_optimizer/sam", "pytorch_optimizer/look_sam")
    ]
    assert names(DIGITS, ["layer_sam"], ["optax"]) == []
    new = ("asam", "gsam", "msam", "sam@0.8", "look_sam_5@0.8")
    assert names(DIGITS, new, ["static"])[1:] == [f"static/{row}" for row in new]
    assert names(DIGITS, new, ["traced"])[1:] == ["traced/sam@0.8", "traced/look_sam_5@0.8"]


def test_a_row_may_name_its_period():
    case = choose(DIGITS, ["look_sam_10"], ["static"]).cases[1]
    assert (case.recipe.method, case.recipe.k, case.method) == ("look_sam", 10, "LookSAM-10")
    assert choose(DIGITS, ["look_sam"], ["static"]).cases[1].method == "LookSAM-3"
    assert names(DIGITS, ["look_sam_1"], ["traced"]) == []  # with k = 1 nothing is left to trace


def test_a_row_may_name_its_start():
    case = choose(DIGITS, ["look_sam_5@0.8"], ["static"]).cases[1]
    assert (case.recipe.method, case.recipe.start, case.method) == ("look_sam", 0.8, "LookSAM-5, last 20 %")
    cases, skipped = choose(DIGITS, ["sam", "sam@0.8"], ["optax"])
    assert [case.name for case in cases] == ["static/base", "optax/sam"]
    assert skipped == ["optax.contrib.sam is skipped for sam@0.8: it has no start and no stop"]


def test_cases_are_compared_with_the_base_of_their_framework():
    assert {case.denominator for case in choose(DIGITS, ["sam"], ["static", "optax"]).cases} == {"static/base"}
    assert Case("static", "base", DIGITS, base="torch/base", variant="x").denominator == "torch/base"


def test_unknown_methods_and_forms_are_refused():
    with pytest.raises(ValueError, match="row 'samm' names no method; the methods are base, sam"):
        choose(DIGITS, ["samm"], ["static"])
    with pytest.raises(ValueError, match="form 'statik' is unknown; did you mean static?"):
        choose(DIGITS, ["sam"], ["statik"])


def test_what_is_not_installed_is_skipped_with_a_line(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        subjects.importlib.util, "find_spec", lambda name: None if name == "pytorch_optimizer" else find(name)
    )
    cases, skipped = choose(DIGITS, ["sam"], ["torch", "pytorch_optimizer"])
    assert [case.name for case in cases] == ["torch/base", "torch/sam"]
    assert skipped == ["pytorch_optimizer is skipped: pytorch_optimizer is not installed"]


@pytest.mark.parametrize(
    ("form", "changes", "reason"),
    [
        ("torch", {"optimizer": "lamb"}, "it has no optimizer=lamb"),
        ("torch", {"dtype": "bfloat16"}, "it has no dtype=bfloat16"),
        ("torch", {"microbatch": 4}, "it has no microbatch=4"),
        ("torch", {"mesh": "data=2"}, "it has no mesh=data=2"),
        ("traced", {"groups": 2}, "it has no groups=2"),
        ("optax", {"p": 3.0}, "it has no p=3.0"),
        ("torch", {"perturb": "kernel"}, "it has no perturb='kernel'"),  # paths have other names there
        ("traced", {"perturb": "kernel"}, ""),
        ("static", {"optimizer": "lamb", "dtype": "bfloat16", "microbatch": 4, "groups": 2, "p": 3.0}, ""),
        ("torch", {"p": 3.0, "optimizer": "adamw"}, ""),
    ],
)
def test_what_a_form_cannot_do_is_said(form, changes, reason):
    assert subjects.reason_to_skip(FORMS[form], DIGITS.replace(**changes)) == reason


# --- subjects ---------------------------------------------------------------------------------------------------


def build(form, row, recipe=DIGITS, **options):
    case = Case(form, row, miniature(recipe.replace(**settings_of(row)), total_steps=1000), **options)
    module, _, function = FORMS[form].target.partition(":")
    return getattr({"jax_subjects": jax_subjects, "torch_subjects": torch_subjects}[module], function)(
        **case.arguments(*SHAPE.values())
    )


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.usefixtures("as_users_run_it")
def test_all_jax_forms_of_a_method_take_the_same_steps():
    """Two programs or one, or Optax's SAM on the same loss: the parameters agree."""
    ends = {}
    cases = [("static", "look_sam_3"), ("traced", "look_sam_3"), ("static", "sam"), ("optax_opaque", "sam")]
    for form, row in [*cases, ("optax", "sam"), ("static", "base")]:
        subject = build(form, row)
        subject.run(3)
        subject.run(2)
        ends[form, row] = flat(subject._state.params)
        expected = {"base": 1.0, "sam": 2.0}.get(row, 1 + 1 / 3)
        assert subject.facts()["gradients"] == pytest.approx(expected)
        assert subject.facts()["temporary_copies"] > 0
    np.testing.assert_allclose(ends["traced", "look_sam_3"], ends["static", "look_sam_3"], rtol=1e-4, atol=1e-6)
    for peer in ("optax", "optax_opaque"):
        np.testing.assert_allclose(ends[peer, "sam"], ends["static", "sam"], rtol=1e-4, atol=1e-6)
    assert np.abs(ends["static", "sam"] - ends["static", "base"]).max() > 1e-4
    assert np.abs(ends["static", "sam"] - ends["static", "look_sam_3"]).max() > 1e-4


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(("row", "gradients"), [("sam@0.8", 1.2), ("look_sam_5@0.8", 1.04), ("msam@0.75", 1.0)])
def test_a_late_rule_runs_in_miniature_and_begins_anew(row, gradients):
    """Static and traced steps agree over two cycles, and the second begins with plain steps again."""
    static, traced = build("static", row), build("traced", row)
    recipe = miniature(DIGITS.replace(**settings_of(row)), 1000)
    assert recipe.start < recipe.steps == static._cycle
    for subject in (static, traced):
        subject.run(2 * recipe.steps)
        assert subject.facts()["gradients"] == pytest.approx(gradients)
        assert int(subject._state.rule_state.count) == recipe.steps
    np.testing.assert_allclose(flat(traced._state.params), flat(static._state.params), rtol=1e-4, atol=1e-5)
    plain = build("static", "base")
    plain.run(recipe.start)
    late = build("static", row)
    late.run(recipe.start)
    np.testing.assert_array_equal(flat(late._state.params), flat(plain._state.params))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("form", "row", "store_dtype", "copies"),
    [
        *(("static", "base", None, 0.0), ("static", "sam", None, 0.0), ("static", "look_sam", None, 1.0)),
        *(("static", "look_sam", "bfloat16", 0.5), ("traced", "look_sam", None, 1.0)),
        *(("static", "gsam", None, 0.0), ("static", "msam", None, 1.0), ("static", "msam", "bfloat16", 0.5)),
        *(("optax", "sam", None, 1.0), ("optax_opaque", "sam", None, 0.0)),
    ],
)
def test_memory_that_a_rule_keeps(form, row, store_dtype, copies):
    assert build(form, row, store_dtype=store_dtype).facts()["kept_copies"] == pytest.approx(copies, abs=1e-3)


@pytest.mark.parametrize(
    ("form", "row", "gradients"),
    [
        *(("torch", "base", 1), ("torch", "sam", 2), ("torch", "look_sam", 4 / 3), ("torch", "layer_sam", 2)),
        *(("torch", "asam", 2), ("torch", "gsam", 2), ("torch", "msam", 1)),
        *(("pytorch_optimizer", "sam", 2), ("pytorch_optimizer", "look_sam", 2), ("pytorch_optimizer", "asam", 2)),
        ("pytorch_optimizer_one_pass", "look_sam", 4 / 3),
    ],
)
def test_gradients_of_pytorch_are_counted(form, row, gradients):
    subject = build(form, row, DIGITS.replace(clip_norm=0.5, weight_decay=0.1))
    before = [p.detach().clone() for p in subject.model.parameters()]
    subject.run(6)
    assert subject.facts() == {"gradients": pytest.approx(gradients)}
    assert all((p != b).any() for p, b in zip(subject.model.parameters(), before, strict=True))


@pytest.mark.parametrize(("row", "gradients"), [("sam@0.8", 1.2), ("look_sam_5@0.8", 1.04), ("msam@0.75", 1)])
def test_late_rules_of_pytorch_begin_anew_with_every_cycle(row, gradients):
    subject = build("torch", row)
    taken = []
    for _ in range(2 * subject._cycle):
        before = subject._gradients
        subject.run(1)
        taken.append(subject._gradients - before)
    assert taken[: subject._cycle] == taken[subject._cycle :]
    assert subject.facts() == {"gradients": pytest.approx(gradients)}
    assert taken[0] == 1


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("optimizer", ["sgdm", "adamw"])
def test_pytorch_updates_as_the_trainer_does(optimizer):
    """The same gradient, clipping and weight decay give the same parameters in both frameworks."""
    recipe = DIGITS.replace(optimizer=optimizer, weight_decay=0.1, decay_all=False, clip_norm=0.1)
    subject = build("torch", "base", recipe)
    named = dict(subject.model.named_parameters())
    params = {name: jnp.asarray(p.detach().numpy().copy()) for name, p in named.items()}
    tx = make_optimizer(recipe, 10**9)  # so many steps that the learning rate does not decay yet
    opt_state = tx.init(params)
    for _ in range(3):
        subject.run(1)
        grads = {name: jnp.asarray(p.grad.numpy().copy()) for name, p in named.items()}
        assert optax.tree.norm(grads) == pytest.approx(0.1, rel=1e-4)  # clipped
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    for name, p in named.items():
        np.testing.assert_allclose(p.detach(), params[name], rtol=1e-5, atol=1e-6)


def test_convolutions_are_in_the_channels_last_format():
    recipe = DIGITS.replace(model="resnet", width=4)
    subject = torch_subjects.ours(recipe.to_dict(), (16, 16, 3), 10)
    kernel = subject.model.get_parameter("blocks.0.units.0.conv.weight")
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert subject._images.is_contiguous(memory_format=torch.channels_last)


def test_only_the_processes_of_jax_get_its_variables():
    cases = choose(DIGITS, ["sam"], ["static", "optax", "torch"], {"XLA_FLAGS": "x"}).cases
    assert {case.form: dict(case.environment) for case in cases} == {
        "static": {"XLA_FLAGS": "x"},
        "optax": {"XLA_FLAGS": "x"},
        "torch": {},
    }

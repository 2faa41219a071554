"""A recipe's rule: the arguments of its factory, the steps on which it acts, and what they cost."""

import inspect

import pytest

import looksam
from looksam.methods import METHODS, SHARED_SETTINGS
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import Window, gradients_per_step, has_window, rule_settings, window

RULES = [name for name, method in METHODS.items() if method.is_rule]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (0, None)),
        ({"start": 30}, (30, None)),
        ({"start": 0.8}, (120, None)),
        ({"start": 0.777}, (117, None)),  # 116.55, rounded
        ({"start": 0.1, "stop": 0.5}, (15, 75)),
        ({"start": 20, "stop": 0.5}, (20, 75)),
        ({"stop": 1000}, (0, 1000)),  # after the end of the run
    ],
)
def test_fractions_are_of_the_whole_run(settings, expected):
    assert window(Recipe(method="sam", **settings), 150) == expected
    assert window(Recipe(method="base", **settings), 150) == (0, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 150}, "start=150 is step 150 of a run of 150 steps, .* pass an earlier start, or train longer"),
        ({"start": 0.999}, "start=0.999 is step 150 of a run of 150 steps"),
        ({"stop": 0.001}, "stop=0.001 is step 0 of a run of 150 steps, not after start=0, which is step 0"),
        ({"start": 80, "stop": 0.5}, "stop=0.5 is step 75 .* not after start=80, .* pass a later stop"),
        ({"start": 0.5, "stop": 75}, "stop=75 is step 75 .* not after start=0.5, which is step 75"),
    ],
)
def test_a_rule_that_would_never_act_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        window(Recipe(method="sam", **settings), 150)


@pytest.mark.parametrize(
    ("found", "steps", "share"),
    [
        (Window(0, None), 7, 1.0),
        (Window(120, None), 150, 0.2),
        (Window(120, None), 100, 0.0),  # a run that stops before it
        (Window(10, 40), 50, 0.6),
        (Window(10, 40), 20, 0.5),
    ],
)
def test_the_share_of_the_steps(found, steps, share):
    assert found.share(steps) == pytest.approx(share)


@pytest.mark.parametrize("method", RULES)
def test_settings_are_arguments_of_the_factory(method):
    """In JAX and in PyTorch, whose classes have the same keywords."""
    recipe = Recipe(method=method, start=0.5, stop=0.75, perturb="kernel$", rho=0.3, alpha=0.2, eta=0.1)
    found = rule_settings(recipe, 100)
    assert found.keys() == {*METHODS[method].settings, *SHARED_SETTINGS}
    assert found.keys() <= inspect.signature(getattr(looksam, method)).parameters.keys()
    assert (found["start"], found["stop"], found["rho"]) == (50, 75, 0.3)
    assert [bool(found["perturb"](path)) for path in ("hidden/0/kernel", "kernel/bias")] == [True, False]
    plain = rule_settings(Recipe(method=method), 100)
    assert plain.keys() == set(METHODS[method].settings)  # the others are the factory's defaults


def test_the_base_optimizer_has_no_rule():
    assert rule_settings(Recipe(start=0.5, perturb="kernel"), 100) == {}
    assert not has_window(Recipe(start=0.5))


@pytest.mark.parametrize(
    ("settings", "gradients"),
    [
        ({"method": "base", "start": 0.8}, 1.0),
        ({"method": "sam", "start": 0.8}, 1.2),
        ({"method": "look_sam", "start": 0.8, "k": 5}, 1.04),
        ({"method": "gsam", "start": 10, "stop": 60}, 1.5),
        ({"method": "msam", "start": 0.8}, 1.0),
    ],
)
def test_gradients_of_a_run(settings, gradients):
    assert gradients_per_step(Recipe(**settings), 100) == pytest.approx(gradients)

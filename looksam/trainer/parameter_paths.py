"""Parameters selected by a regular expression on their paths: those that are perturbed, and those that are frozen.

A path reads like ``blocks/0/attention/query/kernel``. Frozen parameters are constants of the loss: they get no
gradient, and neither the rule nor the optimizer knows of them. So they do not move, by weight decay either, are not
perturbed, count in no norm, and have no optimizer state.
"""

import re
from typing import Any

import jax

from looksam.rules import pytree
from looksam.trainer.models import Model
from looksam.trainer.recipe import Recipe

SHOWN_PATHS = 5  # of parameters, in an error


def split(params: Any, freeze: str | None) -> tuple[Any, Any]:
    """Returns the trained and the frozen parameters, each with None in place of the others.

    >>> split({"head": {"bias": 1.0}, "stem": {"bias": 2.0}}, "^stem/")
    ({'head': {'bias': 1.0}, 'stem': {'bias': None}}, {'head': {'bias': None}, 'stem': {'bias': 2.0}})
    """
    if freeze is None:
        return params, None
    trained = [not re.search(freeze, path) for path in paths(params)]
    return pytree.selected(params, trained), pytree.selected(params, [not keep for keep in trained])


def joined(trained: Any, frozen: Any) -> Any:
    """Returns all parameters from what ``split`` returned."""
    if frozen is None:
        return trained
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda x: x is None)


def paths(params: Any) -> list[str]:
    """Returns the path of each parameter, in the order of the leaves."""
    return [pytree.path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def check_paths(recipe: Recipe, model: Model) -> None:
    """Raises if the recipe's ``perturb`` or ``freeze`` matches no parameter of its model, or ``freeze`` all of them."""
    if recipe.perturb is None and recipe.freeze is None:
        return
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    if recipe.freeze is not None:
        _check_match("freeze", recipe.freeze, paths(params))
        params, _ = split(params, recipe.freeze)
        if not paths(params):
            raise ValueError(
                f"freeze={recipe.freeze!r} matches every parameter, so that nothing is trained; "
                "pass an expression that leaves some out."
            )
    if recipe.perturb is not None:
        _check_match("perturb", recipe.perturb, paths(params), " that are trained" if recipe.freeze else "")


def _check_match(setting: str, expression: str, known: list[str], which: str = "") -> None:
    if any(re.search(expression, path) for path in known):
        return
    shown = ", ".join(known[:SHOWN_PATHS]) + (", …" if len(known) > SHOWN_PATHS else "")
    raise ValueError(
        f"{setting}={expression!r} matches none of the parameters{which}, {shown}; pass an expression that does."
    )

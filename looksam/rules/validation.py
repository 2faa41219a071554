"""Checks of what JAX users pass, made before anything is traced; framework-free checks are in looksam.arguments.

Each message names the value, the argument and the fix.
"""

import contextlib
import functools
import numbers
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from looksam import arguments
from looksam.rules.pytree import Vector, path_string


def setting(name: str, value: Any) -> Any:
    """Returns ρ or α: a number >= 0, an array scalar or a schedule (whose values are not checked)."""
    return value if callable(value) else non_negative(name, value, "a number >= 0, an array scalar or a schedule")


def non_negative(name: str, value: Any, expected: str = "a number >= 0") -> Any:
    """Returns a finite number >= 0 or an array scalar; the value of a traced one is not checked."""
    if not isinstance(value, jax.Array | np.ndarray):
        return arguments.non_negative(name, value, expected)
    if jnp.shape(value) != ():
        raise ValueError(f"{name} has shape {jnp.shape(value)}; pass a scalar (vmap over it to sweep many).")
    if not isinstance(value, jax.core.Tracer):
        arguments.non_negative(name, float(value), expected)
    return value


def positive(name: str, value: Any) -> Any:
    """Returns a finite number > 0 or an array scalar; the value of a traced one is not checked."""
    if not isinstance(non_negative(name, value), jax.core.Tracer) and not float(value) > 0:
        raise ValueError(f"{name}={float(value)} is out of range; pass {name} > 0.")
    return value


def storage(dtype: DTypeLike | None) -> DTypeLike | None:
    """Returns the dtype in which g_v is kept; None stands for each parameter's own."""
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise TypeError(f"store_dtype={jnp.dtype(dtype).name} is not floating-point; pass e.g. jnp.bfloat16 or None.")
    return dtype


def group_setting(groups: Any) -> Any:
    """Returns the number of groups, ``"device"`` or None."""
    if isinstance(groups, str) and groups != "device":
        raise ValueError(f"groups={groups!r} is unknown; pass a number of groups, 'device', or None for one group.")
    return groups if groups is None or groups == "device" else arguments.whole("groups", groups)


def no_groups(groups: Any) -> None:
    """Raises if a rule with groups is given a gradient instead of a batch."""
    if groups is not None:
        raise ValueError(
            f"this rule has groups={groups!r}, and transform sees no batch to split; call rule.gradient instead."
        )


def host_step(step: Any) -> int:
    """Returns a step count >= 0 on the host."""
    if isinstance(step, jax.core.Tracer):
        raise TypeError("refreshes and is_active run on the host, and step is traced; pass a Python int.")
    index: int = operator.index(step)
    if index < 0:
        raise ValueError(f"step={index} is negative; count steps from 0.")
    return index


def check_params(params: Vector) -> None:
    """Raises if a parameter is not a real floating-point array."""
    if _is_of("flax.nnx", "Module", params):
        raise TypeError(
            f"params is a {type(params).__name__}, a module of Flax NNX, and a rule takes arrays alone; use "
            "looksam.NNXRule(rule, model), whose value_and_grad takes the module, or pass "
            "nnx.as_pure(nnx.state(model, nnx.Param))."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, numbers.Number):
            problem = f"is a {type(leaf).__name__}, {_short(leaf)}, and not an array"
        elif not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            problem = f"has dtype {jnp.result_type(leaf)}, which has no real gradient"
        else:
            continue
        fix = "keep it out of params (pass it in args), or cast it to a float."
        if _is_of("equinox", "Module", params):
            fix = "take params, static = eqx.partition(model, eqx.is_inexact_array), and pass params."
        raise TypeError(f"parameter '{path_string(path)}' {problem}; {fix}")


def _is_of(module: str, name: str, value: Any) -> bool:
    """Returns whether a value is of another library's class; if that has not been imported, it is not."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _short(value: Any) -> str:
    text = getattr(value, "__name__", repr(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


def perturbed_leaves(params: Vector, is_perturbed: Callable[[str], bool] | None) -> list[bool]:
    """Returns, for each parameter, whether it is perturbed; raises if none is."""
    paths = [path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    keep = [is_perturbed is None or bool(is_perturbed(path)) for path in paths]
    if paths and not any(keep):
        raise ValueError(
            "perturb is False for every parameter, so the rule would do nothing; pass a function that is True for some "
            "of them, e.g. one of "
            f"{', '.join(map(repr, paths[:5]))}{', …' if len(paths) > 5 else ''}."
        )
    return keep


def check_step(params: Vector, state: Any, state_type: type, refresh: Any) -> None:
    """Raises if the arguments of a step do not fit together, or ``refresh`` is not static."""
    if refresh is not None and not isinstance(refresh, bool):
        raise TypeError(
            f"refresh={refresh!r} must be None, True or False, known when the step is traced; pass a Python bool "
            "(rule.refreshes(step), with refresh as a static argument of jit) or None to decide on the device."
        )
    check_params(params)
    if not isinstance(state, state_type):
        raise TypeError(
            f"state is a {type(state).__name__}, and this rule carries a {state_type.__name__}; "
            "pass the state that rule.init(params) of the same rule returned."
        )
    for name in ("g_v", "v"):  # LookSAM's and MSAM's
        if hasattr(state, name):
            kept = getattr(state, name)
            _check_same_shape(params, kept, f"the {name} in state", "call rule.init(params) again for these params.")


def check_refresh(refresh: bool, refreshes: Callable[[Any], Any], count: Any) -> None:
    """Raises if ``refresh`` differs from what is due by the count."""
    _on_host(functools.partial(_compare_refresh, refresh), refreshes(count), count)


def check_inactive(is_active: Callable[[Any], Any], count: Any) -> None:
    """Raises if a step that is taken as plain is inside the window by the count."""
    _on_host(_compare_inactive, is_active(count), count)


def _on_host(check: Callable[[Any, Any], None], due: Any, count: Any) -> None:
    """Runs a check; from within a traced program, by a host callback."""
    if isinstance(count, jax.core.Tracer):
        jax.debug.callback(check, due, count)
    else:
        check(due, count)


def _compare_refresh(refresh: bool, due: Any, count: Any) -> None:
    if bool(due) != refresh:
        raise ValueError(
            f"refresh={refresh} on step {int(count)}, by the count in state, and that step "
            f"{'refreshes' if due else 'does not refresh'}; pass refresh=rule.refreshes(i) with i = {int(count)} here, "
            "and restore i and state together."
        )


def _compare_inactive(active: Any, count: Any) -> None:
    if bool(active):
        raise ValueError(
            f"plain on step {int(count)}, by the count in state, and the rule acts on that step; take plain steps only "
            "where rule.is_active(i) is False, and restore i and state together."
        )


@contextlib.contextmanager
def unchanged(params: Vector) -> Iterator[None]:
    """Raises if what is done inside replaces a parameter, as can happen where params share variables with a module."""
    before = jax.tree.leaves(params)
    yield
    if any(old is not new for old, new in zip(before, jax.tree.leaves(params), strict=True)):
        raise ValueError(
            "value_and_grad changed params in place, and would leave the model at the perturbed parameters w + ε; use "
            "looksam.NNXRule(rule, model), or merge the parameters into a copy: "
            "nnx.merge(graphdef, params, rest, copy=True)."
        )


def split_value_and_grad(result: Any, params: Vector) -> tuple[Any, Vector]:
    """Returns the value and the gradient in the result of ``value_and_grad``."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"value_and_grad returned a {type(result).__name__}, not (value, grads); "
            "pass jax.value_and_grad(loss), not loss or jax.grad(loss)."
        )
    check_gradient(params, result[1])
    return result[0], result[1]


def check_gradient(params: Vector, g: Vector) -> None:
    """Raises if a gradient does not have the structure and shapes of the parameters."""
    _check_same_shape(params, g, "the gradient", "differentiate with respect to params, the first argument.")


def _check_same_shape(params: Vector, other: Vector, what: str, fix: str) -> None:
    ours = {path_string(path): jnp.shape(x) for path, x in jax.tree_util.tree_leaves_with_path(params)}
    theirs = {path_string(path): jnp.shape(x) for path, x in jax.tree_util.tree_leaves_with_path(other)}
    for path in [*ours, *theirs]:
        if path not in theirs:
            raise ValueError(f"parameter '{path}' is not in {what}; {fix}")
        if path not in ours:
            raise ValueError(f"{what} has '{path}', and params does not; {fix}")
        if ours[path] != theirs[path]:
            raise ValueError(f"parameter '{path}' has shape {ours[path]}, and {theirs[path]} in {what}; {fix}")
    difference = _first_difference(params, other)
    if difference is not None:
        path, (mine, its) = difference
        where = f" at '{path}'" if path else ""
        raise ValueError(f"params has {mine}{where}, and {what} {its}; {fix}")


def _first_difference(ours: Any, theirs: Any) -> tuple[str, tuple[str, str]] | None:
    """Returns the path of the first containers that differ, and what they are."""
    structures: tuple[Any, Any] = jax.tree.structure(ours), jax.tree.structure(theirs)
    if structures[0] == structures[1]:
        return None
    pairs = list(zip(_children(ours), _children(theirs), strict=False))
    for (path, mine), (_, its) in pairs if type(ours) is type(theirs) else []:
        inner = _first_difference(mine, its)
        if inner is not None:
            return "/".join(filter(None, (path_string(path), inner[0]))), inner[1]
    names = [f"a {type(x).__name__}" for x in (ours, theirs)]
    if names[0] == names[1]:
        names[1] += " with other static fields or children"
    return "", (names[0], names[1])


def _children(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: x is not tree)

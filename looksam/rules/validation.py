"""What a caller can get wrong, said before anything is traced: the value, the place and the fix."""

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from looksam.rules.batching import check_count
from looksam.rules.perturbation import SCALINGS, path_string
from looksam.rules.vector import Vector


def non_negative(name: str, value: Any) -> None:
    """ρ and α: a number, an array scalar (its value is seen only where it is concrete) or a schedule."""
    if callable(value):
        return
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        raise TypeError(f"{name}={value!r} is not a number; pass a number >= 0, an array scalar or a schedule.")
    if jnp.shape(value) != ():
        raise ValueError(f"{name} has shape {jnp.shape(value)}; pass a scalar (vmap over it to sweep many).")
    if not isinstance(value, jax.core.Tracer) and not 0 <= float(value) < math.inf:
        raise ValueError(f"{name}={float(value)} is out of range; pass a finite {name} >= 0.")


def period(k: Any) -> int:
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer):
        raise TypeError(f"k={k!r} is not an int; pass how many steps share one second gradient, e.g. k=5.")
    if k < 1:
        raise ValueError(f"k={k} is out of range; pass k >= 1 (k=1 is SAM, k=5 refreshes every 5th step).")
    return int(k)


def exponent(p: Any) -> float:
    if isinstance(p, bool | np.bool_) or not isinstance(p, int | float | np.integer | np.floating):
        raise TypeError(f"p={p!r} is not a number; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    if not p > 1:  # NaN too
        raise ValueError(f"p={p} is out of range; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    return float(p)


def layer_scaling(scaling: Any) -> None:
    if scaling not in SCALINGS:
        names = ", ".join(map(repr, SCALINGS))
        raise ValueError(f"scaling={scaling!r} is unknown; pass one of {names}.")


def layer_function(layers: Callable[[str], Any] | None) -> None:
    if layers is not None and not callable(layers):
        raise TypeError(
            f"layers={layers!r} is not callable; pass a function from a path like 'block/kernel' to a layer."
        )


def storage(dtype: DTypeLike | None) -> None:
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise TypeError(f"store_dtype={jnp.dtype(dtype).name} is not floating-point; pass e.g. jnp.bfloat16 or None.")


def group_setting(groups: Any) -> None:
    if isinstance(groups, str) and groups != "device":
        raise ValueError(f"groups={groups!r} is unknown; pass a number of groups, 'device', or None for one group.")
    if groups is not None and groups != "device":
        check_count("groups", groups)


def group_count(groups: Any) -> int:
    """How many groups; with "device" as many as the mesh in use has devices, or else as there are in all."""
    if groups != "device":
        return int(groups)
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() if mesh.empty else mesh.size


def no_groups(groups: Any) -> None:
    if groups is not None:
        raise ValueError(
            f"this rule has groups={groups!r}, and transform sees no batch to cut; call rule.gradient instead."
        )


def host_step(step: Any) -> int:
    if isinstance(step, jax.core.Tracer):
        raise TypeError("refreshes(step) runs on the host, and step is traced; pass a Python int, or refresh=None.")
    step = operator.index(step)
    if step < 0:
        raise ValueError(f"step={step} is negative; count steps from 0.")
    return step


def check_params(params: Vector) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"parameter '{path_string(path)}' has dtype {dtype}, which has no real gradient; "
                "keep it out of params (pass it in args), or cast it to a float."
            )


def check_step(params: Vector, state: Any, state_type: type, refresh: Any) -> None:
    if refresh is not None and not isinstance(refresh, bool):
        raise TypeError(
            f"refresh={refresh!r} must be None, True or False, known when the step is traced; pass a Python bool "
            "(rule.refreshes(step), with refresh as a static argument of jit) or None to decide on the device."
        )
    check_params(params)
    if not isinstance(state, state_type):
        raise TypeError(
            f"state is a {type(state).__name__}, and this rule carries a {state_type.__name__}; "
            "pass the state that rule.init(params) gave, from the same rule."
        )
    if hasattr(state, "g_v"):
        _check_same_shape(params, state.g_v, "the g_v in state", "call rule.init(params) anew for these params.")


def split_value_and_grad(result: Any, params: Vector) -> tuple[Any, Vector]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"value_and_grad returned a {type(result).__name__}, not (value, grads); "
            "pass jax.value_and_grad(loss), not loss or jax.grad(loss)."
        )
    check_gradient(params, result[1])
    return result[0], result[1]


def check_gradient(params: Vector, g: Vector) -> None:
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
    containers: tuple[Any, Any] = jax.tree.structure(params), jax.tree.structure(other)
    if containers[0] != containers[1]:
        raise ValueError(f"params is a {containers[0]}, and {what} a {containers[1]}; {fix}")

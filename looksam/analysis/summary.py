"""Every analysis at one point: the numbers that ``looksam analyze`` writes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam import arguments
from looksam.analysis import hessian, landscape
from looksam.analysis.decomposition import components, second_order
from looksam.analysis.pac_bayes import pac_bayes_bound
from looksam.analysis.sharpness import ascent_sharpness, m_sharpness, one_step_sharpness
from looksam.rules import pytree, validation

Batch = Sequence[Any]
Numbers = dict[str, Any]  # nested dicts and lists of Python numbers

ASCENT_STEPS = 20
LARGEST_GROUP = 50  # examples in a group of m-sharpness
LANCZOS_STEPS = 40
PROBES = 30  # for the trace
LINE_POINTS = 41
PLANE_POINTS = 15


class _Point:
    """A loss of the form ``loss(params, *batch)`` at fixed weights; the batch is an argument of every program."""

    def __init__(self, loss: Callable[..., jax.Array], params: Any) -> None:
        self.loss, self.params = loss, params

    def program(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles ``program(batch, *more)``: ``function(loss of the batch, params, *more)`` as Python numbers."""

        @jax.jit
        def compiled(params: Any, batch: Batch, more: Sequence[Any]) -> Any:
            return function(lambda w: self.loss(w, *batch), params, *more)

        return lambda batch, *more: _plain(compiled(self.params, tuple(batch), more))


def measure(
    loss: Callable[..., jax.Array],
    params: Any,
    train: Batch,
    test: Batch,
    *,
    rho: float,
    key: jax.Array,
    eigenvalues: int = 3,
    trained_on: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Numbers:
    """Returns sharpness, curvature, g_v to second order, landscapes and the bound, in nested dicts of numbers.

    Args:
      loss: ``loss(params, *batch)``, a mean over the examples.
      params: the weights, a pytree.
      train: a batch; everything is measured on it, except what is named "test".
      test: another batch.
      rho: radius, > 0, in the 2-norm.
      key: for random directions and probes.
      eigenvalues: number of the largest eigenvalues.
      trained_on: the n of the bound, by default the number of examples in ``train``.
      report: called with a line about what is being measured.
    """
    validation.positive("rho", rho)
    point = _Point(loss, params)
    report("sharpness")
    sharpness = _sharpness(point, train, test, rho)
    examples = len(jax.tree.leaves(tuple(train))[0])
    m = _largest_divisor(examples, LARGEST_GROUP)
    sharpness["train"]["m_sharpness"] = _plain(jax.jit(lambda w, b: m_sharpness(loss, w, b, rho, m))(params, train))
    report("curvature")
    curvature = _hessian(point, train, eigenvalues, jax.random.fold_in(key, 0))
    report("g_v to second order")
    check = point.program(lambda f, w: second_order(f, w, rho))(train)
    report("landscapes")
    lines = _landscapes(point, train, test, rho, jax.random.fold_in(key, 1))
    size = sum(jnp.size(x) for x in jax.tree.leaves(params))
    norm = float(jnp.sqrt(pytree.squared_norm(params, pytree.accumulator(params))))
    worst = sharpness["train"]["loss"] + max(0.0, sharpness["train"]["ascent"])
    bound = pac_bayes_bound(trained_on or examples, size, norm, rho, worst_loss=worst)
    return {
        "rho": float(rho),
        "parameters": size,
        "weight_norm": norm,
        "ascent_steps": ASCENT_STEPS,
        "m": m,
        **sharpness,
        "hessian": curvature,
        "second_order": check,
        "landscape": lines,
        "bound": {"n": trained_on or examples, **bound._asdict()},
    }


def _sharpness(point: _Point, train: Batch, test: Batch, rho: float) -> Numbers:
    def numbers(loss: Callable[[Any], jax.Array], w: Any) -> dict[str, jax.Array]:
        return {
            "loss": loss(w),
            "one_step": one_step_sharpness(loss, w, rho),
            "ascent": ascent_sharpness(loss, w, rho, ASCENT_STEPS),
        }

    program = point.program(numbers)
    return {"train": program(train), "test": program(test)}


def _hessian(point: _Point, batch: Batch, count: int, key: jax.Array) -> Numbers:
    size = sum(jnp.size(x) for x in jax.tree.leaves(point.params))
    arguments.whole("eigenvalues", count)
    if count > size:
        raise ValueError(
            f"eigenvalues={count} exceeds the {size} eigenvalues that {size} parameters have; pass at most {size}."
        )
    keys = jax.random.split(key)
    top, steps = _eigenvalues(point, batch, count, keys[0])
    form = point.program(lambda f, w, k: hessian.quadratic_form(f, w, hessian.rademacher(k, w)))
    samples = jnp.asarray([form(batch, k) for k in jax.random.split(keys[1], PROBES)])
    trace = hessian.trace_of(samples)
    return {
        "eigenvalues": _plain(top.values),
        "residuals": _plain(top.residuals),
        "steps": steps,
        "trace": float(trace.value),
        "trace_error": float(trace.error),
        "probes": PROBES,
    }


def _eigenvalues(point: _Point, batch: Batch, count: int, key: jax.Array) -> tuple[hessian.Eigenvalues, int]:
    """Returns the top eigenvalues, by a loop on the host, which is faster for convolutions on a CPU."""

    @functools.partial(jax.jit, donate_argnums=2)
    def step(params: Any, batch: Batch, state: hessian.LanczosState) -> hessian.LanczosState:
        return hessian.lanczos_step(lambda w: point.loss(w, *batch), params, state)

    state = hessian.lanczos_start(point.params, LANCZOS_STEPS + 2 * count, key)
    for _ in range(len(state.diagonal)):
        state = step(point.params, tuple(batch), state)
    return hessian.ritz_values(state, count), len(state.diagonal)


def _landscapes(point: _Point, train: Batch, test: Batch, rho: float, key: jax.Array) -> Numbers:
    draw = jax.jit(landscape.random_direction)
    across, up = (draw(k, point.params) for k in jax.random.split(key))
    at, grid = np.linspace(-1, 1, LINE_POINTS), np.linspace(-1, 1, PLANE_POINTS)
    near = 2 * rho * at

    def named(loss: Callable[[Any], jax.Array], w: Any) -> dict[str, jax.Array]:
        parts = components(loss, w, rho)
        directions = {"g": parts.g, "g_v": parts.g_v}
        return {
            name: landscape.landscape_line(loss, w, landscape.unit_direction(x), near) for name, x in directions.items()
        }

    line = point.program(functools.partial(landscape.landscape_line, at=at))
    plane = point.program(functools.partial(landscape.landscape_plane, x=grid, y=grid))
    return {
        "line": {"at": _plain(at), "train": line(train, across), "test": line(test, across)},
        "plane": {"at": _plain(grid), "train": plane(train, across, up)},
        "named": {"distance": _plain(near), **point.program(named)(train)},
    }


def _largest_divisor(number: int, most: int) -> int:
    return max(m for m in range(1, min(number, most) + 1) if number % m == 0)


def _plain(tree: Any) -> Any:
    """Returns named tuples as dicts, and arrays as lists or numbers."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return np.asarray(tree).tolist()

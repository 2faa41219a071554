"""Every analysis at one point: the numbers that ``looksam analyze`` writes.

Each analysis is one part or several (``looksam.analysis.resumable``): a loop on the host over one compiled program, so
that it can report its progress and be resumed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam import arguments
from looksam.analysis import hessian, landscape, sharpness
from looksam.analysis.chunked_loss import chunked_loss
from looksam.analysis.decomposition import components, second_order
from looksam.analysis.pac_bayes import pac_bayes_bound
from looksam.analysis.resumable import InMemory, Kept, Loop, Part, Progress, measured
from looksam.rules import pytree, validation

Batch = Sequence[Any]
Numbers = dict[str, Any]  # nested dicts and lists of Python numbers

ASCENT_STEPS = 20
LARGEST_GROUP = 50  # examples in a group of m-sharpness
LANCZOS_STEPS = 40  # and two more for each eigenvalue, at most
LEAST_LANCZOS_STEPS = 10  # likewise, at least
CHECK_EVERY = 5  # steps, for the tolerance
TOLERANCE = 1e-3  # of the residuals, relative to the largest eigenvalue
PROBES = 30  # for the trace
LINE_POINTS = 41
PLANE_POINTS = 15
VALUE, GRADIENT, PRODUCT = 1, 3, 7  # rough cost per example, relative to one value of the loss


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
    at_once: int | None = None,
    kept: Kept | None = None,
    progress: Progress = lambda title, done, total: None,
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
      at_once: how many examples are processed at a time, which bounds the memory; by default all.
      kept: where finished parts are kept; a repeated call with the same one resumes.
      progress: called with what is being measured, the work done and all work of this call.
    """
    validation.positive("rho", rho)
    size = sum(jnp.size(x) for x in jax.tree.leaves(params))
    _check_eigenvalues(eigenvalues, size)
    examples = len(jax.tree.leaves(tuple(train))[0])
    point = _Point(loss if at_once is None else chunked_loss(loss, at_once), params)
    m = _largest_divisor(examples, LARGEST_GROUP)
    parts: dict[tuple[str, ...], Part] = {
        ("train",): _sharpness(point, "train", train, rho),
        ("test",): _sharpness(point, "test", test, rho),
        ("train", "m_sharpness"): _m_sharpness(loss, params, train, rho, m),
        ("hessian",): _eigenvalues(point, train, eigenvalues, jax.random.fold_in(key, 0)),
        ("hessian", "trace"): _trace(point, train, jax.random.fold_in(key, 0)),
        ("second_order",): _second_order(point, train, rho),
        **_landscapes(point, train, test, rho, jax.random.fold_in(key, 1)),
    }
    found = measured(list(parts.values()), kept or InMemory(), progress)
    result: Numbers = {"train": {}, "test": {}, "hessian": {}, "second_order": {}, "landscape": {}}
    for (name, *_), part in parts.items():
        result[name] |= found[part.name]
    norm = float(jnp.sqrt(pytree.squared_norm(params, pytree.accumulator(params))))
    worst = result["train"]["loss"] + max(0.0, result["train"]["ascent"])
    bound = pac_bayes_bound(trained_on or examples, size, norm, rho, worst_loss=worst)
    return {
        "rho": float(rho),
        "parameters": size,
        "weight_norm": norm,
        "ascent_steps": ASCENT_STEPS,
        "m": m,
        **result,
        "bound": {"n": trained_on or examples, **bound._asdict()},
    }


class _Point:
    """A loss of the form ``loss(params, *batch)`` at fixed weights; the batch is an argument of every program."""

    def __init__(self, loss: Callable[..., jax.Array], params: Any) -> None:
        self.loss, self.params = loss, params

    def program(self, function: Callable[..., Any], batch: Batch, donated: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Compiles ``program(*more)``: ``function(loss of the batch, params, *more)``; some of these are donated."""

        @functools.partial(jax.jit, donate_argnums=tuple(2 + i for i in donated))
        def compiled(params: Any, batch: Batch, *more: Any) -> Any:
            return function(lambda w: self.loss(w, *batch), params, *more)

        return lambda *more: compiled(self.params, tuple(batch), *more)


def _work(batch: Batch, per_example: float) -> float:
    return len(jax.tree.leaves(tuple(batch))[0]) * per_example


# --- sharpness ----------------------------------------------------------------------------------------------------


def _sharpness(point: _Point, name: str, batch: Batch, rho: float) -> Part:
    """L(w), the rise after one step of ascent, and the best rise after all of them."""

    def run(loop: Loop) -> Numbers:
        start = point.program(lambda f, w: sharpness.ascent_start(f, w, rho), batch)()
        step = point.program(lambda f, w, state: sharpness.ascent_step(f, w, state, rho), batch)
        rise = point.program(sharpness.ascent_rise, batch)
        one = rise(start)
        end = loop.run(start, lambda i, state: step(state), ASCENT_STEPS - 1)
        return {"loss": _plain(start.start), "one_step": _plain(one), "ascent": _plain(rise(end))}

    title = f"sharpness, {'training' if name == 'train' else name} images"
    work = _work(batch, GRADIENT * ASCENT_STEPS + 2 * VALUE)
    return Part(f"sharpness {name} rho={rho!r} steps={ASCENT_STEPS}", title, work, run)


def _m_sharpness(loss: Callable[..., jax.Array], params: Any, batch: Batch, rho: float, m: int) -> Part:
    def run(loop: Loop) -> Numbers:
        rise = jax.jit(lambda w, b: sharpness.m_sharpness(loss, w, b, rho, m))
        return {"m_sharpness": _plain(rise(params, tuple(batch)))}

    work = _work(batch, GRADIENT + VALUE)
    return Part(f"m_sharpness rho={rho!r} m={m}", f"sharpness, groups of {m} images", work, run)


# --- curvature ----------------------------------------------------------------------------------------------------


def _check_eigenvalues(count: int, size: int) -> None:
    if arguments.whole("eigenvalues", count) > size:
        raise ValueError(
            f"eigenvalues={count} exceeds the {size} eigenvalues that {size} parameters have; pass at most {size}."
        )


def _eigenvalues(point: _Point, batch: Batch, count: int, key: jax.Array) -> Part:
    """The top eigenvalues; ends as soon as their residuals are small."""
    most, least = LANCZOS_STEPS + 2 * count, LEAST_LANCZOS_STEPS + 2 * count

    def run(loop: Loop) -> Numbers:
        start = hessian.lanczos_start(point.params, most, jax.random.split(key)[0])
        start = start._replace(key=jax.random.key_data(start.key))  # as plain numbers, which can be kept
        rows = len(start.diagonal)

        def next_state(loss: hessian.Loss, w: Any, state: hessian.LanczosState) -> hessian.LanczosState:
            following = hessian.lanczos_step(loss, w, state._replace(key=jax.random.wrap_key_data(state.key)))
            return following._replace(key=state.key)

        def ended(state: hessian.LanczosState) -> bool:
            done = int(state.done)
            if done < least or done % CHECK_EVERY:
                return False
            top = hessian.ritz_values(state, count)
            return bool((top.residuals <= TOLERANCE * top.values[0]).all())

        step = point.program(next_state, batch, donated=(0,))
        end = loop.run(start, lambda i, state: step(state), rows, ended)
        top = hessian.ritz_values(end, count)
        return {"eigenvalues": _plain(top.values), "residuals": _plain(top.residuals), "steps": int(end.done)}

    name = f"eigenvalues count={count} steps={least}..{most} tolerance={TOLERANCE}"
    return Part(name, "eigenvalues of the Hessian", _work(batch, PRODUCT * most), run)


def _trace(point: _Point, batch: Batch, key: jax.Array) -> Part:
    def run(loop: Loop) -> Numbers:
        keys = jax.random.split(jax.random.split(key)[1], PROBES)
        form = point.program(lambda f, w, k: hessian.quadratic_form(f, w, hessian.rademacher(k, w)), batch)
        samples = loop.run(_empty(PROBES), lambda i, values: _with(values, i, form(keys[i])), PROBES)
        trace = hessian.trace_of(jnp.asarray(samples))
        return {"trace": float(trace.value), "trace_error": float(trace.error), "probes": PROBES}

    return Part(f"trace probes={PROBES}", "trace of the Hessian", _work(batch, PRODUCT * PROBES), run)


def _second_order(point: _Point, batch: Batch, rho: float) -> Part:
    def run(loop: Loop) -> Numbers:
        numbers: Numbers = _plain(point.program(lambda f, w: second_order(f, w, rho), batch)())
        return numbers

    work = _work(batch, 2 * GRADIENT + PRODUCT)
    return Part(f"second_order rho={rho!r}", "g_v to second order", work, run)


# --- landscapes ---------------------------------------------------------------------------------------------------


def _landscapes(point: _Point, train: Batch, test: Batch, rho: float, key: jax.Array) -> dict[tuple[str, ...], Part]:
    keys = jax.random.split(key)
    draw = functools.cache(lambda i: jax.jit(landscape.random_direction)(keys[i], point.params))
    at, grid = np.linspace(-1, 1, LINE_POINTS), np.linspace(-1, 1, PLANE_POINTS)
    return {
        ("landscape", "line"): _line(point, train, test, draw, at),
        ("landscape", "plane"): _plane(point, train, draw, grid),
        ("landscape", "named"): _named(point, train, rho, 2 * rho * at),
    }


def _line(point: _Point, train: Batch, test: Batch, draw: Callable[[int], Any], at: np.ndarray) -> Part:
    """The loss along a random direction, on both batches."""

    def run(loop: Loop) -> Numbers:
        lines = [point.program(landscape.landscape_line, batch) for batch in (train, test)]

        def step(i: int, values: np.ndarray) -> np.ndarray:
            return _with(values, i, [line(draw(0), at[i : i + 1])[0] for line in lines])

        values = loop.run(_empty(len(at), 2), step, len(at))
        return {"line": {"at": _plain(at), "train": _plain(values[:, 0]), "test": _plain(values[:, 1])}}

    work = _work(train, VALUE * len(at)) + _work(test, VALUE * len(at))
    return Part(f"line points={len(at)}", "loss along a random direction", work, run)


def _plane(point: _Point, train: Batch, draw: Callable[[int], Any], grid: np.ndarray) -> Part:
    """The loss over the plane of two random directions, row by row."""

    def run(loop: Loop) -> Numbers:
        plane = point.program(landscape.landscape_plane, train)

        def step(i: int, rows: np.ndarray) -> np.ndarray:
            return _with(rows, i, plane(draw(0), draw(1), grid, grid[i : i + 1])[0])

        rows = loop.run(_empty(len(grid), len(grid)), step, len(grid))
        return {"plane": {"at": _plain(grid), "train": _plain(rows)}}

    work = _work(train, VALUE * len(grid) ** 2)
    return Part(f"plane points={len(grid)}", "loss over a random plane", work, run)


def _named(point: _Point, train: Batch, rho: float, distance: np.ndarray) -> Part:
    """The loss along g and g_v, which are computed again where the loop resumes."""

    def directions(loss: Callable[[Any], jax.Array], w: Any) -> tuple[Any, Any]:
        parts = components(loss, w, rho)
        return landscape.unit_direction(parts.g), landscape.unit_direction(parts.g_v)

    def run(loop: Loop) -> Numbers:
        both = point.program(directions, train)()
        line = point.program(landscape.landscape_line, train)

        def step(i: int, values: np.ndarray) -> np.ndarray:
            return _with(values, i, [line(direction, distance[i : i + 1])[0] for direction in both])

        values = loop.run(_empty(len(distance), 2), step, len(distance))
        return {"named": {"distance": _plain(distance), "g": _plain(values[:, 0]), "g_v": _plain(values[:, 1])}}

    work = _work(train, 2 * GRADIENT + 2 * VALUE * len(distance))
    return Part(f"named rho={rho!r} points={len(distance)}", "loss along g and g_v", work, run)


def _empty(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan)


def _with(values: np.ndarray, i: int, entry: Any) -> np.ndarray:
    """Returns a copy of the values with another entry i."""
    values = np.array(values)
    values[i] = np.asarray(entry)
    return values


def _largest_divisor(number: int, most: int) -> int:
    return max(m for m in range(1, min(number, most) + 1) if number % m == 0)


def _plain(tree: Any) -> Any:
    """Returns named tuples as dicts, and arrays as lists or numbers."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return np.asarray(tree).tolist()

"""The curvature of the loss: products with the Hessian H, its largest eigenvalues and its trace.

H is never formed. A product H v costs about two gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from looksam import arguments
from looksam.rules import pytree

Loss = Callable[[Any], jax.Array]  # loss(params), a scalar


class Eigenvalues(NamedTuple):
    """Estimates of the largest eigenvalues of H."""

    values: jax.Array  # (count,), the largest first
    residuals: jax.Array  # (count,): some eigenvalue of H is at most this far from the value


class Trace(NamedTuple):
    """An estimate of the trace of H."""

    value: jax.Array
    error: jax.Array  # one standard error; NaN with a single probe


class LanczosState(NamedTuple):
    """The state of Lanczos' method between two products with H."""

    done: jax.Array  # number of products so far
    basis: jax.Array  # (steps, parameters): orthonormal rows, 0 where not reached yet
    diagonal: jax.Array  # (steps,) of the tridiagonal matrix
    off_diagonal: jax.Array  # (steps,) next to the diagonal; the last is the norm of the remainder
    largest: jax.Array  # max ‖H q‖ so far, the scale of rounding
    key: jax.Array


def hessian_vector_product(loss: Loss, params: Any, v: Any) -> Any:
    """Returns H v, with H the Hessian of ``loss`` at ``params``, by forward-over-reverse-mode differentiation.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import hessian_vector_product
      >>> print(hessian_vector_product(lambda w: w[0] ** 2 * w[1], jnp.array([3.0, 5.0]), jnp.array([1.0, 0.0])))
      [10.  6.]
    """
    return jax.jvp(jax.grad(loss), (params,), (pytree.cast_like(v, params),))[1]


def quadratic_form(loss: Loss, params: Any, v: Any) -> jax.Array:
    """Returns vᵀ H v."""
    dtype = pytree.accumulator(params)
    return pytree.squared_norm_and_dot(v, hessian_vector_product(loss, params, v), dtype)[1]


def top_eigenvalues(loss: Loss, params: Any, count: int, steps: int, key: jax.Array) -> Eigenvalues:
    """Returns the ``count`` largest eigenvalues of the Hessian, by Lanczos' method with full reorthogonalisation.

    "Largest" respects the sign: a large negative eigenvalue is not among them. The basis holds ``steps`` copies of the
    parameters, in float64 where JAX has that enabled and else in float32. Where the basis spans an invariant subspace
    of H, it continues from a new random vector, so that repeated eigenvalues are found too.

    Args:
      loss: ``loss(params)``, a scalar.
      params: where H is taken, a pytree.
      count: number of eigenvalues.
      steps: number of products with H, ≥ count; at most the number of parameters is used, and then all eigenvalues are
        exact. The residuals tell whether it was enough.
      key: for the random start.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.analysis import top_eigenvalues
      >>> loss = lambda w: 2 * w[0] ** 2 + 0.5 * w[1] ** 2 - w[2] ** 2
      >>> top = top_eigenvalues(loss, jnp.ones(3), count=2, steps=3, key=jax.random.key(0))
      >>> [f"{value:.3f}" for value in top.values]
      ['4.000', '1.000']
    """
    _check_count(arguments.whole("count", count), arguments.whole("steps", steps), _size(params))
    start = lanczos_start(params, steps, key)
    end = lax.fori_loop(0, len(start.diagonal), lambda _, state: lanczos_step(loss, params, state), start)
    return ritz_values(end, count)


def lanczos_start(params: Any, steps: int, key: jax.Array) -> LanczosState:
    """Returns the state of ``top_eigenvalues`` before its first product, for a loop of your own over ``lanczos_step``.

    A loop on the host over one jitted step is many times faster on a CPU if the model has JAX's own convolutions: XLA
    has no fast path for their gradients inside its own loops (``looksam.conv_general_dilated`` has).
    """
    dtype, size = jnp.dtype(jax.dtypes.canonicalize_dtype(jnp.float64)), _size(params)
    zeros = jnp.zeros(min(arguments.whole("steps", steps), size), dtype)
    basis = jnp.zeros((*zeros.shape, size), dtype).at[0].set(_random_unit(key, 0, zeros[0], size))
    return LanczosState(jnp.zeros((), jnp.int32), basis, zeros, jnp.zeros_like(zeros), jnp.zeros((), dtype), key)


def lanczos_step(loss: Loss, params: Any, state: LanczosState) -> LanczosState:
    """Takes one product with H; call it once for each row of the basis, ``len(state.diagonal)`` times."""
    j, basis = state.done, state.basis
    unflatten = ravel_pytree(pytree.cast(params, basis.dtype))[1]
    product = hessian_vector_product(loss, params, unflatten(basis[j]))
    h_q = ravel_pytree(pytree.cast(product, basis.dtype))[0]
    rest = _orthogonal(h_q, basis)
    length, largest = _norm(rest), jnp.maximum(state.largest, _norm(h_q))
    ended = length <= 16 * jnp.finfo(basis.dtype).eps * largest  # the remainder is rounding
    drawn = lambda: _random_unit(state.key, j + 1, length, basis.shape[1])
    following = lax.cond(ended, drawn, lambda: _unit(rest))
    # orthogonalised again at unit length, for a remainder that was short
    following = _unit(_orthogonal(following, basis))
    return LanczosState(
        j + 1,
        basis.at[j + 1].set(following, mode="drop"),
        state.diagonal.at[j].set(jnp.sum(basis[j] * h_q)),
        state.off_diagonal.at[j].set(jnp.where(ended, jnp.zeros_like(length), length)),
        largest,
        state.key,
    )


def ritz_values(state: LanczosState, count: int) -> Eigenvalues:
    """Returns the largest eigenvalues of the tridiagonal matrix, and how far from eigenvalues of H they may be.

    Outside of ``jit`` it may be called after any number of products: these may be enough.
    """
    rows = len(state.diagonal) if isinstance(state.done, jax.core.Tracer) else int(state.done)
    between = jnp.diag(state.off_diagonal[: rows - 1], 1)
    values, vectors = jnp.linalg.eigh(jnp.diag(state.diagonal[:rows]) + between + between.T)
    residuals = state.off_diagonal[rows - 1] * jnp.abs(vectors[-1])
    return Eigenvalues(values[::-1][:count], residuals[::-1][:count])


def rademacher(key: jax.Array, params: Any) -> Any:
    """Returns a random probe shaped like ``params``: +1 or −1 in each entry, with equal probability."""
    flat, unflatten = ravel_pytree(pytree.cast(params, pytree.accumulator(params)))
    return unflatten(jax.random.rademacher(key, flat.shape, flat.dtype))


def trace(loss: Loss, params: Any, probes: int, key: jax.Array) -> Trace:
    """Returns Hutchinson's estimate of the trace of the Hessian: the mean of zᵀ H z over random z of ±1.

    It is unbiased, and exact for a diagonal H. Each probe takes one product with H, one after another.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.analysis import trace
      >>> print(trace(lambda w: jnp.sum(w**3), jnp.array([1.0, 2.0]), probes=4, key=jax.random.key(0)).value)
      18.0
    """
    keys = jax.random.split(key, arguments.whole("probes", probes))
    return trace_of(lax.map(lambda key: quadratic_form(loss, params, rademacher(key, params)), keys))


def trace_of(samples: jax.Array) -> Trace:
    """Returns the estimate of the trace from given values of zᵀ H z, (probes,)."""
    probes, mean = len(samples), jnp.mean(samples)
    squares = jnp.sum(jnp.square(samples - mean))
    error = jnp.sqrt(squares / (probes * (probes - 1))) if probes > 1 else jnp.full_like(mean, jnp.nan)
    return Trace(mean, error)


def _size(params: Any) -> int:
    return sum(jnp.size(x) for x in jax.tree.leaves(params))


def _random_unit(key: jax.Array, number: Any, like: jax.Array, size: int) -> jax.Array:
    return _unit(jax.random.normal(jax.random.fold_in(key, number), (size,), like.dtype))


def _orthogonal(x: jax.Array, basis: jax.Array) -> jax.Array:
    """Returns the part of x orthogonal to the rows of the basis; projected twice, since once leaves rounding errors."""
    for _ in range(2):
        along = jnp.matmul(basis, x, precision=lax.Precision.HIGHEST)
        x = x - jnp.matmul(along, basis, precision=lax.Precision.HIGHEST)
    return x


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _unit(x: jax.Array) -> jax.Array:
    """Returns x/‖x‖, and 0 where x is 0."""
    return x * pytree.divide(jnp.ones((), x.dtype), _norm(x))


def _check_count(count: int, steps: int, size: int) -> None:
    if count > size:
        raise ValueError(
            f"count={count} exceeds the {size} eigenvalues that {size} parameters have; pass at most {size}."
        )
    if count > steps:
        raise ValueError(f"steps={steps} finds at most {steps} eigenvalues, not count={count}; pass steps >= {count}.")

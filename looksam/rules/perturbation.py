"""The perturbation ε = ρ · perturbation(g, w), the first choice of a rule: where SAM takes its second gradient.

All perturbations are built from one direction, ``steepest``: the unit vector of the p-norm along which the loss rises
fastest. A perturbation of your own is any function ``(g, params, dtype) -> ε/ρ``. Those here are objects instead of
closures, so that rules can be pickled and shown. The numbers in parentheses are the equations of docs/maths.md.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from looksam import arguments
from looksam.arguments import Scaling
from looksam.rules import pytree, validation
from looksam.rules.pytree import Scalar, Vector

ByPath = Callable[[str], bool]  # a parameter's path, like "block/kernel", to yes or no
Layers = Callable[[str], Hashable]  # a parameter's path, like "block/kernel", to the name of its layer
Perturbation = Callable[[Vector, Vector, DTypeLike], Vector]  # (g, params, accumulator) -> ε / ρ


@dataclass(frozen=True)
class GlobalPerturbation:
    """SAM's perturbation; create one with ``global_perturbation``."""

    p: float

    def __call__(self, g: Vector, params: Vector, dtype: DTypeLike) -> Vector:
        del params
        return steepest(g, self.p, dtype)


def global_perturbation(p: float = 2.0) -> Perturbation:
    """SAM's perturbation: one direction of p-norm 1 for the whole parameter vector.

    Args:
      p: norm in which the radius is measured, 1 < p ≤ ∞.
    """
    return GlobalPerturbation(arguments.exponent(p))


@dataclass(frozen=True)
class LayerwisePerturbation:
    """LayerSAM's perturbation; create one with ``layerwise_perturbation``."""

    p: float
    scaling: str
    layers: Layers | None

    def __call__(self, g: Vector, params: Vector, dtype: DTypeLike) -> Vector:
        names = layer_names(params, self.layers)
        weight_norms = layer_norms(params, names, dtype)  # T
        if self.scaling == "adaptive":
            return _times(weight_norms, steepest(_times(weight_norms, g), self.p, dtype))  # (6)
        if self.scaling == "normalized":  # does not depend on the scale of g; a unit g keeps Λ and ‖u‖ in range
            g = steepest(g, 2, dtype)
        ratios = jax.tree.map(pytree.divide, weight_norms, layer_norms(g, names, dtype))  # Λ, 0 where g_i = 0
        u = _times(ratios, steepest(g, self.p, dtype))
        if self.scaling == "literal":
            return u  # (5)
        length = p_norm(u, self.p, dtype)
        return pytree.scale(pytree.divide(jnp.ones_like(length), length), u)  # (4)


def layerwise_perturbation(
    p: float = 2.0, scaling: Scaling = "normalized", layers: Layers | None = None
) -> Perturbation:
    """LayerSAM's perturbation: each layer's part is scaled by the norm of the layer's own weights.

    Args:
      p, scaling, layers: as for ``looksam.layer_sam``.
    """
    arguments.name_function("layers", layers, "block/kernel", "the name of its layer")
    return LayerwisePerturbation(arguments.exponent(p), arguments.layer_scaling(scaling), layers)


@dataclass(frozen=True, eq=False)
class ElementwisePerturbation:
    """ASAM's perturbation; create one with ``elementwise_perturbation``."""

    p: float
    eta: ArrayLike
    scale: ByPath | None

    def __call__(self, g: Vector, params: Vector, dtype: DTypeLike) -> Vector:
        sizes = jax.tree_util.tree_map_with_path(lambda path, w: self._size(path, w, dtype), params)  # T
        return _times(sizes, steepest(_times(sizes, g), self.p, dtype))  # (12)

    def _size(self, path: Any, w: jax.Array, dtype: DTypeLike) -> jax.Array:
        is_scaled = self.scale is None or self.scale(pytree.path_string(path))
        return jnp.abs(jnp.asarray(w, dtype)) + jnp.asarray(self.eta, dtype) if is_scaled else jnp.ones((), dtype)


def elementwise_perturbation(p: float = 2.0, eta: ArrayLike = 0.01, scale: ByPath | None = None) -> Perturbation:
    """ASAM's perturbation: the radius of each weight is measured in units of its own size, T = |w| + η.

    Args:
      p, eta, scale: as for ``looksam.asam``.
    """
    arguments.name_function("scale", scale, "block/kernel", "True or False")
    return ElementwisePerturbation(arguments.exponent(p), validation.non_negative("eta", eta), scale)


def steepest(g: Vector, p: float, dtype: DTypeLike) -> Vector:
    """Returns sign(g) |g|^(q-1) / (‖g‖_q^q)^(1/p) with 1/p + 1/q = 1: its p-norm is 1, or 0 where g is 0."""
    if p == 2:
        norm = jnp.sqrt(pytree.squared_norm(g, dtype))
        return pytree.scale(pytree.divide(jnp.ones_like(norm), norm), g)  # (1)
    if math.isinf(p):
        return jax.tree.map(jnp.sign, g)  # (2)
    # The direction does not depend on the scale of g. Dividing by max |g| first keeps |g|^q in range.
    q = p / (p - 1)
    unit = pytree.scale(pytree.divide(jnp.ones((), dtype), pytree.largest(g, dtype)), g)
    powers = jax.tree.map(lambda r: jnp.sum(jnp.abs(r) ** q), unit)
    length = pytree.total(powers, dtype) ** (1 / p)
    return jax.tree.map(lambda r: pytree.divide(jnp.sign(r) * jnp.abs(r) ** (q - 1), length), unit)  # (3)


def p_norm(x: Vector, p: float, dtype: DTypeLike) -> Scalar:
    """Returns ‖x‖_p over the whole vector."""
    if p == 2:
        return jnp.sqrt(pytree.squared_norm(x, dtype))
    largest = pytree.largest(x, dtype)
    if math.isinf(p):
        return largest
    powers = jax.tree.map(lambda a: jnp.sum(pytree.divide(jnp.abs(a), largest) ** p), x)
    return largest * pytree.total(powers, dtype) ** (1 / p)


def layer_names(params: Vector, layers: Layers | None) -> list[Hashable]:
    """Returns the name of each leaf's layer; by default every tensor is a layer of its own."""
    paths = [pytree.path_string(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return [layers(path) if layers else path for path in paths]


def layer_norms(x: Vector, names: list[Hashable], dtype: DTypeLike) -> Vector:
    """Returns, for each leaf, the 2-norm of the layer that it belongs to."""
    leaves, structure = jax.tree.flatten(x)
    sums: dict[Hashable, Scalar] = {}
    for name, leaf in zip(names, leaves, strict=True):
        sums[name] = sums.get(name, 0) + pytree.squared_norm(leaf, dtype)
    return jax.tree.unflatten(structure, [jnp.sqrt(sums[name]) for name in names])


def _times(factors: Vector, x: Vector) -> Vector:
    return jax.tree.map(lambda factor, leaf: factor * leaf, factors, x)

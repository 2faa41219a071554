"""All rules with the settings of the tests, and a small smooth problem on an awkward pytree for JAX and for NumPy."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from oracle import LAMB, REFERENCES, SGDM, AdamW

import looksam
from looksam.methods import METHODS

SETTINGS = {"rho": 0.1, "k": 3, "alpha": 0.7, "scaling": "normalized"}  # p keeps its default
EVERY_RULE = tuple(method for method in METHODS.values() if method.is_rule)

# name: (factory with these settings, the settings that it takes); the suites run over all of them
RULES = {
    method.name: (functools.partial(getattr(looksam, method.name), **settings), settings)
    for method in EVERY_RULE
    for settings in [{name: SETTINGS[name] for name in method.settings if name in SETTINGS}]
}
PERIODIC_RULES = tuple(method.name for method in EVERY_RULE if method.has_period)
LOOK_RULES = tuple(method.name for method in EVERY_RULE if method.reuses)
ONE_GRADIENT_RULES = tuple(method.name for method in EVERY_RULE if not method.takes_second_gradient)
TWO_GRADIENT_RULES = tuple(name for name in RULES if name not in ONE_GRADIENT_RULES)
LAYER_RULES = tuple(method.name for method in EVERY_RULE if "scaling" in method.settings)
P_RULES = tuple(method.name for method in EVERY_RULE if "p" in method.settings)


def build(name, **options):
    """The rule with the settings of the tests, some replaced."""
    return RULES[name][0](**options)


def reference(name, **options):
    """The NumPy reference of the same rule."""
    return REFERENCES[name](**(RULES[name][1] | options))


AWKWARD = {  # a scalar, an empty leaf, a leaf the loss does not see, and one that starts at zero
    "matrix": (3, 2),
    "nested": {"vector": (4,), "scalar": ()},
    "empty": (0, 3),
    "unseen": (2,),
    "zero": (3,),
}

OPTIMIZERS = {
    "sgdm": (lambda rate: optax.sgd(rate, momentum=0.9), SGDM),
    "adamw": (lambda rate: optax.adamw(rate, weight_decay=0.01), AdamW),
    "lamb": (lambda rate: optax.lamb(rate, weight_decay=0.01), LAMB),
}


@dataclass(frozen=True)
class Problem:
    """L(w) = Σ h/2 (w − c)² + s/4 (Σ wᵢ/√n)⁴ + Σ w⁴/8 over the seen part of one flat vector."""

    params: dict
    curvature: np.ndarray
    centre: np.ndarray
    seen: np.ndarray
    leaves: tuple  # the slice of each leaf in the flat vector, in jax.tree order

    def loss(self, params, shift=0.0):
        flat = jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(params)])
        w = flat * self.seen
        bowl = jnp.sum(self.curvature * self.seen * (flat - self.centre - shift) ** 2) / 2
        return bowl + jnp.mean(w) ** 4 * 20 + jnp.sum(w**4) / 8

    def gradient(self, w):
        """∇L by hand."""
        seen = w * self.seen
        coupling = 80 * np.mean(seen) ** 3 / w.size
        return self.seen * (self.curvature * (w - self.centre) + coupling + seen**3 / 2)

    def flat(self, tree):
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])


def make_problem(seed=0, shapes=AWKWARD):
    random = np.random.default_rng(seed)
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    arrays, leaves, seen, start = [], [], [], 0
    for name, (_, shape) in zip(names, paths, strict=True):
        size = int(np.prod(shape))
        arrays.append(jnp.zeros(shape) if "zero" in name else jnp.asarray(random.normal(size=shape)))
        leaves.append(slice(start, start + size))
        seen.append(np.full(size, 0.0 if "unseen" in name else 1.0))
        start += size
    return Problem(
        params=jax.tree.unflatten(structure, arrays),
        curvature=random.uniform(0.1, 5.0, start),
        centre=random.uniform(0.2, 1.0, start) * random.choice([-1, 1], start),
        seen=np.concatenate(seen),
        leaves=tuple(leaves),
    )

"""References of the rules and of three optimizers, in plain NumPy float64, written from the formulas.

All parameters are one flat vector. Nothing here comes from looksam or Optax, which are tested against it. A new rule
needs an entry in ``REFERENCES``: ``RuleOracle`` if its settings are enough, or else a subclass with its own formula.
"""

import functools
import math
from dataclasses import dataclass, field

import numpy as np

EPS = np.finfo(np.float64).eps


@dataclass
class RuleOracle:
    """A rule with its state, stepped one minibatch at a time."""

    rho: float
    k: int = 1
    alpha: float | None = None  # of the steps between refreshes; None: the plain gradient there
    p: float = 2.0
    scaling: str | None = None  # of layer-wise perturbations; None: the global one
    layers: list = field(default_factory=list)  # slices of the flat vector, for layer-wise perturbations
    eta: float | None = None  # of the element-wise perturbation; None: another one
    scaled: np.ndarray | None = None  # which entries it scales; None: all
    gsam_alpha: float | None = None  # of what a refresh returns; None: g_s
    start: int = 0
    stop: int | None = None
    perturbed: np.ndarray | None = None  # which entries are; None: all
    count: int = 0
    g_v: np.ndarray | None = None

    def epsilon(self, g, w):
        """The perturbation: that of the perturbed entries alone, and 0 elsewhere."""
        if self.perturbed is None:
            return self.rho * self.direction(g, w, np.ones(g.size, bool))
        moved = np.zeros_like(g)
        moved[self.perturbed] = self.direction(g[self.perturbed], w[self.perturbed], self.perturbed)
        return self.rho * moved

    def direction(self, g, w, entries):
        """ε/ρ of the given entries of the whole vector."""
        q = 1.0 if math.isinf(self.p) else self.p / (self.p - 1)
        one_over_p = 0.0 if math.isinf(self.p) else 1 / self.p
        if self.eta is not None:
            scaled = np.ones(g.size, bool) if self.scaled is None else self.scaled[entries]
            size = np.where(scaled, np.abs(w) + self.eta, 1.0)
            return size * power(size * g, q) / denominator(size * g, q, one_over_p)
        if self.scaling is None:
            return power(g, q) / denominator(g, q, one_over_p)
        weight, ratio = np.zeros_like(g), np.zeros_like(g)
        positions = np.cumsum(entries) - 1  # of the entries of the whole vector among the given ones
        for layer in self.layers:
            own = positions[layer][entries[layer]]
            size_w, size_g = math.sqrt(np.sum(w[own] ** 2)), math.sqrt(np.sum(g[own] ** 2))
            weight[own] = size_w
            ratio[own] = size_w / size_g if size_g > 0 else 0.0
        if self.scaling == "adaptive":
            scaled = weight * g
            return weight * power(scaled, q) / denominator(scaled, q, one_over_p)
        u = ratio * power(g, q)
        if self.scaling == "literal":
            return u / denominator(g, q, one_over_p)
        size_u = np.max(np.abs(u), initial=0.0) if math.isinf(self.p) else np.sum(np.abs(u) ** self.p) ** one_over_p
        return u / size_u if size_u > 0 else np.zeros_like(u)

    def refreshed(self, g, g_s):
        """The gradient that a refresh returns; keeps g_v."""
        g_v = g_s - (g @ g_s) / (g @ g) * g if g @ g > 0 else np.zeros_like(g)
        if math.sqrt(g_v @ g_v) <= 16 * EPS * math.sqrt(g_s @ g_s):
            g_v = np.zeros_like(g_v)
        self.g_v = g_v
        if self.gsam_alpha is None or not g_s @ g_s > 0:
            return g_s
        across = g - (g @ g_s) / (g_s @ g_s) * g_s
        if math.sqrt(across @ across) <= 16 * EPS * math.sqrt(g @ g):
            return g_s
        return g_s - self.gsam_alpha * across

    def reused(self, g):
        """The gradient that the steps between two refreshes return."""
        if self.alpha is None or self.g_v is None or not np.any(self.g_v):
            return g
        return g + self.alpha * math.sqrt(g @ g) / math.sqrt(self.g_v @ self.g_v) * self.g_v

    def acts(self):
        """Whether the next step is between start and stop."""
        return self.start <= self.count and (self.stop is None or self.count < self.stop)

    def step(self, gradient, w):
        """The gradient that the optimizer sees, and the expected info of the step."""
        g, refresh = gradient(w), self.acts() and (self.count - self.start) % self.k == 0
        if not self.acts():
            self.g_v = None
        self.count += 1
        returned = self.refreshed(g, gradient(w + self.epsilon(g, w))) if refresh else self.reused(g)
        norm_g = math.sqrt(g @ g)
        keeps = self.g_v is not None and (refresh or self.alpha is not None)
        norm_v = math.sqrt(self.g_v @ self.g_v) if keeps else 0.0
        norm = math.sqrt(returned @ returned)
        cosine = 1.0 if norm_g == 0 else (g @ returned) / norm_g / norm if norm > 0 else 0.0
        return returned, (norm_g, norm, norm_v, cosine, refresh)


@dataclass
class MomentumOracle(RuleOracle):
    """MSAM: the only gradient of a step is taken against the momentum."""

    momentum: float = 0.9
    v: np.ndarray | float = 0.0

    def step(self, gradient, w):
        acts = self.acts()
        self.count += 1
        if not acts:
            g = gradient(w)
        else:
            v = np.where(self.perturbed if self.perturbed is not None else True, self.v, 0.0) + np.zeros_like(w)
            size = math.sqrt(v @ v)
            g = gradient(w - self.rho * v / size if size > 0 else w)
            self.v = self.momentum * self.v + g
        norm = math.sqrt(g @ g)
        return g, (norm, norm, 0.0, 1.0, acts)


def gsam(alpha, **settings):
    """GSAM's α weighs what a refresh returns."""
    return RuleOracle(gsam_alpha=alpha, **settings)


REFERENCES = {  # by the name of the rule
    "sam": RuleOracle,
    "sam_k": RuleOracle,
    "look_sam": RuleOracle,
    "layer_sam": RuleOracle,
    "look_layer_sam": RuleOracle,
    "asam": functools.partial(RuleOracle, eta=0.01),
    "gsam": gsam,
    "msam": MomentumOracle,
}


def power(g, q):
    return np.sign(g) * np.abs(g) ** (q - 1) if q != 1 else np.sign(g)


def denominator(g, q, one_over_p):
    total = np.sum(np.abs(g) ** q) ** one_over_p
    return total if total > 0 else 1.0


class SGDM:
    """SGD with heavy-ball momentum 0.9."""

    def __init__(self, learning_rate):
        self.learning_rate, self.velocity = learning_rate, 0.0

    def step(self, w, g, leaves):
        self.velocity = 0.9 * self.velocity + g
        return w - self.learning_rate * self.velocity


class Adam:
    """Adam's direction with bias correction, the base of AdamW and LAMB."""

    def __init__(self, learning_rate, epsilon, decay):
        self.learning_rate, self.epsilon, self.decay = learning_rate, epsilon, decay
        self.mean, self.square, self.count = 0.0, 0.0, 0

    def direction(self, w, g):
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * g
        self.square = 0.999 * self.square + 0.001 * g**2
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        return mean / (np.sqrt(square) + self.epsilon) + self.decay * w


class AdamW(Adam):
    def __init__(self, learning_rate):
        super().__init__(learning_rate, epsilon=1e-8, decay=0.01)

    def step(self, w, g, leaves):
        return w - self.learning_rate * self.direction(w, g)


class LAMB(Adam):
    def __init__(self, learning_rate):
        super().__init__(learning_rate, epsilon=1e-6, decay=0.01)

    def step(self, w, g, leaves):
        direction, w = self.direction(w, g), w.copy()
        for leaf in leaves:  # one trust ratio per tensor, 1 where either norm is 0
            size_w, size_d = np.linalg.norm(w[leaf]), np.linalg.norm(direction[leaf])
            trust = size_w / size_d if size_w > 0 and size_d > 0 else 1.0
            w[leaf] = w[leaf] - self.learning_rate * trust * direction[leaf]
        return w

"""References of the rules and of three optimizers, in plain NumPy float64, written from the formulas.

All parameters are one flat vector. Nothing here comes from looksam or Optax, which are tested against it. A new rule
needs an entry in ``REFERENCES``: ``RuleOracle`` if its settings are enough, or else a subclass with its own formula.
"""

import math
from dataclasses import dataclass, field

import numpy as np

EPS = np.finfo(np.float64).eps


@dataclass
class RuleOracle:
    """A rule with its state, stepped one minibatch at a time."""

    rho: float
    k: int = 1
    alpha: float | None = None  # None: the plain gradient between refreshes
    p: float = 2.0
    scaling: str | None = None  # None: the global perturbation
    layers: list = field(default_factory=list)  # slices of the flat vector, for layer-wise perturbations
    count: int = 0
    g_v: np.ndarray | None = None

    def epsilon(self, g, w):
        """The perturbation."""
        q = 1.0 if math.isinf(self.p) else self.p / (self.p - 1)
        one_over_p = 0.0 if math.isinf(self.p) else 1 / self.p
        if self.scaling is None:
            return self.rho * power(g, q) / denominator(g, q, one_over_p)
        weight, ratio = np.zeros_like(g), np.zeros_like(g)
        for layer in self.layers:
            size_w, size_g = math.sqrt(np.sum(w[layer] ** 2)), math.sqrt(np.sum(g[layer] ** 2))
            weight[layer] = size_w
            ratio[layer] = size_w / size_g if size_g > 0 else 0.0
        if self.scaling == "adaptive":
            scaled = weight * g
            return self.rho * weight * power(scaled, q) / denominator(scaled, q, one_over_p)
        u = ratio * power(g, q)
        if self.scaling == "literal":
            return self.rho * u / denominator(g, q, one_over_p)
        size_u = np.max(np.abs(u), initial=0.0) if math.isinf(self.p) else np.sum(np.abs(u) ** self.p) ** one_over_p
        return self.rho * u / size_u if size_u > 0 else np.zeros_like(u)

    def refreshed(self, g, g_s):
        """The gradient that a refresh returns; keeps g_v."""
        g_v = g_s - (g @ g_s) / (g @ g) * g if g @ g > 0 else np.zeros_like(g)
        if math.sqrt(g_v @ g_v) <= 16 * EPS * math.sqrt(g_s @ g_s):
            g_v = np.zeros_like(g_v)
        self.g_v = g_v
        return g_s

    def reused(self, g):
        """The gradient that the steps between two refreshes return."""
        if self.alpha is None or not np.any(self.g_v):
            return g
        return g + self.alpha * math.sqrt(g @ g) / math.sqrt(self.g_v @ self.g_v) * self.g_v

    def step(self, gradient, w):
        """The gradient that the optimizer sees, and the expected info of the step."""
        g, refresh = gradient(w), self.count % self.k == 0
        self.count += 1
        returned = self.refreshed(g, gradient(w + self.epsilon(g, w))) if refresh else self.reused(g)
        norm_g = math.sqrt(g @ g)
        norm_v = math.sqrt(self.g_v @ self.g_v) if refresh or self.alpha is not None else 0.0
        norm = math.sqrt(returned @ returned)
        cosine = 1.0 if norm_g == 0 else (g @ returned) / norm_g / norm if norm > 0 else 0.0
        return returned, (norm_g, norm, norm_v, cosine, refresh)


REFERENCES = {  # by the name of the rule
    "sam": RuleOracle,
    "sam_k": RuleOracle,
    "look_sam": RuleOracle,
    "layer_sam": RuleOracle,
    "look_layer_sam": RuleOracle,
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

"""LookSAM for an Equinox model, on scikit-learn's digits: pip install 'looksam[jax]' equinox scikit-learn

python examples/jax_equinox.py
"""

import equinox as eqx
import jax
import numpy as np
import optax
import sklearn.datasets
from sklearn.model_selection import train_test_split

import looksam

EPOCHS, BATCH = 15, 64


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((images / 16).astype("float32"), labels, random_state=0)

    model = eqx.nn.MLP(64, 10, width_size=128, depth=1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)  # a rule takes arrays; the rest is put back below
    rule, tx = looksam.look_sam(rho=0.1, alpha=0.5, k=5), optax.adamw(3e-3)
    rule_state, opt_state = rule.init(params), tx.init(params)

    def value_and_grad(params, x, y):
        return eqx.filter_value_and_grad(loss_fn)(eqx.combine(params, static), x, y)

    @eqx.filter_jit
    def train_step(params, rule_state, opt_state, x, y):
        loss, grads, rule_state, info = rule.gradient(value_and_grad, params, rule_state, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), rule_state, opt_state, loss, info

    random = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for rows in np.split(random.permutation(len(x))[: 21 * BATCH], 21):
            params, rule_state, opt_state, loss, info = train_step(params, rule_state, opt_state, x[rows], y[rows])
        print(f"epoch {epoch}: loss {loss:.4f}, |g| {info.grad_norm:.3f}")

    model = eqx.combine(params, static)
    accuracy = float(np.mean(np.argmax(jax.vmap(model)(x_test), -1) == y_test))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()

"""LookSAM in a plain JAX loop, on scikit-learn's digits: pip install 'looksam[jax]' scikit-learn

python examples/jax_loop.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sklearn.datasets
from sklearn.model_selection import train_test_split

import looksam

EPOCHS, BATCH = 20, 64


def init(key):
    first, last = jax.random.split(key)
    he = jax.nn.initializers.he_normal()
    return {
        "first": {"kernel": he(first, (64, 128)), "bias": jnp.zeros(128)},
        "last": {"kernel": he(last, (128, 10)), "bias": jnp.zeros(10)},
    }


def logits(params, x):
    hidden = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["last"]["kernel"] + params["last"]["bias"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((images / 16).astype("float32"), labels, random_state=0)
    steps = EPOCHS * (len(x) // BATCH)

    rule = looksam.look_sam(rho=0.1, alpha=0.5, k=5)
    tx = optax.adamw(optax.cosine_decay_schedule(3e-3, steps))
    params = init(jax.random.key(0))
    rule_state, opt_state = rule.init(params), tx.init(params)

    @functools.partial(jax.jit, static_argnames="refresh")  # two programs: with the second gradient, and without
    def step(params, rule_state, opt_state, x, y, refresh):
        value_and_grad = jax.value_and_grad(loss_fn)
        loss, grads, rule_state, info = rule.gradient(value_and_grad, params, rule_state, x, y, refresh=refresh)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), rule_state, opt_state, loss, info

    random = np.random.default_rng(0)
    for i in range(steps):
        rows = random.choice(len(x), BATCH, replace=False)
        args = params, rule_state, opt_state, x[rows], y[rows]
        params, rule_state, opt_state, loss, info = step(*args, refresh=rule.refreshes(i))
        if i % 100 == 0:
            print(f"step {i}: loss {loss:.4f}, |g| {info.grad_norm:.3f}")

    accuracy = float(np.mean(np.argmax(logits(params, x_test), -1) == y_test))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()

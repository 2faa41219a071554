"""LookSAM with the TrainState of Flax Linen, BatchNorm and dropout, on digits: pip install 'looksam[train]'

python examples/jax_linen.py
"""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import sklearn.datasets
from flax.training.train_state import TrainState
from sklearn.model_selection import train_test_split

import looksam

EPOCHS, BATCH = 15, 64


class Net(nn.Module):
    train: bool

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(use_running_average=not self.train)(nn.Dense(128)(x)))
        return nn.Dense(10)(nn.Dropout(0.1, deterministic=not self.train)(x))


class State(TrainState):
    rule_state: Any
    batch_stats: Any


def loss_fn(params, batch_stats, key, x, y):
    variables = {"params": params, "batch_stats": batch_stats}
    logits, new = Net(train=True).apply(variables, x, mutable=["batch_stats"], rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new["batch_stats"]


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((images / 16).astype("float32"), labels, random_state=0)
    rule, net = looksam.look_sam(rho=0.1, alpha=0.5, k=5), Net(train=False)
    variables = net.init(jax.random.key(0), x[:1])
    params, batch_stats = variables["params"], variables["batch_stats"]
    own = {"rule_state": rule.init(params), "batch_stats": batch_stats}
    state = State.create(apply_fn=net.apply, params=params, tx=optax.adamw(3e-3), **own)

    @jax.jit
    def train_step(state, x, y):
        key = jax.random.fold_in(jax.random.key(1), state.step)  # one key for both passes of a step
        value_and_grad, args = jax.value_and_grad(loss_fn, has_aux=True), (state.batch_stats, key, x, y)
        (loss, batch_stats), grads, rule_state, _ = rule.gradient(value_and_grad, state.params, state.rule_state, *args)
        return state.apply_gradients(grads=grads, rule_state=rule_state, batch_stats=batch_stats), loss

    random = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for rows in np.split(random.permutation(len(x))[: 21 * BATCH], 21):
            state, loss = train_step(state, x[rows], y[rows])
        print(f"epoch {epoch}: loss {loss:.4f}")
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, x_test)
    accuracy = float(np.mean(np.argmax(logits, -1) == y_test))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()

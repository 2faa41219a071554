"""LookSAM as one Optax optimizer, for code that expects one, on digits: pip install 'looksam[train]'

python examples/jax_optax.py

The model is Flax Linen's; ``looksam.TrainState`` passes ``grad_fn`` on to the optimizer.
"""

import flax.linen as nn
import jax
import numpy as np
import optax
import sklearn.datasets
from sklearn.model_selection import train_test_split

import looksam

EPOCHS, BATCH = 15, 64


def make_optimizer(steps: int) -> optax.GradientTransformation:
    """Returns the optimizer; clipping, weight decay and schedules act on the gradient that the rule returns."""
    base = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(optax.cosine_decay_schedule(3e-3, steps)))
    return looksam.as_optimizer(looksam.look_sam(rho=0.1, alpha=0.5, k=5), base)


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((images / 16).astype("float32"), labels, random_state=0)
    net = nn.Sequential([nn.Dense(128), nn.relu, nn.Dense(10)])
    params = net.init(jax.random.key(0), x[:1])["params"]
    state = looksam.TrainState.create(apply_fn=net.apply, params=params, tx=make_optimizer(EPOCHS * 21))

    @jax.jit
    def train_step(state, x, y):
        def loss_fn(params):
            logits = state.apply_fn({"params": params}, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads, grad_fn=lambda params, _: jax.grad(loss_fn)(params)), loss

    random, fallbacks = np.random.default_rng(0), 0
    for epoch in range(EPOCHS):
        for rows in np.split(random.permutation(len(x))[: 21 * BATCH], 21):
            state, loss = train_step(state, x[rows], y[rows])
            fallbacks += int(state.opt_state.info.fell_back)
        print(f"epoch {epoch}: loss {loss:.4f}, steps that fell back to the plain gradient: {fallbacks}")

    logits = state.apply_fn({"params": state.params}, x_test)
    accuracy = float(np.mean(np.argmax(logits, -1) == y_test))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()

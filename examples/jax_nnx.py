"""LookSAM for a Flax NNX module with BatchNorm and dropout, on digits: pip install 'looksam[train]'

python examples/jax_nnx.py
"""

import numpy as np
import optax
import sklearn.datasets
from flax import nnx
from sklearn.model_selection import train_test_split

import looksam

EPOCHS, BATCH = 15, 64


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model, optimizer, rule, x, y):
    loss, grads = rule.value_and_grad(loss_fn)(model, x, y)  # in place of nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((images / 16).astype("float32"), labels, random_state=0)

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    rule = looksam.NNXRule(looksam.look_sam(rho=0.1, alpha=0.5, k=5), model)

    random = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for rows in np.split(random.permutation(len(x))[: 21 * BATCH], 21):
            loss = train_step(model, optimizer, rule, x[rows], y[rows])
        print(f"epoch {epoch}: loss {loss:.4f}, |g| {rule.info.grad_norm:.3f}, fell back: {rule.info.fell_back}")

    model.eval()
    accuracy = float(np.mean(np.argmax(model(x_test), -1) == y_test))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()

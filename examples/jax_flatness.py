"""How flat are the minima of SGD and SAM? Measured and drawn, on scikit-learn's digits: pip install 'looksam[train]'

python examples/jax_flatness.py        # writes flatness.png
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import sklearn.datasets
from sklearn.model_selection import train_test_split

import looksam
from looksam import analysis

STEPS, BATCH, RADIUS = 300, 64, 0.05


def logits(params, x):
    return jax.nn.relu(x @ params["first"]) @ params["last"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def train(rho, images, labels):
    """Trains with SAM; with rho=0 it is SGD."""
    keys, he = jax.random.split(jax.random.key(0)), jax.nn.initializers.he_normal()
    params = {"first": he(keys[0], (64, 64)), "last": he(keys[1], (64, 10))}
    tx = looksam.as_optimizer(looksam.sam(rho), optax.sgd(0.1, momentum=0.9))

    @jax.jit
    def step(carry, rows):
        params, state = carry
        grad_fn = lambda params, _: jax.grad(loss_fn)(params, images[rows], labels[rows])
        updates, state = tx.update(grad_fn(params, 0), state, params, grad_fn=grad_fn)
        return (optax.apply_updates(params, updates), state), None

    rows = np.random.default_rng(0).integers(0, len(images), (STEPS, BATCH))
    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), rows)
    return params


def main() -> float:
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = map(jnp.asarray, train_test_split((images / 16).astype("float32"), labels, random_state=0))
    loss = lambda params: loss_fn(params, x, y)
    distances, accuracies = jnp.linspace(-1, 1, 21), []
    for name, rho in (("SGD", 0.0), ("SAM, ρ = 0.1", 0.1)):
        params = train(rho, x, y)
        sharpness = analysis.one_step_sharpness(loss, params, RADIUS)
        curvature = analysis.top_eigenvalues(loss, params, count=1, steps=10, key=jax.random.key(1)).values[0]
        accuracies.append(float(jnp.mean(jnp.argmax(logits(params, x_test), -1) == y_test)))
        print(f"{name}: sharpness {sharpness:.5f}, top eigenvalue {curvature:.2f}, accuracy {accuracies[-1]:.3f}")
        line = analysis.landscape_line(loss, params, analysis.random_direction(jax.random.key(2), params), distances)
        plt.plot(distances, line, label=f"{name}: sharpness {sharpness:.5f}")
    plt.xlabel("distance along a filter-normalised random direction")
    plt.ylabel("training loss")
    plt.legend()
    plt.savefig("flatness.png", dpi=120)
    plt.close()
    return min(accuracies)


if __name__ == "__main__":
    main()

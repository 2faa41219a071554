"""The rules side by side on scikit-learn's digits: accuracy against cost, in about a minute on two CPU cores.

    python examples/digits.py [--noise 0.3] [--seeds 10] [--picture build/digits.png]

600 training and 1,197 test images, three hidden layers of 128, SGD-M, 100 epochs, all seeds trained together by vmap.
Each method runs at the ρ and α that `--tune` picked for it, from eight settings a method, on a quarter of the
training images held out with clean labels.
"""

import argparse
import functools
import itertools
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits

import looksam

BATCH, EPOCHS, WIDTHS = 50, 100, (64, 128, 128, 128, 10)
GRIDS = {
    "sam": [{"rho": r} for r in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)],
    "sam_k": [{"rho": r, "k": 5} for r in (0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4)],
    "look_sam": [{"rho": r, "alpha": a, "k": 5} for r in (0.1, 0.2, 0.4, 0.8) for a in (0.3, 0.7)],
}
PICKED = {  # python examples/digits.py --tune
    "sam": {"rho": 0.6},
    "sam_k": {"rho": 1.2, "k": 5},
    "look_sam": {"rho": 0.4, "alpha": 0.7, "k": 5},
}


def split(noise, tune):
    """((train images, labels), (test images, labels)); in tuning the test part comes out of the training images."""
    images, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    order = random.permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    cut, end = (450, 600) if tune else (600, len(labels))
    train = labels[:cut].copy()
    noisy = random.permutation(cut)[: round(noise * cut)]
    train[noisy] = random.integers(0, 10, len(noisy))
    return (images[:cut], train), (images[cut:end], labels[cut:end])


def init(key):
    shapes = list(itertools.pairwise(WIDTHS))
    keys = jax.random.split(key, len(shapes))
    kernels = [jax.random.normal(k, s) * np.sqrt(2 / s[0]) for k, s in zip(keys, shapes, strict=True)]
    return [{"kernel": kernel, "bias": jnp.zeros(kernel.shape[1])} for kernel in kernels]


def logits(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def train(name, settings, data, seeds):
    """Test accuracy of each seed, and seconds a step."""
    (x, y), (x_test, y_test) = jax.device_put(data)
    rule = getattr(looksam, name)(**settings) if settings else None
    per_epoch = len(y) // BATCH
    tx = optax.sgd(optax.cosine_decay_schedule(0.05, EPOCHS * per_epoch), momentum=0.9)
    value_and_grad = jax.value_and_grad(loss)

    def one(carry, batch, refresh):
        params, state, opt_state = carry
        if rule is None:
            _, grads = value_and_grad(params, x[batch], y[batch])
        else:
            _, grads, state, _ = rule.gradient(value_and_grad, params, state, x[batch], y[batch], refresh=refresh)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state

    @functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
    def step(carry, batches, refresh):
        return jax.vmap(functools.partial(one, refresh=refresh))(carry, batches)

    params = jax.vmap(init)(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    carry = (params, jax.vmap(rule.init)(params) if rule else (), jax.vmap(tx.init)(params))
    random = np.random.default_rng(0)
    durations = []
    for i in range(EPOCHS * per_epoch):
        if i % per_epoch == 0:
            order = random.permuted(np.tile(np.arange(len(y)), (seeds, 1)), axis=1)
        at = (i % per_epoch) * BATCH
        started = time.perf_counter()
        carry = step(carry, order[:, at : at + BATCH], rule.refreshes(i) if rule else None)
        jax.block_until_ready(carry)
        durations.append(time.perf_counter() - started)
    predicted = jax.vmap(lambda p: jnp.argmax(logits(p, x_test), -1))(carry[0])
    accuracy = 100 * np.mean(np.asarray(predicted) == np.asarray(y_test), axis=1)
    cycles = np.array(durations[10:]).reshape(-1, 5)  # whole cycles of k = 5
    return accuracy, float(np.median(cycles.mean(axis=1)))


def tune(noise, seeds):
    data = split(noise, tune=True)
    for name, grid in GRIDS.items():
        scores = [train(name, settings, data, seeds)[0].mean() for settings in grid]
        for settings, score in zip(grid, scores, strict=True):
            print(f"{name:9}{score:7.2f} %  {settings}", flush=True)
        print(f"{name:9}picks {grid[int(np.argmax(scores))]}")


def compare(noise, seeds, picture):
    data = split(noise, tune=False)
    rows, base_seconds = {}, 0.0
    print(f"digits, {100 * noise:.0f} % of the training labels random, {seeds} seeds\n")
    print("method     test accuracy   gradients a step   time of base")
    for name in ("base", *PICKED):
        settings = PICKED.get(name, {})
        accuracy, seconds = train(name, settings, data, seeds)
        base_seconds = base_seconds or seconds
        cost = 1 + 1 / settings.get("k", 1) if settings else 1.0
        rows[name] = (cost, accuracy.mean(), standard_error(accuracy))
        print(
            f"{name:9}{rows[name][1]:8.2f} ± {rows[name][2]:.2f} %{cost:16.1f}{seconds / base_seconds:14.2f}x",
            flush=True,
        )
    draw(rows, noise, picture)
    print(f"\n{picture}")


def standard_error(values):
    return values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0


def draw(rows, noise, picture):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, (cost, mean, error)), marker in zip(rows.items(), "osD^", strict=True):
        axes.errorbar(cost, mean, error, marker=marker, markersize=9, capsize=3, linestyle="", label=name)
    axes.set(xlabel="gradients a step", ylabel="test accuracy, %", title=f"digits, {100 * noise:.0f} % label noise")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    pathlib.Path(picture).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.3, help="fraction of the training labels drawn at random")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--picture", default="build/digits.png")
    parser.add_argument("--tune", action="store_true", help="pick ρ and α of each method instead of comparing them")
    arguments = parser.parse_args()
    if arguments.tune:
        tune(arguments.noise, arguments.seeds)
    else:
        compare(arguments.noise, arguments.seeds, arguments.picture)


if __name__ == "__main__":
    main()

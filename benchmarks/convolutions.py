"""A convolution with both of its gradients, by JAX and by looksam, alone and inside of control flow.

    python benchmarks/convolutions.py                       # about two minutes, to results/benchmarks/convolutions.json

The layers are those of the trainer's small ResNet at batch size 64. The convolution stands between a normalization and
a ReLU, as in a network: XLA merges the copies that JAX's gradients need with these. Times are relative to looksam's
convolution outside of control flow, in one interleaved run with the settings of the command line.
"""

import argparse
import functools
import json
import pathlib

from looksam.cli import environment

environment.prepare_jax()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from timed import RESULTS  # noqa: E402

import looksam  # noqa: E402
from looksam.bench.harness import clocked, interleave  # noqa: E402

BATCH = 64
LAYERS = {  # (side, input channels, output channels, kernel size, stride)
    "3×3, 32² × 16": (32, 16, 16, 3, 1),
    "3×3, stride 2, 32² × 16 to 32": (32, 16, 32, 3, 2),
    "1×1, stride 2, 32² × 16 to 32": (32, 16, 32, 1, 2),
    "3×3, 16² × 32": (16, 32, 32, 3, 1),
    "3×3, 8² × 64": (8, 64, 64, 3, 1),
}
CONVOLUTIONS = {"looksam": looksam.conv_general_dilated, "JAX": lax.conv_general_dilated}
LAYOUT = ("NHWC", "HWIO", "NHWC")


def program(conv, layer, inside):
    """A compiled function of no arguments: the gradients of a loss through one unit of a network."""
    side, n_in, n_out, size, stride = layer
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(BATCH, side, side, n_in)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size, size, n_in, n_out)), jnp.float32)

    def loss(x, kernel):
        centred = x - x.mean((0, 1, 2))
        y = jax.nn.relu(centred * lax.rsqrt(jnp.square(centred).mean((0, 1, 2)) + 1e-5))
        y = conv(y, kernel, (stride, stride), [(size // 2,) * 2] * 2, dimension_numbers=LAYOUT)
        return jnp.mean(jax.nn.relu(y - y.mean((0, 1, 2))) ** 2)

    gradients = jax.grad(loss, (0, 1))

    def step(flag, x, kernel):
        if not inside:
            return gradients(x, kernel)
        return lax.cond(flag, gradients, lambda *zeros: tuple(map(jnp.zeros_like, zeros)), x, kernel)

    compiled = jax.jit(step).lower(np.bool_(True), x, kernel).compile()
    return functools.partial(compiled, np.bool_(True), x, kernel)


def measure(layer, rounds):
    """Milliseconds of looksam's convolution, and the quartiles of all forms relative to it."""
    forms = {(name, inside): program(conv, layer, inside) for name, conv in CONVOLUTIONS.items() for inside in (0, 1)}

    def turn(form):
        run = lambda steps: [jax.block_until_ready(forms[form]()) for _ in range(steps)]
        return clocked(run, 1 if form == ("JAX", 1) else 5)

    timings = interleave({form: functools.partial(turn, form) for form in forms}, rounds)
    base = ("looksam", 0)
    ratios = {f"{name}{', inside lax.cond' * i}": timings.ratios((name, i), [base])["wall"] for name, i in forms}
    return {"milliseconds": timings.milliseconds(base), "wall": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS / "convolutions.json", help="the file to write")
    arguments = parser.parse_args()
    rows = []
    for name, layer in LAYERS.items():
        rows.append({"layer": name, "batch": BATCH, **measure(layer, arguments.rounds)})
        medians = ", ".join(f"{form} {ratio[1]:.2f}" for form, ratio in rows[-1]["wall"].items())
        print(f"{name}: {rows[-1]['milliseconds']:.1f} ms; {medians}", flush=True)
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

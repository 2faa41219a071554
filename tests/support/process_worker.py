"""One of the two processes of test_processes.py: python process_worker.py HOST:PORT INDEX FOLDER.

Both train every case together, evaluate and train on the pictures in FOLDER, and the first writes what came out there.
"""

import pathlib
import sys

import jax
import numpy as np
import spread

from looksam.trainer import batches, distributed
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import Training

COUNT, DEVICES = 2, 4  # processes, and devices of each
PLAIN = Recipe(batch_size=48, epochs=10, learning_rate=0.02, rho=0.1, k=3, clip_norm=1.0)
RULES = {
    "sam": PLAIN.replace(method="sam", optimizer="sgdm"),
    "look_layer_sam": PLAIN.replace(method="look_layer_sam", optimizer="lamb"),
}
# Each rule on both kinds of mesh, and with and without accumulation; test_mesh.py has all combinations in one process.
CASES = [
    ("sam", "data=8", None),
    ("sam", "fsdp=8", 16),
    ("look_layer_sam", "data=8", 16),
    ("look_layer_sam", "data=2,fsdp=4", None),
]
STREAM_STEPS = 3


def stream_recipe(folder: pathlib.Path, mesh: str) -> Recipe:
    settings = {"image_size": 8, "batch_size": 16, "epochs": 5, "learning_rate": 0.05}
    return Recipe(dataset="folder", data_dir=str(folder), mesh=mesh, **settings)


def streamed(recipe: Recipe) -> dict[str, np.ndarray]:
    """What the first parameters score on the test pictures, and the losses of some steps on the training pictures."""
    batches.STREAMED_EVAL_BATCH = 16  # so that a small set is more than one batch, and both processes have a part of it
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        training = Training(recipe)
        state, losses = training.init(), []
        sums = [
            training.programs.evaluate(state.params, state.stats, *batch)
            for batch in batches.make_eval_batches(training.dataset, recipe, training.layout)
        ]
        test = np.sum([[float(part[name]) for name in ("loss", "hits", "images")] for part in sums], axis=0)
        for i in range(STREAM_STEPS):
            state, metrics = training.step(state, i)
            losses.append(float(metrics["loss"]))
        training.batches.close()
    return {"test": test, "losses": np.array(losses)}


def work(folder: pathlib.Path) -> None:
    found = {f"streamed/{name}": array for name, array in streamed(stream_recipe(folder, "data=8")).items()}
    for rule, mesh, microbatch in CASES:
        trained = spread.train(RULES[rule].replace(mesh=mesh, microbatch=microbatch))
        name = f"{rule} {mesh} {microbatch}"
        found[f"{name}/losses"] = np.array(trained.losses)
        found |= {f"{name}/{i}": array for i, array in enumerate(jax.tree.leaves(trained.state))}
    if distributed.is_primary():
        np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    address, index, folder = sys.argv[1:]
    with distributed.joined(distributed.DistributedConfig(address, COUNT, int(index))):
        work(pathlib.Path(folder))

"""One of the two processes of test_processes.py: python process_worker.py HOST:PORT INDEX FOLDER.

Both train every case together, evaluate and train on the pictures in FOLDER, save and restore checkpoints there, and
the first writes what came out.
"""

import contextlib
import pathlib
import sys

import jax
import numpy as np
import spread

from looksam.trainer import batches, distributed
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder import checkpoints
from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import RunError
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


def numbers(step: int) -> dict[str, np.ndarray]:
    """What a checkpoint of a step holds."""
    random = np.random.default_rng(step)
    return {
        "split": random.normal(size=(64, 32)),
        "replicated": random.normal(size=(64, 8)),
        "odd": np.array([step, -0.0, np.nan]),
        "none": np.zeros((0, 4)),
    }


def sharded(step: int) -> dict[str, jax.Array]:
    """The same as global arrays, of which one is split over all devices of both processes."""
    mesh = jax.make_mesh((COUNT * DEVICES,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    place = {name: jax.NamedSharding(mesh, jax.P("fsdp") if name == "split" else jax.P()) for name in numbers(step)}
    return {
        name: jax.make_array_from_callback(array.shape, place[name], array.__getitem__)
        for name, array in numbers(step).items()
    }


def same_shards(ours: dict[str, jax.Array], theirs: dict[str, jax.Array]) -> bool:
    pairs = [(ours[name].addressable_shards, array.addressable_shards) for name, array in theirs.items()]
    shards = [(a, b) for parts in pairs for a, b in zip(*parts, strict=True)]
    return all(a.index == b.index and np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes() for a, b in shards)


def checkpointed(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Which steps both processes restored with the right bits, and what they reported on the way."""
    checkpoints.SLICE_BYTES = 16  # so that what is replicated is written in parts, too
    lines: list[str] = []
    with contextlib.closing(Checkpoints(folder / "alone", keep=2, read_only=True)) as reader:
        step, state, meta = reader.restore(sharded(0))  # written by one process
        assert (step, meta) == (5, {"n": 5}) and same_shards(state, sharded(5))
    with contextlib.closing(Checkpoints(folder / "pair", keep=2, report=lines.append)) as both:
        for step in (1, 2):
            state = sharded(step)
            both.save(step, state, {"n": step})
            jax.tree.map(lambda array: array.delete(), state)
        write = both._handler.async_save

        async def fail(*_, **__):
            raise OSError(28, "No space left on device")

        if not distributed.is_primary():
            both._handler.async_save = fail
        both.save(3, sharded(3), {})
        try:
            both.wait()
        except RunError as error:
            lines.append(str(error))
        both._handler.async_save = write
        both.save(4, sharded(4), {"n": 4})
        both.wait()
        damaged = max((folder / "pair" / "4" / "state").rglob("ocdbt.process_1/d/*"))
        if distributed.is_primary():
            damaged.write_bytes(damaged.read_bytes()[:-1])
        distributed.processes_where(False)  # wait for it
        step, state, meta = both.restore(sharded(0))
        assert (step, meta) == (2, {"n": 2}) and same_shards(state, sharded(2))
        both.save(4, sharded(4), {"n": 40})
    everyone = distributed.Exchange()("\n".join(lines))
    return {"lines": np.array(everyone)}


def work(folder: pathlib.Path) -> None:
    found = {f"checkpoints/{name}": array for name, array in checkpointed(folder).items()}
    found |= {f"streamed/{name}": array for name, array in streamed(stream_recipe(folder, "data=8")).items()}
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
    with distributed.session(distributed.DistributedConfig(address, COUNT, int(index))):
        work(pathlib.Path(folder))

"""A small training run on any layout, in float64, for the tests of meshes and processes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.data import Dataset, Images
from looksam.trainer.keys import per_image
from looksam.trainer.models import Model, build_model
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.parallel import Layout, make_layout
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import TrainState, init_state, make_train_step

CLASSES, SIDE, WIDTH = 5, 8, 32


def _dataset(count: int) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    both = Images(images, rng.integers(0, CLASSES, count).astype(np.int32))
    return Dataset("random", both, both, CLASSES, (SIDE, SIDE, 3), (0.5,) * 3, (0.25,) * 3)


DATA = _dataset(96)


def smooth_model(dropout: float = 0.0) -> Model:
    """Two tanh layers. The two large kernels are sharded over fsdp, the rest is replicated."""

    def init(key: jax.Array) -> tuple[dict[str, jax.Array], dict]:
        sizes = {"in": (3 * SIDE**2, WIDTH), "hidden": (WIDTH, WIDTH), "out": (WIDTH, CLASSES)}
        draw = np.random.default_rng(0).normal  # with NumPy: JAX would spend a second of compilation on each run
        kernels = {name: jnp.asarray(draw(size=size) / size[0] ** 0.5) for name, size in sizes.items()}
        return {**kernels, "bias": jnp.full(WIDTH, 0.1)}, {}

    def apply(params: Any, stats: Any, images: jax.Array, *, train: bool, key: Any = None, axes: Any = ()) -> Any:
        x = images.reshape(len(images), -1).astype(jnp.float64)
        x = jnp.tanh(x @ params["in"] + params["bias"])
        if train and dropout:
            keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1 - dropout, (WIDTH,)))(per_image(key, len(images)))
            x = jnp.where(keep, x, 0)
        return jnp.tanh(x @ params["hidden"]) @ params["out"], stats

    return Model(init, apply)


def tiny_resnet() -> Model:
    shape = {"image_shape": DATA.image_shape, "num_classes": CLASSES}
    return build_model("resnet", blocks=(1,), width=8, dtype=jnp.float64, **shape)


SMOOTH = smooth_model()


class Trained(NamedTuple):
    losses: list[float]
    state: TrainState  # on the host


def train(recipe: Recipe, layout: Layout | None = None, steps: int = 10) -> Trained:
    """Steps of the recipe on ``DATA``, in float64: the smooth model, or for any name but mlp a ResNet."""
    layout = layout or make_layout(recipe.mesh_sizes())
    model = smooth_model(recipe.dropout or 0.0) if recipe.model == "mlp" else tiny_resnet()
    rule, tx = make_rule(recipe, steps + 1), make_optimizer(recipe, total_steps=steps + 1)

    def init(seed: Any) -> TrainState:
        params, stats = model.init(jax.random.key(seed))
        wide = Model(lambda _: (to_float64(params), to_float64(stats)), model.apply)
        return init_state(jax.random.key(seed), wide, rule, tx)

    shardings = layout.shardings(jax.eval_shape(init, 0))
    step = jax.jit(
        make_train_step(recipe, DATA, model, rule, tx, layout),
        static_argnums=3,
        donate_argnums=0,
        out_shardings=(shardings, None),
    )
    state, losses = jax.jit(init, out_shardings=shardings)(recipe.seed), []
    for i in range(steps):
        state, metrics = step(state, *batch(recipe, layout, i), rule.refreshes(i) if rule else None)
        losses.append(float(metrics["loss"]))
    return Trained(losses, jax.tree.map(to_host, state))


def batch(recipe: Recipe, layout: Layout, i: int) -> tuple[jax.Array, jax.Array]:
    rows = (np.arange(recipe.batch_size) + 7 * i) % len(DATA.train)
    arrays = DATA.train.images, DATA.train.labels
    return tuple(layout.put_batch(len(rows), lambda part, x=x: x[rows[part]]) for x in arrays)


def to_float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


def to_host(x: jax.Array) -> np.ndarray:
    if x.is_fully_addressable:
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(x, tiled=True)


def largest_difference(a: Trained, b: Trained) -> float:
    """The largest absolute difference between the losses and between all arrays of the states."""
    tops = jax.tree.map(lambda x, y: np.max(np.abs(x.astype(float) - y.astype(float)), initial=0.0), a.state, b.state)
    return max(*np.abs(np.subtract(a.losses, b.losses)), *jax.tree.leaves(tops))

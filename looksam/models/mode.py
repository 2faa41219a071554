"""How one pass through a model runs; made by ``Model.apply`` and handed from layer to layer."""

import jax


class Mode:
    """Training or not, what is drawn from, and over which devices the batch is spread.

    Args:
      train: BatchNorm uses the batch, and dropout drops.
      keys: one for each image, or None where nothing is drawn.
      axes: mesh axes of the surrounding ``shard_map`` over which the batch is spread. BatchNorm's statistics are
        taken over them too.
    """

    def __init__(self, train: bool, keys: jax.Array | None = None, axes: tuple[str, ...] = ()) -> None:
        self.train, self.axes = train, axes
        self._keys, self._layers = keys, 0

    def next_keys(self) -> jax.Array:
        """A key for each image, new for each layer that asks."""
        assert self._keys is not None
        self._layers += 1
        layer = self._layers
        return jax.vmap(lambda key: jax.random.fold_in(key, layer))(self._keys)

"""A run read back: what it trains with, and the state of its newest good checkpoint."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from looksam.train.checkpoint import Checkpoints
from looksam.train.errors import RunError
from looksam.train.ownership import read_recipe
from looksam.train.setup import Training
from looksam.train.state import TrainState


@contextlib.contextmanager
def restored(directory: pathlib.Path, **changes: Any) -> Iterator[tuple[Training, int, TrainState]]:
    """The training, the step and the state, on one device. The run may still be going on."""
    recipe = read_recipe(directory).replace(mesh="data=1", microbatch=None, groups=None, **changes)
    training = Training(recipe)
    checkpoints = Checkpoints(directory / "checkpoints", keep=recipe.keep_checkpoints, read_only=True)
    try:
        found = checkpoints.restore(training.programs.restored())
        if found is None:
            raise RunError(f"{directory} has no checkpoint yet; train longer, or lower checkpoint_every.")
        yield training, found[0], found[1]
    finally:
        training.feed.close()
        checkpoints.close()

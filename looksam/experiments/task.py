"""The unit of work: one recipe with its seed, and what is measured on it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from looksam.trainer.recipe import Recipe

Kind = Literal["train", "tune", "drift"]

# where data lies and how often something is written changes no number
PLACE = ("data_dir", "download", "workers", "on_bad_image", "mesh", "eval_every", "log_every", "checkpoint_every")
APART = ("seed", "keep_checkpoints", *PLACE)


@dataclass(frozen=True)
class Task:
    """``train`` reads the test set once, at the end; ``tune`` reads the held-out images alone; ``drift`` see there."""

    kind: Kind
    recipe: Recipe

    @property
    def key(self) -> str:
        """The same for all seeds of a recipe."""
        return f"{self.kind}-{digest(self.recipe)}"


def settings(recipe: Recipe) -> dict[str, Any]:
    """What decides the numbers of a run, all but its seed."""
    return {name: value for name, value in vars(recipe).items() if name not in APART}


def digest(recipe: Recipe) -> str:
    text = json.dumps(settings(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]

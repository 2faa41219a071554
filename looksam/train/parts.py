"""How a step's batch is cut: over devices, into groups that climb on their own, and into micro-batches."""

from typing import NamedTuple

from looksam.train.recipe import Recipe


class Parts(NamedTuple):
    microbatches: int  # worked one after another by each device
    groups: int | None  # on each device, of which each climbs its own gradient; None: the whole batch climbs as one
    group_microbatches: int = 1  # worked one after another in each group

    @classmethod
    def of(cls, recipe: Recipe, devices: int) -> "Parts":
        """The parts of a device. Raises ValueError where the batch does not divide."""
        batch, at_once = recipe.batch_size, recipe.microbatch or recipe.batch_size
        _divides("batch_size", batch, "the devices of the mesh", devices)
        _divides("batch_size", batch, "microbatch", at_once)
        _divides("microbatch", at_once, "the devices of the mesh", devices)
        rows = at_once // devices
        if recipe.mixup and rows % 2 and rows < batch:
            raise ValueError(
                f"each of {devices} devices works {rows} images at a time, and mixup takes pairs; "
                "pass a batch_size or microbatch that is an even number of images for each device."
            )
        if recipe.groups is None:
            return cls(batch // at_once, None)
        return cls(batch // at_once, *_groups(recipe, rows, devices))


def _groups(recipe: Recipe, rows: int, devices: int) -> tuple[int, int]:
    groups = devices if recipe.groups == "device" else int(recipe.groups or 1)
    _divides("batch_size", recipe.batch_size, "groups", groups)
    _divides("groups", groups, "the devices of the mesh", devices)
    images = recipe.batch_size // groups
    if recipe.mixup and images % 2:
        raise ValueError(f"groups={groups} have {images} images each, and mixup takes pairs; pass fewer groups.")
    if images > rows:
        _divides("the images of a group", images, "those of a micro-batch on one device", rows)
    return groups // devices, max(1, images // rows)


def _divides(name: str, whole: int, by: str, part: int) -> None:
    if whole % part:
        raise ValueError(f"{name}={whole} is no multiple of {by}, {part}; pass sizes that divide.")

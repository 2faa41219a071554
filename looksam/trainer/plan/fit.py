"""Does a run fit in the memory of a chip, and which mesh and micro-batch would?

The memory of a device grows linearly with the images that it holds and with those that it processes at a time. Two
compiled programs of different sizes give both slopes; sizes in between are interpolated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from looksam.trainer.parallel import BatchSplit
from looksam.trainer.plan.chips import Chip
from looksam.trainer.plan.program import Memory
from looksam.trainer.recipe import Recipe

PROBE_IMAGES = 2  # per device, of the smaller program; mixup takes pairs
MARGIN = 0.9  # of a device's memory: an accelerator's compiler assigns its own buffers


@dataclass(frozen=True)
class Suggestion:
    """A mesh and a micro-batch that would fit."""

    flags: str  # of the command line
    devices: int
    chips: float
    memory: float  # estimated bytes on one device


@dataclass(frozen=True)
class Fit:
    """The memory of the largest program on one device."""

    needed: int  # bytes
    available: float
    suggestions: tuple[Suggestion, ...] = ()  # where it does not fit: the fewest devices, then no micro-batches

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


@dataclass(frozen=True)
class MemoryModel:
    """Bytes on one device, by what they grow with."""

    state: float  # parameters, optimizer state and what the rule keeps, not sharded
    fixed: float  # temporaries that do not depend on the images, such as gradients
    held: float  # per image of the batch that a device holds
    processed: float  # per image that it processes at a time
    gradient: float = 0.0  # one more, which micro-batches are added up in

    @classmethod
    def between(
        cls, small: Memory, large: Memory, images: tuple[int, int], fsdp: int, gradient: float = 0.0
    ) -> "MemoryModel":
        """The line through two programs: of PROBE_IMAGES, and of images (held, processed at a time) on each device."""
        held, processed = (max(1, count - PROBE_IMAGES) for count in images)
        per_held = max(0.0, (large.resident - small.resident) / held)
        per_processed = max(0.0, (large.temporary - small.temporary) / processed)
        state = fsdp * max(0.0, small.resident - PROBE_IMAGES * per_held)
        fixed = max(0.0, small.temporary - PROBE_IMAGES * per_processed)
        return cls(state, fixed, per_held, per_processed, gradient)

    def total(self, held: int, processed: int, fsdp: int) -> float:
        """The bytes on one device of a mesh."""
        sums = self.gradient if processed < held else 0.0
        return self.state / fsdp + self.fixed + sums + held * self.held + processed * self.processed


def probe_recipe(recipe: Recipe, devices: int) -> Recipe:
    """Returns the recipe with so few images that memory is that of the state and the gradients."""
    return recipe.replace(batch_size=PROBE_IMAGES * devices, microbatch=None, groups=None)


def suggestions(recipe: Recipe, model: MemoryModel, chip: Chip) -> tuple[Suggestion, ...]:
    """Returns the fewest devices that fit, in micro-batches, and the fewest that take the whole batch at once."""
    available = MARGIN * chip.memory / chip.devices
    found = []
    for whole in (False, True):
        for devices, fsdp, part in _splits(recipe, whole):
            memory = model.total(recipe.batch_size // devices, part, fsdp)
            if memory <= available and _divides(recipe, devices, part):
                found.append(Suggestion(_flags(recipe, devices, fsdp, part), devices, devices / chip.devices, memory))
                break
    return tuple(dict.fromkeys(found))


def _splits(recipe: Recipe, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Yields devices, fsdp and images at a time: the fewest devices first, then the least fsdp, then the most images.

    Meshes are the recipe's own, doubled. ``whole`` leaves the micro-batches out.
    """
    data, least_fsdp = recipe.mesh_sizes() or (1, 1)
    devices = data * least_fsdp
    while recipe.batch_size % devices == 0:
        images, fsdp = recipe.batch_size // devices, least_fsdp
        while devices % fsdp == 0:
            for part in [images] if whole else [n for n in range(images, 0, -1) if images % n == 0]:
                yield devices, fsdp, part
            fsdp *= 2
        devices *= 2


def _flags(recipe: Recipe, devices: int, fsdp: int, part: int) -> str:
    axes = {"data": devices // fsdp, "fsdp": fsdp}
    mesh = ",".join(f"{name}={size}" for name, size in axes.items() if size > 1) or "data=1"
    microbatch = part * devices
    return f"--mesh {mesh}" + (f" --microbatch {microbatch}" if microbatch < recipe.batch_size else "")


def _divides(recipe: Recipe, devices: int, images: int) -> bool:
    """Whether the batch can be split so, with the recipe's groups and its mixup."""
    try:
        BatchSplit.of(recipe.replace(microbatch=images * devices), devices)
    except ValueError:
        return False
    return True

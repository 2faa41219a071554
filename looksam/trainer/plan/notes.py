"""Plain sentences next to a plan's numbers: what they leave out, and why the paper's measured times differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from looksam.methods import METHODS
from looksam.trainer.plan.chips import CHIPS, Chip, Estimate
from looksam.trainer.plan.program import Cost
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables
from looksam.trainer.recipes.imagenet import IMAGES_PER_CHIP, LARGE_BATCH_SETTINGS

VIT_BATCH = 4096  # in the paper's table of ViTs with AdamW
PAPER_EPOCHS = 300  # in both tables
MANY = 50  # collectives per step, from which on their latency is worth a note
ALWAYS = (
    "FLOPs are those of matrix products and convolutions, loops counted as often as they run; nothing else is counted.",
    "Hours are those of the programs alone: no reading of images, no host, no evaluation, no checkpoints.",
)


@dataclass(frozen=True)
class PaperTimes:
    """The hours that the paper's runs of 300 epochs took."""

    batch_size: int
    chips: int | None  # TPU v3 chips; None where the paper does not name the number
    hours: dict[str, float | None]  # by method; None where the paper has no such entry

    @property
    def ratios(self) -> dict[str, float | None]:
        """The hours relative to base."""
        base = self.hours.get("base")
        return {method: hours / base if hours and base else None for method, hours in self.hours.items()}


def paper_times(recipe: Recipe, methods: Iterable[str]) -> list[PaperTimes]:
    """Returns the paper's times at the recipe's batch size, or nothing where it has none.

    Where base is missing, those at the smallest batch size that has all ``methods`` follow.
    """
    methods = list(methods)
    if recipe.dataset != "imagenet":
        return []
    if recipe.model == "vit_b16" and recipe.optimizer == "lamb":
        rows = [
            _large_batch_times(batch, methods) for batch in dict.fromkeys((recipe.batch_size, *LARGE_BATCH_SETTINGS))
        ]
    elif recipe.optimizer == "adamw" and recipe.batch_size == VIT_BATCH:
        rows = [_vit_times(recipe, methods)]
    else:
        rows = []
    here = [row for row in rows[:1] if any(row.hours.values())]
    complete = [row for row in rows if all(row.hours.values())]
    return here if here and here[0].hours.get("base") else here + complete[:1]


def _large_batch_times(batch: int, methods: list[str]) -> PaperTimes:
    names = {method: paper_tables.paper_row(method, "lamb") for method in methods}
    hours = {method: paper_tables.number("time_hours", str(batch), method=name) for method, name in names.items()}
    return PaperTimes(batch, batch // IMAGES_PER_CHIP, hours)


def _vit_times(recipe: Recipe, methods: list[str]) -> PaperTimes:
    hours: dict[str, float | None] = {}
    for method in methods:
        name = paper_tables.row_of(recipe.replace(method=method))
        seconds = paper_tables.number("vit", "seconds_per_epoch", model=recipe.model, method=name)
        hours[method] = None if seconds is None else seconds * PAPER_EPOCHS / 3600
    return PaperTimes(VIT_BATCH, None, hours)


def paper_differences(estimates: list[Estimate], rows: list[PaperTimes], k: int) -> list[str]:
    """Explains why the paper's ratios are smaller than two gradients to one."""
    row = next((row for row in rows if row.ratios.get("base")), None)
    if row is None or len(estimates) < 2:
        return []
    every, *others = estimates[1:]
    ratio = row.ratios.get(every.method)
    if ratio is None:
        return []
    lines = [
        f"A step of {every.method} is two gradients and everything else once. The paper's {ratio:.2f} therefore means "
        f"that {2 - ratio:.0%} of its base step was no gradient (input, host, optimizer). In this estimate the only "
        f"such part is the reading and writing of the state, {2 - every.ratio:.1%}."
    ]
    for other in others:
        theirs = row.ratios.get(other.method)
        if theirs is not None and k > 1:
            lines.append(
                f"The same share gives {other.method} 1 + {ratio - 1:.2f}/{k} = {1 + (ratio - 1) / k:.2f}; "
                f"the paper has {theirs:.2f}, from rounded times."
            )
    return lines


def implied_utilisation(rows: list[PaperTimes], run_flops: float) -> list[str]:
    """Reports the share of the chips' peak that follows from the paper's hours of base.

    ``run_flops`` are those of the whole run of base, over all devices.
    """
    for row in rows:
        hours = row.hours.get("base")
        if hours and row.chips:
            share = run_flops / (hours * 3600 * row.chips * CHIPS["tpu-v3"].bfloat16)
            return [
                f"By these FLOPs, the paper's {hours:g} hours of base on {row.chips:,} TPU v3 chips (batch "
                f"{row.batch_size:,}) are a utilisation of {share:.2f}, including everything that is no gradient."
            ]
    return []


def active_steps(recipe: Recipe, active: float) -> list[str]:
    """Reports on which share of the steps the rule acts, if not on all."""
    if active == 1:
        return []
    stop = "" if recipe.stop is None else f", stop={recipe.stop}"
    return [
        f"With start={recipe.start}{stop}, {recipe.method} acts on {active:.1%} of the steps; the others run the base "
        f"program."
    ]


def caveats(
    recipe: Recipe, costs: Mapping[str, Cost], chip: Chip, devices: int, backend: str, utilisation: float
) -> list[str]:
    """Lists what to know before using the numbers."""
    return [
        *ALWAYS,
        f"A utilisation of {utilisation:g} of the chip's peak is assumed, not measured.",
        f"Memory is the compiler's buffer assignment on the {backend} back end; an accelerator's compiler makes its "
        f"own.",
        *_shared_program(recipe),
        *_precision(recipe, backend),
        *_network(recipe, costs, chip, devices),
        *_not_counted(costs),
    ]


def _shared_program(recipe: Recipe) -> list[str]:
    every = METHODS[recipe.method].every_step
    if every in ("", recipe.method):
        return []
    return [f"{every} is taken to run the refresh program of {recipe.method} on every step: the same two gradients."]


def _precision(recipe: Recipe, backend: str) -> list[str]:
    if recipe.dtype != "bfloat16" or backend != "cpu":
        return []
    return ["The cpu back end computes bfloat16 in float32: on an accelerator memory may be smaller."]


def _network(recipe: Recipe, costs: Mapping[str, Cost], chip: Chip, devices: int) -> list[str]:
    runs, connected = max(cost.runs for cost in costs.values()), chip.connected * chip.devices
    lines = []
    if (recipe.mesh_sizes() or (1, 1))[1] > 1:
        lines.append(
            "Bytes sent are those of the collectives in the program itself. The compiler adds some for norms of arrays "
            "that are split over fsdp: scalars and row sums, which are not counted."
        )
    if runs >= MANY:
        lines.append(f"{runs:,} collectives per step also wait for each other: latency is in none of these times.")
    if devices > connected:
        lines.append(
            f"{devices:,} devices are more than the {connected:,} that {chip.name} connects at its full speed; "
            f"between those groups the network is slower than assumed here."
        )
    return lines


def _not_counted(costs: Mapping[str, Cost]) -> list[str]:
    hidden = sorted({name for cost in costs.values() for name in cost.uncounted})
    collectives = [collective for cost in costs.values() for collective in cost.collectives]
    lines = [f"FLOPs of these operations are not counted: {', '.join(hidden)}."] if hidden else []
    if any(collective.trips is None for collective in collectives):
        lines.append("Scalars that are sent in a loop of unknown length (a random draw) are not counted.")
    if any(collective.conditional and not collective.is_scalar for collective in collectives):
        lines.append("Collectives of every branch of a conditional are counted, though only one branch runs.")
    return lines

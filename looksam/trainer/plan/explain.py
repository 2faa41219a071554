"""Plain sentences beside the numbers: what they leave out, and why the paper's differ."""

from collections.abc import Mapping

from looksam.trainer.plan.beside import Measured
from looksam.trainer.plan.chips import CHIPS, GIB, Chip
from looksam.trainer.plan.estimate import EVERY_STEP, Estimate
from looksam.trainer.plan.program import Cost
from looksam.trainer.recipe import Recipe

MANY = 50  # collectives a step, from which on their latency is worth a word
ALWAYS = (
    "FLOPs are those of matrix products and convolutions, loops counted as often as they run; nothing else is counted.",
    "Hours are those of the programs alone: no reading of images, no host, no evaluation, no checkpoints.",
)


def caveats(
    recipe: Recipe, costs: Mapping[str, Cost], chip: Chip, devices: int, backend: str, utilisation: float
) -> list[str]:
    """What to know before using the numbers."""
    return [
        *ALWAYS,
        f"A utilisation of {utilisation:g} of the chip's peak is assumed, not measured.",
        f"Memory is the compiler's buffer assignment on the {backend} back end; an accelerator's makes its own.",
        *_shared_program(recipe),
        *_precision(recipe, backend),
        *_fit(costs, chip),
        *_network(costs, chip, devices),
        *_not_counted(costs),
    ]


def _shared_program(recipe: Recipe) -> list[str]:
    every = EVERY_STEP.get(recipe.method)
    if every in (None, recipe.method):
        return []
    return [f"{every} is taken to run the refresh program of {recipe.method} on every step: the same two gradients."]


def _precision(recipe: Recipe, backend: str) -> list[str]:
    if recipe.dtype != "bfloat16" or backend != "cpu":
        return []
    return ["The cpu back end computes bfloat16 in float32: on an accelerator memory and bytes sent may be smaller."]


def _fit(costs: Mapping[str, Cost], chip: Chip) -> list[str]:
    most, there = max(cost.memory.total for cost in costs.values()), chip.memory / chip.devices
    if most <= there:
        return []
    return [
        f"{most / GIB:,.1f} GiB do not fit in the {there / GIB:,.1f} GiB of a device: "
        f"pass a smaller --microbatch, more devices, or an fsdp axis."
    ]


def _network(costs: Mapping[str, Cost], chip: Chip, devices: int) -> list[str]:
    runs, together = max(cost.runs for cost in costs.values()), chip.together * chip.devices
    lines = [f"{runs:,} collectives a step also wait for each other: latency is in none of these times."]
    far = (
        f"{devices:,} devices are more than the {together:,} that {chip.name} connects at its full speed; "
        f"between those groups the network is slower than assumed here."
    )
    return (lines if runs >= MANY else []) + ([far] if devices > together else [])


def _not_counted(costs: Mapping[str, Cost]) -> list[str]:
    hidden = sorted({name for cost in costs.values() for name in cost.uncounted})
    found = [collective for cost in costs.values() for collective in cost.collectives]
    lines = [f"FLOPs of these operations are not counted: {', '.join(hidden)}."] if hidden else []
    if any(collective.trips is None for collective in found):
        lines.append("Scalars that are sent in a loop of unknown length (a random draw) are not counted.")
    if any(collective.conditional and not collective.is_scalar for collective in found):
        lines.append("Collectives of every branch of a conditional are counted, though only one branch runs.")
    return lines


def difference(estimates: list[Estimate], rows: list[Measured], k: int) -> list[str]:
    """What explains that the paper's ratios are smaller than two gradients to one."""
    row = next((row for row in rows if row.ratios.get("base")), None)
    if row is None or len(estimates) < 2:
        return []
    every, *others = estimates[1:]
    ratio = row.ratios.get(every.method)
    if ratio is None:
        return []
    lines = [
        f"A step of {every.method} is two gradients and once everything else. The paper's {ratio:.2f} so means that "
        f"{2 - ratio:.0%} of its base step was no gradient (input, host, optimizer). In this estimate the only such "
        f"part is the reading and writing of the state, {2 - every.ratio:.1%}."
    ]
    for other in others:
        theirs = row.ratios.get(other.method)
        if theirs is not None and k > 1:
            lines.append(
                f"The same share gives {other.method} 1 + {ratio - 1:.2f}/{k} = {1 + (ratio - 1) / k:.2f}; "
                f"the paper has {theirs:.2f}, from rounded times."
            )
    return lines


def implied_utilisation(rows: list[Measured], run_flops: float) -> list[str]:
    """The share of the chips' peak that the paper's hours of base come to. ``run_flops``: of base, over all devices."""
    for row in rows:
        hours = row.hours.get("base")
        if hours and row.chips:
            share = run_flops / (hours * 3600 * row.chips * CHIPS["tpu-v3"].bfloat16)
            return [
                f"By these FLOPs, the paper's {hours:g} hours of base on {row.chips:,} TPU v3 chips (batch "
                f"{row.batch_size:,}) are a utilisation of {share:.2f}, all that is no gradient included."
            ]
    return []

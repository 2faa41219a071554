"""A plan: every number of it as plain data, for the table and for machines."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from looksam.trainer.plan import beside, explain
from looksam.trainer.plan.chips import Chip
from looksam.trainer.plan.estimate import Estimate, Seconds, estimates, mixture, seconds
from looksam.trainer.plan.program import Cost
from looksam.trainer.recipe import Recipe

DEFAULT_UTILISATION = 0.4


def plan(
    recipe: Recipe,
    costs: Mapping[str, Cost],
    *,
    chip: Chip,
    devices: int,
    steps: int,
    backend: str,
    utilisation: float = DEFAULT_UTILISATION,
) -> dict[str, Any]:
    """Everything ``looksam plan`` prints.

    Args:
      recipe: what is trained.
      costs: of the programs ``base``, ``refresh`` and ``reuse``, as far as the recipe's method has them.
      chip: what to reckon with.
      devices: in the mesh.
      steps: of the whole run.
      backend: the one the programs were compiled for.
      utilisation: share of the chip's peak that the products of matrices reach.
    """
    times = {name: seconds(cost, chip, recipe.dtype, utilisation) for name, cost in costs.items()}
    found = estimates(times, recipe.method, recipe.k, steps)
    rows = beside.measured(recipe, [estimate.method for estimate in found])
    whole_run = recipe.epochs == beside.EPOCHS and recipe.steps is None
    run_flops = costs["base"].flops * devices * steps
    return {
        "recipe": recipe.to_dict(),
        "devices": devices,
        "chips": devices / chip.devices,
        "chip": dataclasses.asdict(chip),
        "utilisation": utilisation,
        "backend": backend,
        "steps": steps,
        "programs": {name: _program(costs[name], times[name]) for name in costs},
        "methods": [_method(estimate, recipe, devices / chip.devices) for estimate in found],
        "paper": [dataclasses.asdict(row) | {"ratios": row.ratios} for row in rows],
        "notes": [
            *explain.difference(found, rows, recipe.k),
            *(explain.implied_utilisation(rows, run_flops) if whole_run else []),
            *explain.caveats(recipe, costs, chip, devices, backend, utilisation),
        ],
    }


def _program(cost: Cost, times: Seconds) -> dict[str, Any]:
    return {
        "flops": cost.flops,
        "sent_bytes": cost.sent,
        "collectives": _by_kind(cost),
        "scalar_collectives": len(cost.collectives) - len(cost.arrays),
        "memory": dataclasses.asdict(cost.memory) | {"total": cost.memory.total},
        "seconds": dataclasses.asdict(times) | {"apart": times.apart, "overlapped": times.overlapped},
        "uncounted": list(cost.uncounted),
    }


def _by_kind(cost: Cost) -> dict[str, dict[str, float]]:
    """Of more than scalars: how many run in a step, their bytes on a device, and the bytes it sends."""
    found: dict[str, dict[str, float]] = collections.defaultdict(lambda: {"runs": 0, "bytes": 0, "sent": 0.0})
    for collective in cost.arrays:
        total, trips = found[collective.kind], collective.trips or 0
        total["runs"] += trips
        total["bytes"] += collective.bytes * trips
        total["sent"] += collective.sent
    return dict(found)


def _method(estimate: Estimate, recipe: Recipe, chips: float) -> dict[str, Any]:
    return {
        "method": estimate.method,
        "programs": mixture(recipe.method, recipe.k)[estimate.method],
        "seconds": estimate.apart,
        "seconds_overlapped": estimate.overlapped,
        "hours": estimate.hours,
        "hours_overlapped": estimate.hours_overlapped,
        "chip_hours": estimate.hours * chips,
        "ratio": estimate.ratio,
        "ratio_overlapped": estimate.ratio_overlapped,
    }

"""Make a plan: trace and compile a recipe's programs ahead of time, and collect what they cost as plain data."""

import collections
import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from looksam.methods import METHODS
from looksam.trainer.parallel import BatchSplit, make_layout
from looksam.trainer.plan import notes
from looksam.trainer.plan.chips import (
    DEFAULT_UTILISATION,
    Chip,
    Estimate,
    Seconds,
    check_devices,
    compared_programs,
    estimates,
    seconds,
)
from looksam.trainer.plan.fit import Fit, MemoryModel, probe_recipe, suggestions
from looksam.trainer.plan.flops import cost, count
from looksam.trainer.plan.program import Cost
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import window
from looksam.trainer.training import FAST_COMPILE, abstract_dataset, parameter_count, total_steps, trace_step

VERSION = 1  # of a plan as data; a new one where the meaning of a key changes or a key goes
REFRESH = {"base": None, "refresh": True, "reuse": False}  # what each program is traced with


def make_plan(recipe: Recipe, chip: Chip, utilisation: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Returns the plan of a recipe on its mesh.

    Compiles two or three programs for the devices that JAX has started with, and runs none of them.
    """
    data, fsdp = recipe.mesh_sizes() or (1, 1)
    check_devices(data * fsdp, jax.device_count())
    devices = make_layout(recipe.mesh_sizes()).devices
    BatchSplit.of(recipe, devices)  # raises before any time is spent
    total = total_steps(recipe)
    steps = min(total, recipe.steps or total)
    active = window(recipe, total).share(steps)
    costs = _costs(recipe, active, report)
    return as_data(
        recipe,
        costs,
        fit=_fit(recipe, costs, chip, devices, report),
        parameters=parameter_count(recipe, abstract_dataset(recipe)),
        chip=chip,
        devices=devices,
        steps=steps,
        active=active,
        backend=jax.default_backend(),
        utilisation=utilisation,
    )


def relative_flops(recipe: Recipe) -> float:
    """Returns the FLOPs of the recipe's mean step, relative to those of the base optimizer. Compiles nothing."""
    total = total_steps(recipe)
    shares = METHODS[recipe.method].programs(recipe.k, window(recipe, total).share(total))
    return sum(share * _flops(recipe, program) for program, share in shares.items()) / _flops(recipe, "base")


def _flops(recipe: Recipe, program: str) -> int:
    """The programs are the same for every k but 1, for which there is no ``reuse``."""
    return _counted_flops(_recipe_of(program, recipe.replace(k=min(recipe.k, 2))), program)


@functools.cache
def _counted_flops(recipe: Recipe, program: str) -> int:
    layout = make_layout(recipe.mesh_sizes())
    return count(trace_step(recipe, layout, REFRESH[program]).jaxpr, layout.devices).flops


def _recipe_of(program: str, recipe: Recipe) -> Recipe:
    return recipe.replace(method="base") if program == "base" else recipe


def _costs(recipe: Recipe, active: float, report: Callable[[str], None]) -> dict[str, Cost]:
    """Two programs are compiled at a time, the longest one first: the compiler uses one core for each."""
    compared = compared_programs(recipe.method, recipe.k, active).values()
    needed = {program for shares in compared for program in shares}
    names = [name for name in REFRESH if name in needed]
    longest_first = sorted(names, key=lambda name: name != "refresh")
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        costs = {name: pool.submit(_cost, recipe, name, report) for name in longest_first}
    return {name: costs[name].result() for name in names}


def _cost(recipe: Recipe, program: str, report: Callable[[str], None]) -> Cost:
    start, layout = time.perf_counter(), make_layout(recipe.mesh_sizes())
    traced = trace_step(_recipe_of(program, recipe), layout, REFRESH[program])
    compiled = traced.lower().compile(compiler_options=FAST_COMPILE)
    report(f"compiled {program} in {time.perf_counter() - start:.0f} s")
    return cost(traced, compiled, layout.devices)


def _fit(recipe: Recipe, costs: Mapping[str, Cost], chip: Chip, devices: int, report: Callable[[str], None]) -> Fit:
    """The largest program's memory; where it does not fit, one more program is compiled to see what would."""
    largest = max(costs, key=lambda name: costs[name].memory.total)
    memory, available = costs[largest].memory, chip.memory / chip.devices
    fit = Fit(memory.total, available)
    if fit.fits:
        return fit
    report(f"{largest} does not fit: compiling it with fewer images to see what would")
    small = _cost(probe_recipe(recipe, devices), largest, report).memory
    held = recipe.batch_size // devices
    images = held, (recipe.microbatch or recipe.batch_size) // devices
    gradient = 4.0 * parameter_count(recipe, abstract_dataset(recipe))  # in float32
    model = MemoryModel.between(small, memory, images, (recipe.mesh_sizes() or (1, 1))[1], gradient)
    return Fit(memory.total, available, suggestions(recipe, model, chip))


def as_data(
    recipe: Recipe,
    costs: Mapping[str, Cost],
    *,
    fit: Fit,
    parameters: int,
    chip: Chip,
    devices: int,
    steps: int,
    backend: str,
    utilisation: float = DEFAULT_UTILISATION,
    active: float = 1.0,
) -> dict[str, Any]:
    """Returns everything that ``looksam plan`` prints.

    Args:
      recipe: what is trained.
      costs: those of the programs ``base``, ``refresh`` and ``reuse``, as far as the recipe's method has them.
      fit: their memory compared with that of the chip.
      parameters: the number of the model's parameters.
      chip: the chip that the estimate is for.
      devices: the number of devices in the mesh.
      steps: the steps of the whole run.
      backend: the one that the programs were compiled for.
      utilisation: the share of the chip's peak that matrix products reach.
      active: the share of the steps on which the recipe's rule acts.
    """
    times = {name: seconds(cost, chip, recipe.dtype, utilisation) for name, cost in costs.items()}
    methods = estimates(times, recipe.method, recipe.k, steps, active)
    whole = [estimate.method for estimate in methods if active == 1 or estimate.method != recipe.method]
    rows = notes.paper_times(recipe, whole)  # the paper's rules act on all steps
    is_papers_run = recipe.epochs == notes.PAPER_EPOCHS and recipe.steps is None
    run_flops = costs["base"].flops * devices * steps
    return {
        "version": VERSION,
        "recipe": recipe.to_dict(),
        "devices": devices,
        "chips": devices / chip.devices,
        "chip": dataclasses.asdict(chip),
        "parameters": parameters,
        "memory": dataclasses.asdict(fit) | {"fits": fit.fits},
        "utilisation": utilisation,
        "backend": backend,
        "steps": steps,
        "active": active,
        "programs": {name: _program(costs[name], times[name]) for name in costs},
        "methods": [_method(estimate, devices / chip.devices) for estimate in methods],
        "paper": [dataclasses.asdict(row) | {"ratios": row.ratios} for row in rows],
        "notes": [
            *notes.paper_differences(methods, rows, recipe.k),
            *(notes.implied_utilisation(rows, run_flops) if is_papers_run else []),
            *notes.active_steps(recipe, active),
            *notes.caveats(recipe, costs, chip, devices, backend, utilisation),
        ],
    }


def _program(cost: Cost, times: Seconds) -> dict[str, Any]:
    return {
        "flops": cost.flops,
        "sent_bytes": cost.sent,
        "collectives": _by_kind(cost),
        "scalar_collectives": len(cost.collectives) - len(cost.arrays),
        "memory": dataclasses.asdict(cost.memory) | {"total": cost.memory.total},
        "seconds": dataclasses.asdict(times) | {"sequential": times.sequential, "overlapped": times.overlapped},
        "uncounted": list(cost.uncounted),
    }


def _by_kind(cost: Cost) -> dict[str, dict[str, float]]:
    """Collectives of more than scalars: how many run per step, their bytes on a device, and the bytes it sends."""
    kinds: dict[str, dict[str, float]] = collections.defaultdict(lambda: {"runs": 0, "bytes": 0, "sent": 0.0})
    for collective in cost.arrays:
        total, trips = kinds[collective.kind], collective.trips or 0
        total["runs"] += trips
        total["bytes"] += collective.bytes * trips
        total["sent"] += collective.sent
    return dict(kinds)


def _method(estimate: Estimate, chips: float) -> dict[str, Any]:
    return dataclasses.asdict(estimate) | {"chip_hours": estimate.hours * chips}

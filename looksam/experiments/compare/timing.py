"""Time a step relative to the base optimizer, all methods in turn, so that a machine that slows down slows them all."""

import random
import time

import jax
import numpy as np

from looksam.experiments.compare.sweep import Sweep


def time_ratios(sweeps: dict[str, Sweep], rounds: int) -> dict[str, tuple[float, float, float]]:
    """For each method the quartiles, over rounds, of its wall time to that of ``"base"``.

    A round takes as many steps of each method as make whole cycles of every k. The sweeps train on beyond their end:
    read what is wanted of them first.
    """
    cycle = int(np.lcm.reduce([sweep.recipe.k for sweep in sweeps.values()]))
    start, order, shuffle = next(iter(sweeps.values())).total_steps, list(sweeps), random.Random(0)
    start += -start % cycle
    seconds: dict[str, list[float]] = {name: [] for name in sweeps}
    for _ in range(rounds):
        spent = dict.fromkeys(sweeps, 0.0)
        for i in range(start, start + cycle):
            shuffle.shuffle(order)
            for name in order:
                began = time.perf_counter()
                sweeps[name].step(i)
                jax.block_until_ready(sweeps[name].state)
                spent[name] += time.perf_counter() - began
        for name in sweeps:
            seconds[name].append(spent[name])
    base = np.array(seconds["base"])
    low, middle, high = 0.25, 0.5, 0.75
    return {
        name: tuple(float(q) for q in np.quantile(np.array(taken) / base, [low, middle, high]))  # type: ignore[misc]
        for name, taken in seconds.items()
    }

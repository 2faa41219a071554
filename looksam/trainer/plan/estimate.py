"""Seconds a step and hours a run, from what the programs cost and a chip's figures. Nothing is fitted.

A program takes

  gradients   FLOPs / (peak · utilisation)
  state       2 · bytes of its outputs / memory bandwidth: the state is read and written once
  network     bytes sent / interconnect

and their sum if nothing overlaps, or the larger of gradients + state and network if the network overlaps with all else.
What is in no program costs nothing here: reading and decoding images, the host, evaluation, checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from looksam.trainer.plan.chips import Chip, check_utilisation, peak
from looksam.trainer.plan.program import Cost

EVERY_STEP = {"sam": "sam", "sam_k": "sam", "look_sam": "sam", "layer_sam": "layer_sam", "look_layer_sam": "layer_sam"}


@dataclass(frozen=True)
class Seconds:
    """Of one step."""

    gradients: float
    state: float
    network: float

    @property
    def apart(self) -> float:
        """Nothing overlaps."""
        return self.gradients + self.state + self.network

    @property
    def overlapped(self) -> float:
        """The network overlaps with everything else."""
        return max(self.gradients + self.state, self.network)

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.gradients + other.gradients, self.state + other.state, self.network + other.network)

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.gradients * factor, self.state * factor, self.network * factor)


@dataclass(frozen=True)
class Estimate:
    """Of one method."""

    method: str
    step: Seconds  # the mean step
    apart: float  # seconds a mean step, nothing overlaps
    overlapped: float  # seconds a mean step, the network behind everything else
    hours: float  # of the run, nothing overlaps
    hours_overlapped: float
    ratio: float  # to base, nothing overlaps
    ratio_overlapped: float


def seconds(cost: Cost, chip: Chip, dtype: str, utilisation: float) -> Seconds:
    """Of one run of a program on a device that is a chip, or one of its cores."""
    check_utilisation(utilisation)
    return Seconds(
        gradients=cost.flops / (peak(chip, dtype) * utilisation),
        state=2 * cost.memory.outputs / (chip.memory_bandwidth / chip.devices),
        network=cost.sent / (chip.interconnect / chip.devices),
    )


def mixture(method: str, k: int) -> dict[str, dict[str, float]]:
    """Which programs each method runs, as shares of its steps: base, the rule on every step, and the method itself.

    The program of ``sam`` or ``layer_sam`` is taken to be the refresh program of the recipe's own method: the same two
    gradients. That also projects and keeps g_v, which costs no matrix product and one more array of state.
    """
    found = {"base": {"base": 1.0}}
    if method != "base":
        found[EVERY_STEP[method]] = {"refresh": 1.0}
    if method not in found:
        found[method] = {"refresh": 1 / k, "reuse": 1 - 1 / k} if k > 1 else {"refresh": 1.0}
    return found


def estimates(programs: Mapping[str, Seconds], method: str, k: int, steps: int) -> list[Estimate]:
    """For base, the rule on every step, and the recipe's method. ``programs`` has base, refresh and reuse."""
    base = programs["base"]
    return [_estimate(name, programs, shares, base, steps) for name, shares in mixture(method, k).items()]


def _estimate(
    name: str, programs: Mapping[str, Seconds], shares: dict[str, float], base: Seconds, steps: int
) -> Estimate:
    step = sum((programs[program] * share for program, share in shares.items()), Seconds(0.0, 0.0, 0.0))
    overlapped = sum(programs[program].overlapped * share for program, share in shares.items())
    return Estimate(
        method=name,
        step=step,
        apart=step.apart,
        overlapped=overlapped,
        hours=step.apart * steps / 3600,
        hours_overlapped=overlapped * steps / 3600,
        ratio=step.apart / base.apart,
        ratio_overlapped=overlapped / base.overlapped,
    )

"""Accelerators: their published figures, virtual devices in their place, and the time that a program takes on them.

Peak figures, as the makers publish them: no program reaches them. TPUs: "TPU v3", "TPU v4", "TPU v5e" and "TPU v5p" in
the Cloud TPU documentation, tables of key specifications; devices per chip from JAX, which shows the two cores of a TPU
v3 chip as two devices and those of later chips as one. A100: "NVIDIA A100 Tensor Core GPU" data sheet, the SXM module
with 80 GB. H100: "NVIDIA H100 Tensor Core GPU" data sheet, the SXM module, whose published tensor figures are with
sparsity: half of them here.

A program takes

  gradients   FLOPs / (peak · utilisation)
  state       2 · bytes of its outputs / memory bandwidth: the state is read and written once
  network     bytes sent / interconnect

and their sum if nothing overlaps, or the larger of gradients + state and network if the network overlaps with all else.
Nothing is fitted. What is in no program costs nothing here: reading and decoding images, the host, evaluation,
checkpoints.
"""

import contextlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from looksam.arguments import did_you_mean
from looksam.methods import METHODS
from looksam.trainer.plan.program import Cost

GIB = 2**30
DEFAULT_UTILISATION = 0.4
DEVICE_COUNT = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Chip:
    """The figures of one chip."""

    name: str
    devices: int  # that JAX sees of it; a mesh counts devices
    bfloat16: float  # FLOP/s of dense matrix products
    float32: float  # the same on float32 arrays at JAX's default precision: one bfloat16 pass on TPU, TF32 on GPU
    memory: float  # bytes
    memory_bandwidth: float  # bytes/s
    interconnect: float  # bytes/s it can send, over all its links to other chips, one way
    connected: int  # chips with such links to each other; beyond them the network is slower, and not in these figures

    def peak(self, dtype: str) -> float:
        """FLOP/s of one device for a recipe that computes in ``dtype``."""
        peaks = {"bfloat16": self.bfloat16, "float32": self.float32}
        if dtype not in peaks:
            raise ValueError(f"dtype={dtype!r} is not planned for; pass {' or '.join(map(repr, peaks))}.")
        return peaks[dtype] / self.devices


# Interconnect: for v3, v4 and v5e the published all-reduce bandwidth of a pod over its chips (for v5e this is half of
# its published sum of both ways); for v5p, A100 and H100 half of the published sum of both ways.
CHIPS: dict[str, Chip] = {
    "tpu-v3": Chip("TPU v3", 2, 123e12, 123e12, 32 * GIB, 900e9, 340e12 / 1024, 1024),
    "tpu-v4": Chip("TPU v4", 1, 275e12, 275e12, 32 * GIB, 1200e9, 1.1e15 / 4096, 4096),
    "tpu-v5e": Chip("TPU v5e", 1, 197e12, 197e12, 16e9, 819e9, 51.2e12 / 256, 256),
    "tpu-v5p": Chip("TPU v5p", 1, 459e12, 459e12, 95e9, 2765e9, 1200e9 / 2, 8960),
    "a100": Chip("A100 SXM 80GB", 1, 312e12, 156e12, 80e9, 2039e9, 600e9 / 2, 8),
    "h100": Chip("H100 SXM", 1, 1979e12 / 2, 989e12 / 2, 80e9, 3350e9, 900e9 / 2, 8),
}


def find_chip(name: str) -> Chip:
    """Returns the chip of this name. Raises ValueError, with the nearest names there are."""
    if name not in CHIPS:
        raise ValueError(f"chip {name!r} is unknown{did_you_mean(name, list(CHIPS))}")
    return CHIPS[name]


def check_utilisation(share: float) -> None:
    """Raises ValueError unless ``share`` is in (0, 1]."""
    if not 0 < share <= 1:
        raise ValueError(f"utilisation={share} is out of range; pass 0 < utilisation <= 1.")


def use_virtual_devices(count: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets JAX start on the CPU with this many devices. What the user has set already stays as it is."""
    flags = environ.get("XLA_FLAGS", "")
    if "jax" in sys.modules and environ is os.environ:
        if DEVICE_COUNT not in flags:
            _reconfigure(count)
        return
    if DEVICE_COUNT not in flags:
        environ["XLA_FLAGS"] = f"{flags} {DEVICE_COUNT}={count}".strip()
    environ.setdefault("JAX_PLATFORMS", "cpu")


def _reconfigure(count: int) -> None:
    """Does the same where JAX has been imported, as by a recipe in Python, but has not started."""
    import jax

    with contextlib.suppress(RuntimeError):  # it has; whoever started it has chosen its devices
        jax.config.update("jax_num_cpu_devices", count)
        if not jax.config.jax_platforms:  # type: ignore[attr-defined]
            jax.config.update("jax_platforms", "cpu")


def check_devices(needed: int, available: int) -> None:
    """Raises ValueError if JAX has started with too few devices."""
    if available < needed:
        raise ValueError(
            f"the mesh has {needed:,} devices, and JAX has started with {available:,}; "
            f"leave {DEVICE_COUNT} out of XLA_FLAGS and JAX_PLATFORMS unset, or pass {DEVICE_COUNT}={needed}."
        )


@dataclass(frozen=True)
class Seconds:
    """The time of one step, by its parts."""

    gradients: float
    state: float
    network: float

    @property
    def sequential(self) -> float:
        """The time if nothing overlaps."""
        return self.gradients + self.state + self.network

    @property
    def overlapped(self) -> float:
        """The time if the network overlaps with everything else."""
        return max(self.gradients + self.state, self.network)


@dataclass(frozen=True)
class Estimate:
    """The time that one method takes."""

    method: str
    programs: dict[str, float]  # that its steps run, and the share of steps that runs each
    seconds: float  # per mean step, if nothing overlaps
    seconds_overlapped: float  # per mean step, if the network overlaps with everything else
    hours: float  # of the run, if nothing overlaps
    hours_overlapped: float
    ratio: float  # relative step time: to base, if nothing overlaps
    ratio_overlapped: float


def seconds(cost: Cost, chip: Chip, dtype: str, utilisation: float) -> Seconds:
    """Estimates the time of one run of a program on a device, which is a chip or one of its cores."""
    check_utilisation(utilisation)
    return Seconds(
        gradients=cost.flops / (chip.peak(dtype) * utilisation),
        state=2 * cost.memory.outputs / (chip.memory_bandwidth / chip.devices),
        network=cost.sent / (chip.interconnect / chip.devices),
    )


def compared_programs(method: str, k: int, active: float = 1.0) -> dict[str, dict[str, float]]:
    """Returns the programs, as shares of the steps, of base, of the rule on every step, and of the method itself.

    The method itself acts on the share ``active`` of the steps.
    The program of ``sam`` or ``layer_sam`` is taken to be the refresh program of the recipe's own method: the same two
    gradients. That also projects and keeps g_v, which costs no matrix product and one more array of state.
    """
    names = dict.fromkeys(("base", METHODS[method].every_step or "base", method))
    return {name: METHODS[name].programs(k, active if name == method else 1.0) for name in names}


def estimates(programs: Mapping[str, Seconds], method: str, k: int, steps: int, active: float = 1.0) -> list[Estimate]:
    """Estimates the times of base, of the rule on every step, and of the method; ``programs`` has those they run."""
    return [
        _estimate(name, programs, shares, programs["base"], steps)
        for name, shares in compared_programs(method, k, active).items()
    ]


def _estimate(
    method: str, programs: Mapping[str, Seconds], shares: dict[str, float], base: Seconds, steps: int
) -> Estimate:
    sequential = sum(programs[program].sequential * share for program, share in shares.items())
    overlapped = sum(programs[program].overlapped * share for program, share in shares.items())
    return Estimate(
        method=method,
        programs=shares,
        seconds=sequential,
        seconds_overlapped=overlapped,
        hours=sequential * steps / 3600,
        hours_overlapped=overlapped * steps / 3600,
        ratio=sequential / base.sequential,
        ratio_overlapped=overlapped / base.overlapped,
    )

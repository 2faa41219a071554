"""Figures of some accelerators, as their makers publish them. Peak figures: no program reaches them.

TPUs: "TPU v3", "TPU v4", "TPU v5e" and "TPU v5p" in the Cloud TPU documentation, tables of key specifications; devices
a chip from JAX, which shows the two cores of a TPU v3 chip as two devices and those of later chips as one. A100:
"NVIDIA A100 Tensor Core GPU" data sheet, the SXM module with 80 GB. H100: "NVIDIA H100 Tensor Core GPU" data sheet,
the SXM module, whose published tensor figures are with sparsity: half of them here.
"""

from dataclasses import dataclass

from looksam.arguments import did_you_mean

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One chip."""

    name: str
    devices: int  # that JAX sees of it; a mesh counts devices
    bfloat16: float  # FLOP/s of dense matrix products
    float32: float  # the same on float32 arrays at JAX's default precision: one bfloat16 pass on TPU, TF32 on GPU
    memory: float  # bytes
    memory_bandwidth: float  # bytes/s
    interconnect: float  # bytes/s it can send, over all its links to other chips, one way
    together: int  # chips so connected; past them the network is slower, and not in these figures


# Interconnect: of v3, v4 and v5e the published all-reduce bandwidth of a pod over its chips (for v5e this is half of
# its published sum of both ways); of v5p, A100 and H100 half of the published sum of both ways.
CHIPS: dict[str, Chip] = {
    "tpu-v3": Chip("TPU v3", 2, 123e12, 123e12, 32 * GIB, 900e9, 340e12 / 1024, 1024),
    "tpu-v4": Chip("TPU v4", 1, 275e12, 275e12, 32 * GIB, 1200e9, 1.1e15 / 4096, 4096),
    "tpu-v5e": Chip("TPU v5e", 1, 197e12, 197e12, 16e9, 819e9, 51.2e12 / 256, 256),
    "tpu-v5p": Chip("TPU v5p", 1, 459e12, 459e12, 95e9, 2765e9, 1200e9 / 2, 8960),
    "a100": Chip("A100 SXM 80GB", 1, 312e12, 156e12, 80e9, 2039e9, 600e9 / 2, 8),
    "h100": Chip("H100 SXM", 1, 1979e12 / 2, 989e12 / 2, 80e9, 3350e9, 900e9 / 2, 8),
}


def find(name: str) -> Chip:
    """The chip of this name. Raises ValueError, with the names there are."""
    if name not in CHIPS:
        raise ValueError(f"chip {name!r} is unknown{did_you_mean(name, list(CHIPS))}")
    return CHIPS[name]


def peak(chip: Chip, dtype: str) -> float:
    """FLOP/s of one device for a recipe that computes in ``dtype``."""
    return {"bfloat16": chip.bfloat16, "float32": chip.float32}[dtype] / chip.devices


def check_utilisation(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"utilisation={share} is out of range; pass 0 < utilisation <= 1.")

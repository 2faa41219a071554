"""What one compiled program costs a device: FLOPs, bytes sent, memory."""

from dataclasses import dataclass
from typing import Any

from looksam.trainer.plan.collectives import Collective, collectives
from looksam.trainer.plan.flops import flops, uncounted
from looksam.trainer.plan.hlo import parse


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by the compiler's buffer assignment on the back end it compiled for."""

    arguments: int  # the state and the batch
    outputs: int  # the new state and the metrics
    aliased: int  # of the outputs, what is written in place of arguments
    temporary: int  # activations, gradients, everything in between

    @property
    def total(self) -> int:
        return self.arguments + self.outputs - self.aliased + self.temporary


@dataclass(frozen=True)
class Cost:
    """Of one run of a program, on each device."""

    flops: int  # of matrix products and convolutions, see looksam.trainer.plan.flops
    collectives: tuple[Collective, ...]
    memory: Memory
    uncounted: tuple[str, ...]  # operations that may hide FLOPs

    @property
    def sent(self) -> float:
        """Bytes a device sends, by the ring formulas of looksam.trainer.plan.collectives."""
        return sum(found.sent for found in self.collectives)

    @property
    def runs(self) -> int:
        """How many collectives run, scalars too; not those in a loop of unknown length."""
        return sum(found.trips or 0 for found in self.collectives)

    @property
    def arrays(self) -> list[Collective]:
        """The collectives of more than norms, losses and flags."""
        return [found for found in self.collectives if not found.is_scalar]


def cost(compiled: Any) -> Cost:
    """Read a ``jax.stages.Compiled``. Nothing is run."""
    module = parse(compiled.as_text())
    return Cost(flops(module), tuple(collectives(module)), memory(compiled), uncounted(module))


def memory(compiled: Any) -> Memory:
    found = compiled.memory_analysis()
    if found is None:
        raise ValueError("this back end has no memory analysis; compile for another one, e.g. JAX_PLATFORMS=cpu.")
    return Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        temporary=found.temp_size_in_bytes,
    )

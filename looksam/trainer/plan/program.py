"""What one run of a program costs each device: FLOPs, bytes sent, and memory.

Bytes that each device sends, and also receives, by the ring algorithm among n devices, for an array of b bytes:

  all-reduce           2·b·(n − 1)/n     reduce-scatter, then all-gather
  all-gather             b·(n − 1)/n     b is the gathered result
  reduce-scatter         b·(n − 1)/n     b is the operand
  all-to-all             b·(n − 1)/n     b is the operand
  collective-permute     b               also collective-broadcast
"""

from dataclasses import dataclass
from typing import Any

SCALAR_BYTES = 1024  # the largest array of norms, losses or flags; a gradient has a kernel, which is larger


@dataclass(frozen=True)
class Collective:
    """One collective operation, its operands taken together."""

    kind: str  # as in the table above
    bytes: int  # on one device: the results of an all-gather, the operands of all others
    largest: int  # the same for the largest of its arrays alone
    group_size: int  # devices that take part in it together
    trips: int | None  # how often it runs per step, from the loops it is in; None where one has no known length
    loops: tuple[str, ...]  # names of those loops, outermost first
    conditional: bool  # in a branch that may not be taken
    name: str  # of the primitive

    @property
    def is_scalar(self) -> bool:
        """Whether it holds only norms, losses and flags, any number of them together, and no gradient."""
        return self.largest < SCALAR_BYTES

    @property
    def sent_once(self) -> float:
        """The bytes that one device sends when it runs once, by the formulas above."""
        if self.kind in ("collective-permute", "collective-broadcast"):
            return float(self.bytes)
        share = (self.group_size - 1) / self.group_size
        return self.bytes * share * (2 if self.kind == "all-reduce" else 1)

    @property
    def sent(self) -> float:
        """The bytes that one device sends per step; 0 for a scalar in a loop of unknown length, an error for more."""
        if self.trips is None and not self.is_scalar:
            raise ValueError(
                f"{self.kind} {self.name!r} of {self.bytes:,} bytes is in loop {self.loops[-1]!r}, and it is not known "
                f"how often that runs; use lax.scan, or lax.fori_loop with bounds that are plain numbers."
            )
        return self.sent_once * (self.trips or 0)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by the compiler's buffer assignment on the back end it compiled for."""

    arguments: int  # the state and the batch
    outputs: int  # the new state and the metrics
    aliased: int  # of the outputs, what is written in place of arguments
    temporary: int  # activations, gradients, everything in between

    @classmethod
    def of(cls, compiled: Any) -> "Memory":
        """Reads the figures of a ``jax.stages.Compiled``. Raises ValueError where the back end has none."""
        analysis = compiled.memory_analysis()
        if analysis is None:
            raise ValueError("this back end has no memory analysis; compile for another one, e.g. JAX_PLATFORMS=cpu.")
        return cls(
            arguments=analysis.argument_size_in_bytes,
            outputs=analysis.output_size_in_bytes,
            aliased=analysis.alias_size_in_bytes,
            temporary=analysis.temp_size_in_bytes,
        )

    @property
    def resident(self) -> int:
        """The state and the batch, which stay between steps."""
        return self.arguments + self.outputs - self.aliased

    @property
    def total(self) -> int:
        return self.resident + self.temporary


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a program on each device."""

    flops: int  # of matrix products and convolutions, see looksam.trainer.plan.flops
    collectives: tuple[Collective, ...]
    memory: Memory
    uncounted: tuple[str, ...]  # operations that may hide FLOPs

    @property
    def sent(self) -> float:
        """The bytes that a device sends, by the formulas above."""
        return sum(collective.sent for collective in self.collectives)

    @property
    def runs(self) -> int:
        """How many collectives run, scalars too; not those in a loop of unknown length."""
        return sum(collective.trips or 0 for collective in self.collectives)

    @property
    def arrays(self) -> list[Collective]:
        """The collectives of more than norms, losses and flags."""
        return [collective for collective in self.collectives if not collective.is_scalar]

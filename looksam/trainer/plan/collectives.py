"""What the devices of a mesh send each other in a compiled program.

Bytes that each device sends, and also receives, by the ring algorithm among n devices, for an array of b bytes:

  all-reduce           2·b·(n − 1)/n     reduce-scatter, then all-gather
  all-gather             b·(n − 1)/n     b is the gathered result
  reduce-scatter         b·(n − 1)/n     b is the operand
  all-to-all             b·(n − 1)/n     b is the operand
  collective-permute     b               also collective-broadcast
"""

from collections.abc import Iterator
from dataclasses import dataclass

from looksam.trainer.plan.control import ONCE, branches, passes
from looksam.trainer.plan.groups import group_size
from looksam.trainer.plan.hlo import Instruction, Module, parse
from looksam.trainer.plan.shapes import total_bytes

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
SCALAR_BYTES = 1024  # the largest array of norms, losses or flags; a gradient has a kernel, which is larger


@dataclass(frozen=True)
class Collective:
    """One collective operation, its operands taken together."""

    kind: str  # one of KINDS; the -start of an asynchronous one counts for the pair
    bytes: int  # on one device: the results of an all-gather, the operands of all others
    largest: int  # the same of the largest of its arrays alone
    group_size: int  # devices that take part in it together
    trips: int | None  # runs of it a step: the product of the loops it is in; None where one has no known length
    loops: tuple[str, ...]  # names of those loops, outermost first
    conditional: bool  # in a branch that may not be taken
    name: str  # of the instruction

    @property
    def is_scalar(self) -> bool:
        """Norms, losses and flags, any number of them together, and no gradient."""
        return self.largest < SCALAR_BYTES

    @property
    def sent_once(self) -> float:
        """Bytes one device sends when it runs once, by the formulas above."""
        if self.kind in ("collective-permute", "collective-broadcast"):
            return float(self.bytes)
        share = (self.group_size - 1) / self.group_size
        return self.bytes * share * (2 if self.kind == "all-reduce" else 1)

    @property
    def sent(self) -> float:
        """Bytes one device sends in a step; 0 for a scalar in a loop of unknown length, an error for more."""
        if self.trips is None and not self.is_scalar:
            raise ValueError(
                f"{self.kind} {self.name!r} of {self.bytes:,} bytes is in loop {self.loops[-1]!r}, and the compiler "
                f"does not know how often that runs; give the loop a length that is a plain number."
            )
        return self.sent_once * (self.trips or 0)


def collectives(program: str | Module) -> list[Collective]:
    """All of a program's, in the order of its text within each computation; a branch's are marked ``conditional``."""
    module = parse(program)
    return list(_walk(module, module.entry, (), 1, False))


def _walk(
    module: Module, name: str, loops: tuple[str, ...], trips: int | None, conditional: bool
) -> Iterator[Collective]:
    near = module.computations[name]
    for i in near.values():
        kind = i.opcode.removesuffix("-start")
        if kind in KINDS:
            size = group_size(_groups(i), module.devices)
            parts = _bytes(i, kind, near, size)
            yield Collective(kind, sum(parts), max(parts), size, trips, loops, conditional, i.name)
        elif i.opcode.startswith(("ragged-all-to-all", "send", "recv")):
            raise ValueError(f"{i.opcode} {i.name!r}: how much it sends is not known here.")
        elif i.opcode == "while":
            for called, count in passes(i):
                inside = None if trips is None or count is None else trips * count
                yield from _walk(module, called, (*loops, i.name), inside, conditional)
        elif i.opcode == "conditional":
            for called in branches(i):
                yield from _walk(module, called, loops, trips, True)
        elif i.opcode in ONCE:
            for called in i.names(ONCE[i.opcode]):
                yield from _walk(module, called, loops, trips, conditional)


def _groups(i: Instruction) -> str | None:
    """A permutation has source-target pairs instead of groups; its size does not matter to what is sent."""
    return None if i.opcode.startswith("collective-permute") else i.attribute("replica_groups")


def _bytes(i: Instruction, kind: str, near: dict[str, Instruction], size: int) -> list[int]:
    """Of each array."""
    operands = [total_bytes(near[name].shape) for name in i.operands]
    if kind == "all-to-all":  # one array, printed as the parts that go to each device
        return [sum(operands)]
    if kind != "all-gather":
        return operands
    if i.opcode == "all-gather" and total_bytes(i.shape) != sum(operands) * size:
        raise ValueError(f"all-gather {i.name!r} of {sum(operands)} bytes among {size} devices gives {i.shape}.")
    return [part * size for part in operands]

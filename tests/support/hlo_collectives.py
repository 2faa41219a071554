"""Read the collectives of a compiled program from its text (HLO), to compare with what a plan counts in the jaxpr.

The text is what ``jax.jit(f).lower(...).compile().as_text()`` gives. It is the program of ONE device: under a mesh,
shapes are those of a device's part.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from looksam.trainer.plan.program import Collective

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
ONCE = {"fusion": "calls", "call": "to_apply", "async-start": "calls"}  # and the attribute that names what is called

# The layout in braces, if there is one, does not matter to the size.
_ARRAY = re.compile(r"\b(token|opaque|[a-z]+[a-z0-9]*)\[([^\]]*)\]")
_WIDTH = re.compile(r"(?:s|u|f|bf|c)(\d+)")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*.*?\*/")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_METADATA = re.compile(rf", metadata=\{{(?:[^{{}}\"]|{_QUOTED}|\{{[^{{}}]*\}})*\}}")
_OPERAND = re.compile(r"%([\w.\-]+)")
_PAIRS = {"(": ")", "{": "}"}


class Array(NamedTuple):
    """One array: its element type and the length of each axis."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return -(-self.size * bits(self.dtype) // 8)


Shape = tuple[Array, ...]  # the arrays of a tuple in order, nested ones too; one for a plain array


def parse_shape(text: str) -> Shape:
    """The arrays in a printed shape. A bounded axis, ``<=8``, counts at its bound."""
    return tuple(Array(dtype, _dims(dims)) for dtype, dims in _ARRAY.findall(text))


def total_bytes(shape: Shape) -> int:
    return sum(array.bytes for array in shape)


def bits(dtype: str) -> int:
    """Of one element. The first number in a name is its width: bf16, s4, f8e4m3fn."""
    if dtype in ("token", "opaque"):
        return 0
    if dtype == "pred":
        return 8
    width = _WIDTH.match(dtype)
    if not width:
        raise ValueError(f"element type {dtype!r} has no known width; this reader must learn it.")
    return int(width[1])


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(part.strip().removeprefix("<=")) for part in text.split(",") if part.strip())


def group_size(text: str | None, devices: int) -> int:
    """Devices in each group. No groups, or one empty list of them: all devices are one group.

    Example:
      >>> [group_size(text, 8) for text in ("{{0,1},{2,3}}", "[4,2]<=[8]", "mesh['a'=2,'b'=4] {'b'}", "{}", None)]
      [2, 2, 4, 8, 8]
    """
    if text is None or text.strip() in ("", "{}", "{{}}"):
        return devices
    if text.startswith("{"):
        return _listed(text)
    if found := re.match(r"\[\d+,(\d+)\]<=\[", text):  # number of groups, size of each, and the devices' order
        return int(found[1])
    if text.startswith("mesh["):
        return _of_mesh(text)
    raise ValueError(f"replica_groups={text} is in a form that is not known.")


def _listed(text: str) -> int:
    sizes = {group.count(",") + 1 for group in re.findall(r"\{([\d,]+)\}", text)}
    if len(sizes) != 1:
        raise ValueError(f"replica_groups={text} are not of one size.")
    return sizes.pop()


def _of_mesh(text: str) -> int:
    """``mesh['a'=2,'b'=4] {'b'}``: the devices along axis b. ``'b':(2)2`` is a part of an axis, of the last number."""
    mesh, _, used = text.partition("]")
    lengths = {name: int(length) for name, length in _AXIS.findall(mesh)}
    axes = _USED.findall(used)
    if not axes or any(name not in lengths for name, _, _ in axes):
        raise ValueError(f"replica_groups={text} is in a form that is not known.")
    return math.prod(int(part) if part else lengths[name] for name, _, part in axes)


class Instruction(NamedTuple):
    """One line: ``%name = shape opcode(operands), attributes``."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]  # names
    attributes: str  # as printed, without the metadata

    def attribute(self, name: str) -> str | None:
        """The text of ``name=...``, braces included; None if there is no such attribute."""
        found = re.search(rf"(?:^|, ){name}=", self.attributes)
        return _value(self.attributes[found.end() :]) if found else None

    def names(self, attribute: str) -> tuple[str, ...]:
        """The computations an attribute names: ``body=%b``, ``branch_computations={%b, %c}``."""
        return tuple(_OPERAND.findall(self.attribute(attribute) or ""))


class Module(NamedTuple):
    """A program."""

    name: str
    entry: str
    computations: dict[str, dict[str, Instruction]]  # by name, then by the instruction's name
    devices: int  # it runs on, each with its part of the data


def parse(text: str | Module) -> Module:
    """Read a program; one that has been read stays as it is. Raises ValueError for a line that is not HLO."""
    if isinstance(text, Module):
        return text
    first, _, rest = text.partition("\n")
    if not first.startswith("HloModule "):
        raise ValueError(f"this is not a compiled program's text: it begins with {first[:40]!r}, not 'HloModule'.")
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    for is_entry, name, lines in _blocks(rest):
        computations[name] = {found.name: found for found in map(_instruction, lines)}
        entry = name if is_entry else entry
    if not entry:
        raise ValueError(f"program {first.split()[1]!r} has no ENTRY computation.")
    return Module(first.split()[1].rstrip(","), entry, computations, _devices(first))


def _blocks(text: str) -> Iterator[tuple[bool, str, list[str]]]:
    """(is entry, name, lines) of each computation. What comes before the first one are tables of source lines."""
    header: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if header is None:
            header = _HEADER.match(line)
        elif line.startswith("}"):
            yield bool(header[1]), header[2], lines
            header, lines = None, []
        elif line.strip():
            lines.append(line)


def _instruction(line: str) -> Instruction:
    name = _NAME.match(line)
    if not name:
        raise ValueError(f"no instruction of a compiled program: {line.strip()[:120]!r}.")
    rest = _METADATA.sub("", line[name.end() :])
    shape = _balanced(rest) if rest.startswith("(") else rest.partition(" ")[0]
    opcode = _OPCODE.match(rest, len(shape))
    if not opcode:
        raise ValueError(f"no operation in this line of a compiled program: {line.strip()[:120]!r}.")
    inside = _balanced(rest[opcode.end() - 1 :])
    attributes = rest[opcode.end() - 1 + len(inside) :].removeprefix(", ")
    operands = () if opcode[1] == "constant" else tuple(_OPERAND.findall(inside))
    return Instruction(name[1], opcode[1], parse_shape(_COMMENT.sub("", shape)), operands, attributes)


def _balanced(text: str) -> str:
    """The opening bracket ``text`` starts with, to the one that closes it."""
    opening, closing, depth = text[0], _PAIRS[text[0]], 0
    for match in re.finditer(rf"{_QUOTED}|[{re.escape(opening + closing)}]", text):
        depth += {opening: 1, closing: -1}.get(match[0], 0)
        if depth == 0:
            return text[: match.end()]
    raise ValueError(f"a bracket is never closed in {text[:120]!r}.")


def _value(text: str) -> str:
    """Up to the next attribute; ``mesh['a'=4], device_ids=([4]) {'a'}`` is one value, though."""
    return _balanced(text) if text[:1] in _PAIRS else re.split(r", (?!device_ids=)(?=[a-z_]+=)", text, maxsplit=1)[0]


def _devices(header: str) -> int:
    counts = [re.search(rf"\b{name}=(\d+)", header) for name in ("num_partitions", "replica_count")]
    return int(counts[0][1] if counts[0] else 1) * int(counts[1][1] if counts[1] else 1)


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


def trip_count(loop: Instruction) -> int | None:
    """How often a ``while`` runs, where the compiler has found it out."""
    config = loop.attribute("backend_config")
    count = json.loads(config).get("known_trip_count") if config else None
    return int(count["n"]) if count else None


def passes(loop: Instruction) -> list[tuple[str, int | None]]:
    """The computations of a ``while`` and how often each runs: the condition once more than the body."""
    trips = trip_count(loop)
    body = [(name, trips) for name in loop.names("body")]
    return body + [(name, None if trips is None else trips + 1) for name in loop.names("condition")]


def branches(conditional: Instruction) -> tuple[str, ...]:
    pair = conditional.names("true_computation") + conditional.names("false_computation")
    return conditional.names("branch_computations") or pair

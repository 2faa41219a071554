"""A compiled program's text (HLO), read into computations and instructions.

The text is what ``jax.jit(f).lower(...).compile().as_text()`` gives. It is the program of ONE device: under a mesh,
shapes are those of a device's part.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from looksam.trainer.plan.shapes import Shape, parse_shape

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*.*?\*/")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_METADATA = re.compile(rf", metadata=\{{(?:[^{{}}\"]|{_QUOTED}|\{{[^{{}}]*\}})*\}}")
_OPERAND = re.compile(r"%([\w.\-]+)")
_PAIRS = {"(": ")", "{": "}"}


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

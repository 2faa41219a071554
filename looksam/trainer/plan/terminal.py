"""A plan as text for the terminal."""

import textwrap
from collections.abc import Sequence
from typing import Any

from looksam.methods import METHODS
from looksam.trainer.plan.chips import GIB

WIDTH = 118
LEAST_HOURS = 0.01  # that are shown
PROGRAM_HEADER = (
    *("program", "FLOPs", "collectives", "sent", "memory", "= state and batch", "+ temporary", "time per step"),
)
METHOD_HEADER = ("method", "time per step", "whole run", "chip-hours", "relative", "overlapped: whole run", "relative")


def as_text(name: str, plan: dict[str, Any]) -> str:
    """Returns the heading, a table of the programs, the memory, a table of the methods, and the notes."""
    parts = [heading(name, plan), _programs(plan), _memory(plan), _methods(plan)]
    notes = [textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in plan["notes"]]
    return "\n\n".join([*parts, "\n".join(notes)])


def heading(name: str, plan: dict[str, Any]) -> str:
    """Returns two lines: the recipe, and the devices with a chip's figures."""
    recipe, chip = plan["recipe"], plan["chip"]
    peak = chip["bfloat16" if recipe["dtype"] == "bfloat16" else "float32"]
    lines = [
        f"{name}: {recipe['model']} with {count(plan['parameters'])} parameters, {recipe['optimizer']}, "
        f"batch {recipe['batch_size']:,}, {plan['steps']:,} step{'s' * (plan['steps'] != 1)}",
        f"{_devices(plan['devices'], plan['chips'])} {chip['name']}; per chip: {peak / 1e12:g} TFLOP/s in "
        f"{recipe['dtype']}, {chip['memory'] / GIB:.0f} GiB at {chip['memory_bandwidth'] / 1e9:g} GB/s, "
        f"{chip['interconnect'] / 1e9:.0f} GB/s to others",
    ]
    return "\n".join(lines)


def _devices(devices: int, chips: float) -> str:
    """Returns the number of devices, and of chips."""
    return f"{devices:,} device{'s' * (devices != 1)}, {chips:,g} chip{'s' * (chips != 1)}"


def _programs(plan: dict[str, Any]) -> str:
    rows = [_program(name, program) for name, program in plan["programs"].items()]
    return "Per device and step:\n" + aligned([PROGRAM_HEADER, *rows])


def _program(name: str, program: dict[str, Any]) -> tuple[str, ...]:
    memory = program["memory"]
    return (
        name,
        scaled(program["flops"]),
        _collectives(program),
        scaled(program["sent_bytes"], "B"),
        binary(memory["total"]),
        binary(memory["arguments"] + memory["outputs"] - memory["aliased"]),
        binary(memory["temporary"]),
        duration(program["seconds"]["sequential"]),
    )


def _memory(plan: dict[str, Any]) -> str:
    """Returns whether the largest program fits, and what would if it does not."""
    memory, chip = plan["memory"], plan["chip"]["name"]
    needed, available = binary(memory["needed"]), binary(memory["available"])
    if memory["fits"]:
        return f"Memory: {needed} of the {available} that a device of {chip} has."
    text = f"Memory: {needed} do not fit in the {available} that a device of {chip} has."
    if not memory["suggestions"]:
        return f"{text} No mesh of this chip does: pass a chip with more memory, or a smaller model or batch."
    rows = [
        (f"  {found['flags']}", binary(found["memory"]), _devices(found["devices"], found["chips"]))
        for found in memory["suggestions"]
    ]
    return f"{text} These would, by an estimate that leaves a tenth free:\n{aligned(rows)}"


def _collectives(program: dict[str, Any]) -> str:
    kinds = [f"{total['runs']:,} {kind}" for kind, total in program["collectives"].items()]
    scalars = f"{program['scalar_collectives']:,} of scalars" if program["scalar_collectives"] else ""
    return ", ".join(filter(None, [*kinds, scalars])) or "none"


def _methods(plan: dict[str, Any]) -> str:
    rows = [_method(method, plan) for method in plan["methods"]]
    header = METHOD_HEADER + tuple(_paper_header(row, plan["recipe"]["batch_size"]) for row in plan["paper"])
    return "The whole run:\n" + aligned([header, *rows])


def _method(method: dict[str, Any], plan: dict[str, Any]) -> tuple[str, ...]:
    return (
        _name(method["method"], plan),
        duration(method["seconds"]),
        duration(3600 * method["hours"]),
        number(method["chip_hours"]) if method["chip_hours"] >= LEAST_HOURS else f"<{LEAST_HOURS}",
        f"{method['ratio']:.2f}",
        duration(3600 * method["hours_overlapped"]),
        f"{method['ratio_overlapped']:.2f}",
        *(_paper_entry(row, method["method"]) for row in plan["paper"]),
    )


def _name(method: str, plan: dict[str, Any]) -> str:
    recipe, active = plan["recipe"], plan["active"]
    late = f", {active:.3g} of the steps" if method == recipe["method"] and active < 1 else ""
    return METHODS[method].display(recipe["k"]) + late


def _paper_header(row: dict[str, Any], batch_size: int) -> str:
    batch = f" at {row['batch_size']:,}" if row["batch_size"] != batch_size else ""
    return f"paper{batch}" + (f", {row['chips']:,} chips" if row["chips"] else "")


def _paper_entry(row: dict[str, Any], method: str) -> str:
    hours, ratio = row["hours"].get(method), row["ratios"].get(method)
    if hours is None:
        return "–"
    return f"{hours:.1f} h" + (f", {ratio:.2f}" if ratio else "")


def number(value: float) -> str:
    """Formats a number: three digits, and whole with commas from 1,000 on.

    >>> number(0.012345), number(12.345), number(12345.6)
    ('0.0123', '12.3', '12,346')
    """
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def count(value: int) -> str:
    """Formats a number of parameters.

    >>> count(86_567_656), count(42_634), count(10)
    ('86.6M', '42.6K', '10')
    """
    for letter, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return str(value)


def duration(seconds: float) -> str:
    """Formats a time in the unit that suits it.

    >>> duration(2e-5), duration(0.0834), duration(2.979), duration(754), duration(21_240), duration(5e6)
    ('20 µs', '83.4 ms', '2.98 s', '12.6 min', '5.9 h', '1,389 h')
    """
    for unit, size, limit in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 60.0), ("min", 60.0, 3600.0)):
        if seconds < limit:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 3600)} h"


def scaled(value: float, unit: str = "") -> str:
    """Formats a number with a decimal prefix.

    >>> scaled(12.6e6), scaled(1.4e9, "B"), scaled(0.0, "B")
    ('12.6 M', '1.4 GB', '0 B')
    """
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{number(value / size)} {prefix}{unit}"
    return f"{number(value)} {unit}".rstrip()


def binary(value: float) -> str:
    """Formats bytes of memory.

    >>> binary(988.2 * GIB), binary(3 * 2**20)
    ('988 GiB', '3 MiB')
    """
    unit, size = ("GiB", GIB) if value >= GIB else ("MiB", 2**20)
    return f"{number(value / size)} {unit}"


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows as columns of equal width, the first one to the left.

    Not by Rich, which folds what is wider than the terminal: a plan is also read from files and pipes.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines)

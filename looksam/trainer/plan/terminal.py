"""A plan as text for the terminal."""

import textwrap
from typing import Any

from looksam.methods import METHODS
from looksam.trainer.plan.chips import GIB

WIDTH = 118
PROGRAM_HEADER = (
    *("program", "TFLOPs", "collectives", "MB sent", "memory, GiB", "= state and batch", "+ temporary", "s per step"),
)
METHOD_HEADER = ("method", "s per step", "hours", "chip-hours", "relative", "overlapped: hours", "relative")


def as_text(name: str, plan: dict[str, Any]) -> str:
    """Returns the heading, a table of the programs, a table of the methods, and the notes."""
    parts = [heading(name, plan), _programs(plan), _methods(plan)]
    notes = [textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in plan["notes"]]
    return "\n\n".join([*parts, "\n".join(notes)])


def heading(name: str, plan: dict[str, Any]) -> str:
    """Returns two lines: the recipe, and the devices with a chip's figures."""
    recipe, chip = plan["recipe"], plan["chip"]
    peak = chip["bfloat16" if recipe["dtype"] == "bfloat16" else "float32"]
    lines = [
        f"{name}: {recipe['model']}, {recipe['optimizer']}, batch {recipe['batch_size']:,}, {plan['steps']:,} steps",
        f"{plan['devices']:,} devices, {plan['chips']:,g} chips {chip['name']}; per chip: {peak / 1e12:g} TFLOP/s in "
        f"{recipe['dtype']}, {chip['memory'] / GIB:.0f} GiB at {chip['memory_bandwidth'] / 1e9:g} GB/s, "
        f"{chip['interconnect'] / 1e9:.0f} GB/s to others",
    ]
    return "\n".join(lines)


def _programs(plan: dict[str, Any]) -> str:
    rows = [_program(name, program) for name, program in plan["programs"].items()]
    return "Per device and step:\n" + aligned([PROGRAM_HEADER, *rows])


def _program(name: str, program: dict[str, Any]) -> tuple[str, ...]:
    memory = program["memory"]
    return (
        name,
        number(program["flops"] / 1e12),
        _collectives(program),
        number(program["sent_bytes"] / 1e6),
        number(memory["total"] / GIB),
        number((memory["arguments"] + memory["outputs"] - memory["aliased"]) / GIB),
        number(memory["temporary"] / GIB),
        number(program["seconds"]["sequential"]),
    )


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
        number(method["seconds"]),
        number(method["hours"]),
        number(method["chip_hours"]),
        f"{method['ratio']:.2f}",
        number(method["hours_overlapped"]),
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
    """Formats a number: whole with commas from 1,000 on, four digits below."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Returns rows as columns of equal width, the first one to the left.

    Not by Rich, which folds what is wider than the terminal: a plan is also read from files and pipes.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines)

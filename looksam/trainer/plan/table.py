"""A plan as text for the terminal."""

import textwrap
from typing import Any

from looksam import methods
from looksam.trainer.plan.chips import GIB

WIDTH = 118
PROGRAMS = (
    "program",
    "TFLOPs",
    "collectives",
    "MB sent",
    "memory, GiB",
    "= state and batch",
    "+ temporary",
    "s a step",
)
METHODS = ("method", "s a step", "hours", "chip-hours", "of base", "overlapped: hours", "of base")


def as_text(name: str, result: dict[str, Any]) -> str:
    parts = [heading(name, result), _programs(result), _methods(result)]
    notes = [textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in result["notes"]]
    return "\n\n".join([*parts, "\n".join(notes)])


def heading(name: str, result: dict[str, Any]) -> str:
    recipe, chip = result["recipe"], result["chip"]
    peak = chip["bfloat16" if recipe["dtype"] == "bfloat16" else "float32"]
    lines = [
        f"{name}: {recipe['model']}, {recipe['optimizer']}, batch {recipe['batch_size']:,}, {result['steps']:,} steps",
        f"{result['devices']:,} devices, {result['chips']:,g} chips {chip['name']}; a chip: {peak / 1e12:g} TFLOP/s in "
        f"{recipe['dtype']}, {chip['memory'] / GIB:.0f} GiB at {chip['memory_bandwidth'] / 1e9:g} GB/s, "
        f"{chip['interconnect'] / 1e9:.0f} GB/s to others",
    ]
    return "\n".join(lines)


def _programs(result: dict[str, Any]) -> str:
    rows = [_program(name, program) for name, program in result["programs"].items()]
    return "Each device, each step:\n" + aligned([PROGRAMS, *rows])


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
        number(program["seconds"]["apart"]),
    )


def _collectives(program: dict[str, Any]) -> str:
    kinds = [f"{total['runs']:,} {kind}" for kind, total in program["collectives"].items()]
    scalars = f"{program['scalar_collectives']:,} of scalars" if program["scalar_collectives"] else ""
    return ", ".join(filter(None, [*kinds, scalars])) or "none"


def _methods(result: dict[str, Any]) -> str:
    rows = [_method(method, result) for method in result["methods"]]
    head = METHODS + tuple(_paper_head(row, result["recipe"]["batch_size"]) for row in result["paper"])
    return "The run:\n" + aligned([head, *rows])


def _method(method: dict[str, Any], result: dict[str, Any]) -> tuple[str, ...]:
    return (
        methods.METHODS[method["method"]].display(result["recipe"]["k"]),
        number(method["seconds"]),
        number(method["hours"]),
        number(method["chip_hours"]),
        f"{method['ratio']:.2f}",
        number(method["hours_overlapped"]),
        f"{method['ratio_overlapped']:.2f}",
        *(_paper_cell(row, method["method"]) for row in result["paper"]),
    )


def _paper_head(row: dict[str, Any], batch_size: int) -> str:
    batch = f" at {row['batch_size']:,}" if row["batch_size"] != batch_size else ""
    return f"paper{batch}" + (f", {row['chips']:,} chips" if row["chips"] else "")


def _paper_cell(row: dict[str, Any], method: str) -> str:
    hours, ratio = row["hours"].get(method), row["ratios"].get(method)
    if hours is None:
        return "–"
    return f"{hours:.1f} h" + (f", {ratio:.2f}" if ratio else "")


def number(value: float) -> str:
    """Whole with commas from 1,000 on, four digits below."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines)

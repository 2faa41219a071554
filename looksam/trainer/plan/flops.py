"""FLOPs of the matrix products and convolutions in a compiled program, on one device.

A product of (M, K) by (K, N) counts 2·M·N·K: a multiplication and an addition for each of its terms. A convolution
counts 2 for each pair of a weight and an input element that meet; padding, and the holes that a stride leaves in the
gradient of the input, are not computed with and not counted. What is inside a loop counts as often as the loop runs,
and of a conditional's branches the costliest one. Everything else (sums, activations, norms, the optimizer) is not
counted: its time is that of reading and writing memory. That includes a dot product of two vectors and a product with
K = 1, which the compiler turns into multiplications and sums.
"""

import functools
import math
from collections.abc import Callable

from looksam.trainer.plan.control import ONCE, branches, passes
from looksam.trainer.plan.hlo import Instruction, Module, parse
from looksam.trainer.plan.opcodes import CUSTOM_CALLS_WITHOUT_PRODUCTS, WITHOUT_PRODUCTS
from looksam.trainer.plan.shapes import Array
from looksam.trainer.plan.windows import pairs_that_meet, parse_window


def flops(program: str | Module) -> int:
    """Of one run of the program on one device. Raises ValueError where a loop around a product has no known length."""
    return _count(parse(program))


def uncounted(program: str | Module) -> tuple[str, ...]:
    """Operations that may hide FLOPs: custom calls and ones not known here, sorted. Empty if the count is whole."""
    module = parse(program)
    every = (i for computation in module.computations.values() for i in computation.values())
    return tuple(sorted({_kind(i) for i in every if not _is_known(i)}))


def _count(module: Module) -> int:
    @functools.cache
    def of(name: str) -> int:
        instructions = module.computations[name]
        return sum(of_instruction(i, instructions) for i in instructions.values())

    def of_instruction(i: Instruction, near: dict[str, Instruction]) -> int:
        if i.opcode == "dot":
            return _dot(i, *_arrays(i, near))
        if i.opcode == "convolution":
            return _convolution(i, *_arrays(i, near))
        if i.opcode == "while":
            return _loop(i, of)
        if i.opcode == "conditional":
            return max(map(of, branches(i)))
        if i.opcode in ONCE:
            return sum(map(of, i.names(ONCE[i.opcode])))
        return _applied(i, of)

    return of(module.entry)


def _loop(i: Instruction, of: Callable[[str], int]) -> int:
    inside = [(of(name), count) for name, count in passes(i)]
    for found, count in inside:
        if found and count is None:
            raise ValueError(
                f"loop {i.name!r} holds {found:,} FLOPs a pass, and the compiler does not know how often it runs; "
                f"use lax.scan, or lax.fori_loop with bounds that are plain numbers."
            )
    return sum(found * (count or 0) for found, count in inside)


def _applied(i: Instruction, of: Callable[[str], int]) -> int:
    """0. A reduction, sort or scatter applies a computation to each of its elements: that holds no product."""
    for name in (*i.names("to_apply"), *i.names("called_computations"), *i.names("select"), *i.names("scatter")):
        if of(name):
            raise ValueError(f"{i.opcode} {i.name!r} applies {name!r}, which holds FLOPs, an unknown number of times.")
    return 0


def _arrays(i: Instruction, near: dict[str, Instruction]) -> tuple[Array, Array, Array]:
    """Left operand, right operand and result."""
    if len(i.operands) != 2:
        raise ValueError(f"{i.opcode} {i.name!r} has operands {i.operands}, and two were expected.")
    left, right = (near[name].shape[0] for name in i.operands)
    return left, right, i.shape[0]


def _dot(i: Instruction, left: Array, right: Array, result: Array) -> int:
    contracted = math.prod(left.dims[axis] for axis in _axes(i.attribute("lhs_contracting_dims")))
    return 2 * result.size * contracted


def _axes(text: str | None) -> list[int]:
    return [int(part) for part in (text or "").strip("{}").split(",") if part]


def _convolution(i: Instruction, left: Array, right: Array, result: Array) -> int:
    """Each output element meets the kernel's input features (those of its own group) at each window position."""
    labels = i.attribute("dim_labels") or ""
    of_input, of_kernel, of_output = labels.replace("->", "_").split("_")
    spatial = sorted(label for label in of_output if label.isdigit())
    if set(of_output) != {"b", "f", *spatial} or set(of_kernel) != {"i", "o", *spatial}:
        raise ValueError(f"convolution {i.name!r} has axes {labels!r}, which are not understood.")
    met = 1
    for label, window in zip(spatial, parse_window(i.attribute("window"), len(spatial)), strict=True):
        met *= pairs_that_meet(left.dims[of_input.index(label)], result.dims[of_output.index(label)], window)
    features = right.dims[of_kernel.index("i")] * result.dims[of_output.index("f")]
    return 2 * result.dims[of_output.index("b")] * features * met


def _is_known(i: Instruction) -> bool:
    if i.opcode == "custom-call":
        return (i.attribute("custom_call_target") or "").strip('"') in CUSTOM_CALLS_WITHOUT_PRODUCTS
    return i.opcode in ("dot", "convolution") or i.opcode in WITHOUT_PRODUCTS


def _kind(i: Instruction) -> str:
    return f"custom-call {i.attribute('custom_call_target')}" if i.opcode == "custom-call" else i.opcode

"""The names of rows in tables and stored results: from ``look_sam_5`` to a method, its settings and its label.

A row is named as in the paper's tables: ``base``, ``sam``, ``sam_5``, ``look_sam_5``, ``look_layer_sam``. A method's
own name stands for it at any period, and a layer scaling may follow a colon: ``look_layer_sam:literal``.
"""

import re
from typing import Any, NamedTuple

from looksam.methods import METHODS, Method

OPTIMIZERS = {"sgdm": "SGD-M", "adamw": "AdamW", "lamb": "LAMB"}
PAPER_OPTIMIZERS = {"sgdm": "sgd_m", "adamw": "adamw", "lamb": "lamb"}  # the base's row in the paper's tables


class Row(NamedTuple):
    """The parts of a row's name."""

    method: Method
    k: int | None  # None where the name has no period
    scaling: str  # empty where the name has none


def parse_row(name: str) -> Row:
    """Reads the name of a row.

    >>> row = parse_row("look_sam_5")
    >>> row.method.name, row.k
    ('look_sam', 5)
    """
    stem, _, scaling = name.partition(":")
    if stem in METHODS:
        return Row(METHODS[stem], None, scaling)
    for method in METHODS.values():
        match = re.fullmatch(re.escape(method.row).replace(r"\{k\}", r"(\d+)"), stem)
        if match:
            return Row(method, int(match[1]) if match.groups() else None, scaling)
    raise ValueError(f"row {name!r} names no method; the methods are {', '.join(METHODS)}.")


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a recipe that a row stands for.

    >>> settings_of("sam_5"), settings_of("look_layer_sam:literal")
    ({'method': 'sam_k', 'k': 5}, {'method': 'look_layer_sam', 'scaling': 'literal'})
    """
    row = parse_row(name)
    period = {} if row.k is None else {"k": row.k}
    return {"method": row.method.name} | period | ({"scaling": row.scaling} if row.scaling else {})


def label(name: str, optimizer: str = "", k: int | None = None) -> str:
    """What people call a row; the base by its optimizer, where one is given.

    ``k`` is the period to show where the name has none. A scaling is shown in place of the period.

    >>> label("sam_5"), label("look_layer_sam", k=5), label("look_layer_sam:literal"), label("base", "sgdm")
    ('SAM-5', 'Look-LayerSAM-5', 'Look-LayerSAM, literal', 'SGD-M')
    """
    row = parse_row(name)
    if optimizer and row.method is METHODS["base"]:
        return OPTIMIZERS[optimizer]
    period = k if row.k is None else row.k
    if row.scaling or period is None:
        stem = row.method.label.removesuffix("-{k}")
        return f"{stem}, {row.scaling}" if row.scaling else stem
    return row.method.display(period)


def paper_row(name: str, optimizer: str) -> str:
    """The same row in the paper's tables, which name the base by its optimizer and add methods to LAMB by a plus.

    >>> paper_row("base", "sgdm"), paper_row("look_sam_5", "adamw"), paper_row("layer_sam", "lamb")
    ('sgd_m', 'look_sam_5', 'lamb+layer_sam')
    """
    method = parse_row(name).method
    if method is METHODS["base"]:
        return PAPER_OPTIMIZERS[optimizer]
    return f"lamb+{method.name}" if optimizer == "lamb" else name

"""The methods that can be compared, each described in one place: the base optimizer and the sharpness-aware rules.

The public names of the package, recipes, the command line, plans, experiments, reports and the tests of the rules read
this table and nothing else. A new rule needs a factory in ``looksam.rules.family`` and an entry here. This module
imports no framework.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from looksam.rules import Rule

# Okabe and Ito's palette, which colour-blind readers can tell apart, each with a lighter variant for dark pages
BLACK = ("#000000", "#E8E8E8")
BLUE = ("#0072B2", "#4FA8E0")
VERMILION = ("#D55E00", "#F0803C")
GREEN = ("#009E73", "#2CC295")
PURPLE = ("#CC79A7", "#DB93BC")
ORANGE = ("#E69F00", "#F0B429")
SKY = ("#56B4E9", "#8FD3FF")
GREY = ("#767676", "#9A9A9A")


@dataclass(frozen=True)
class Method:
    """One method: the base optimizer alone, or with a rule that chooses the gradient it sees."""

    name: str  # in recipes and on the command line; also the name of the factory in looksam.rules
    label: str  # the display name; "{k}" stands for the period
    settings: tuple[str, ...]  # the settings of a recipe that the factory takes
    colour: tuple[str, str]  # on a light and on a dark page
    marker: str  # Matplotlib's letter, so that figures can be read without colour
    every_step: str = ""  # the method with the same perturbation that takes the second gradient on every step
    row: str = ""  # the name in the paper's tables, if it is not ``name``; "{k}" stands for the period

    @property
    def is_rule(self) -> bool:
        """Whether the method is a rule, and not the base optimizer alone."""
        return bool(self.every_step)

    @property
    def has_period(self) -> bool:
        """Whether the second gradient is taken on every k-th step only."""
        return "k" in self.settings

    def rule(self, settings: Mapping[str, Any]) -> "Rule | None":
        """The rule for JAX, from a mapping that has at least ``self.settings``; None for the base optimizer."""
        if not self.is_rule:
            return None
        from looksam import rules

        rule: Rule = getattr(rules, self.name)(**{name: settings[name] for name in self.settings})
        return rule

    def programs(self, k: int) -> dict[str, float]:
        """The compiled programs of a step and the share of steps that runs each: ``base``, ``refresh``, ``reuse``."""
        if not self.is_rule:
            return {"base": 1.0}
        if not self.has_period or k == 1:
            return {"refresh": 1.0}
        return {"refresh": 1 / k, "reuse": 1 - 1 / k}

    def gradients_per_step(self, k: int) -> float:
        """The mean number of gradients that one step takes."""
        return 1 + self.programs(k).get("refresh", 0.0)

    def display(self, k: int | str = "k") -> str:
        """The label with its period, e.g. ``LookSAM-5``."""
        return self.label.format(k=k)

    def row_name(self, k: int) -> str:
        """The name of a row in the paper's tables and in stored results, e.g. ``look_sam_5``."""
        return (self.row or self.name).format(k=k)


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


# In the order in which tables list them: the base optimizer, then the paper's rules.
METHODS: dict[str, Method] = _table(
    Method("base", "base", (), BLACK, "o"),
    Method("sam", "SAM", ("rho", "p"), VERMILION, "s", every_step="sam"),
    Method("sam_k", "SAM-{k}", ("rho", "k", "p"), GREEN, "^", every_step="sam", row="sam_{k}"),
    Method("look_sam", "LookSAM-{k}", ("rho", "alpha", "k", "p"), BLUE, "D", every_step="sam", row="look_sam_{k}"),
    Method("layer_sam", "LayerSAM", ("rho", "p", "scaling"), PURPLE, "v", every_step="layer_sam"),
    Method(
        "look_layer_sam",
        "Look-LayerSAM-{k}",
        ("rho", "alpha", "k", "p", "scaling"),
        ORANGE,
        "P",
        every_step="layer_sam",
    ),
)

OPTIMIZERS = {"sgdm": "SGD-M", "adamw": "AdamW", "lamb": "LAMB"}  # display names of the base optimizers


# Rows of tables and stored results are named as in the paper: base, sam, sam_5, look_sam_5, look_layer_sam. A method's
# own name stands for it at any period, and a layer scaling may follow a colon: look_layer_sam:literal.


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

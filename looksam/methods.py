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
YELLOW = ("#9C8B00", "#F0E442")
WINE = ("#882255", "#C9568A")  # after Paul Tol's; grey is for the paper's numbers

SHARED_SETTINGS = ("start", "stop", "perturb")  # that every rule takes


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
    takes_second_gradient: bool = True  # on the steps that refresh; else their only gradient is at w + ε
    radius: float = 1.0  # of the perturbation: where good values of ρ are, relative to SAM's
    strengths: tuple[float, ...] = ()  # values of α to try when tuning

    @property
    def is_rule(self) -> bool:
        """Whether the method is a rule, and not the base optimizer alone."""
        return bool(self.every_step)

    @property
    def has_period(self) -> bool:
        """Whether the second gradient is taken on every k-th step only."""
        return "k" in self.settings

    @property
    def reuses(self) -> bool:
        """Whether the steps in between reuse a part of it."""
        return self.has_period and "alpha" in self.settings

    @property
    def is_related(self) -> bool:
        """Whether the rule is of another paper than SAM's and LookSAM's: its ρ and α are on scales of their own."""
        return self.radius != 1 or (bool(self.strengths) and not self.reuses)

    def rule(self, settings: Mapping[str, Any]) -> "Rule | None":
        """The rule for JAX, from a mapping that has at least ``self.settings``; None for the base optimizer."""
        if not self.is_rule:
            return None
        from looksam import rules

        optional = {name: settings[name] for name in (*SHARED_SETTINGS, "store_dtype") if name in settings}
        rule: Rule = getattr(rules, self.name)(**{name: settings[name] for name in self.settings}, **optional)
        return rule

    def programs(self, k: int, active: float = 1.0) -> dict[str, float]:
        """The compiled programs of a step and the share of steps that runs each: ``base``, ``refresh``, ``reuse``.

        ``active`` is the share of steps between start and stop; the others run ``base``.
        """
        if not self.is_rule:
            return {"base": 1.0}
        refresh = active / (k if self.has_period else 1)
        shares = {"base": 1 - active, "refresh": refresh, "reuse": active - refresh}
        return {name: share for name, share in shares.items() if share > 0}

    def gradients_per_step(self, k: int, active: float = 1.0) -> float:
        """The mean number of gradients that one step takes."""
        return 1 + self.takes_second_gradient * self.programs(k, active).get("refresh", 0.0)

    def display(self, k: int | str = "k") -> str:
        """The label with its period, e.g. ``LookSAM-5``."""
        return self.label.format(k=k)

    def row_name(self, k: int) -> str:
        """The name of a row in the paper's tables and in stored results, e.g. ``look_sam_5``."""
        return (self.row or self.name).format(k=k)


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


# In the order in which tables list them: the base optimizer, the paper's rules, then other people's.
METHODS: dict[str, Method] = _table(
    Method("base", "base", (), BLACK, "o"),
    Method("sam", "SAM", ("rho", "p"), VERMILION, "s", every_step="sam"),
    Method("sam_k", "SAM-{k}", ("rho", "k", "p"), GREEN, "^", every_step="sam", row="sam_{k}"),
    Method(
        "look_sam",
        "LookSAM-{k}",
        ("rho", "alpha", "k", "p"),
        BLUE,
        "D",
        every_step="sam",
        row="look_sam_{k}",
        strengths=(0.1, 0.3, 0.5, 0.7),
    ),
    Method("layer_sam", "LayerSAM", ("rho", "p", "scaling"), PURPLE, "v", every_step="layer_sam"),
    Method(
        "look_layer_sam",
        "Look-LayerSAM-{k}",
        ("rho", "alpha", "k", "p", "scaling"),
        ORANGE,
        "P",
        every_step="layer_sam",
        strengths=(0.1, 0.3, 0.5, 0.7),
    ),
    Method("asam", "ASAM", ("rho", "p", "eta"), SKY, "X", every_step="asam", radius=10.0),
    Method("gsam", "GSAM", ("rho", "alpha", "p"), WINE, "p", every_step="gsam", strengths=(0.1, 0.2, 0.3, 0.4)),
    Method(
        "msam",
        "MSAM",
        ("rho", "momentum"),
        YELLOW,
        "*",
        every_step="msam",
        takes_second_gradient=False,
        radius=5.0,
    ),
)

OPTIMIZERS = {"sgdm": "SGD-M", "adamw": "AdamW", "lamb": "LAMB"}  # display names of the base optimizers


# Rows of tables and stored results are named as in the paper: base, sam, sam_5, look_sam_5, look_layer_sam. A method's
# own name stands for it at any period. A layer scaling may follow a colon, look_layer_sam:literal, and the start of the
# rule as a fraction of the run an at sign: look_sam_5@0.8 acts in the last fifth.


class Row(NamedTuple):
    """The parts of a row's name."""

    method: Method
    k: int | None  # None where the name has no period
    scaling: str  # empty where the name has none
    start: float  # a fraction of the run


def parse_row(name: str) -> Row:
    """Reads the name of a row.

    >>> row = parse_row("look_sam_5@0.8")
    >>> row.method.name, row.k, row.start
    ('look_sam', 5, 0.8)
    """
    rest, at, late = name.partition("@")
    stem, _, scaling = rest.partition(":")
    start = _start(name, late) if at else 0.0
    for method in METHODS.values():
        match = re.fullmatch(re.escape(method.row).replace(r"\{k\}", r"(\d+)"), stem)
        if stem == method.name or match:
            if at and not method.is_rule:
                raise ValueError(f"row {name!r} has a start, and {method.name} is no rule; leave it out.")
            if scaling and "scaling" not in method.settings:
                raise ValueError(f"row {name!r} has a scaling, and {method.name} takes none; leave it out.")
            return Row(method, int(match[1]) if match and match.groups() else None, scaling, start)
    raise ValueError(f"row {name!r} names no method; the methods are {', '.join(METHODS)}.")


def _start(name: str, text: str) -> float:
    if not re.fullmatch(r"0?\.\d+", text):
        raise ValueError(f"row {name!r} starts at {text!r}; write a fraction of the run after the @, e.g. @0.8.")
    return float(text)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a recipe that a row stands for.

    >>> settings_of("sam_5"), settings_of("look_layer_sam:literal"), settings_of("sam@0.8")
    ({'method': 'sam_k', 'k': 5}, {'method': 'look_layer_sam', 'scaling': 'literal'}, {'method': 'sam', 'start': 0.8})
    """
    row = parse_row(name)
    named = {"k": row.k, "scaling": row.scaling or None, "start": row.start or None}
    return {"method": row.method.name} | {key: value for key, value in named.items() if value is not None}


def label(name: str, optimizer: str = "", k: int | None = None) -> str:
    """What people call a row; the base by its optimizer, where one is given.

    ``k`` is the period to show where the name has none. A scaling is shown in place of the period.

    >>> label("sam_5"), label("look_layer_sam", k=5), label("look_layer_sam:literal"), label("base", "sgdm")
    ('SAM-5', 'Look-LayerSAM-5', 'Look-LayerSAM, literal', 'SGD-M')
    >>> label("look_sam_5@0.8")
    'LookSAM-5, last 20 %'
    """
    row = parse_row(name)
    if optimizer and row.method is METHODS["base"]:
        return OPTIMIZERS[optimizer]
    period = k if row.k is None else row.k
    text = row.method.label.removesuffix("-{k}") if row.scaling or period is None else row.method.display(period)
    late = f"last {100 * (1 - row.start):.3g} %" if row.start else ""
    return ", ".join(part for part in (text, row.scaling, late) if part)

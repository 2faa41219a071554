"""What can be measured of a recipe: every method in every form, that is by our code or by another library's.

To add a form, write the function that builds its subject and list it in ``FORMS``. This module imports no framework.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from looksam.arguments import did_you_mean
from looksam.methods import METHODS, label, settings_of
from looksam.trainer.models import MODELS
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import has_window


@dataclass(frozen=True)
class Form:
    """A way to run a method: by our code or by a peer's, in JAX or in PyTorch."""

    name: str  # on the command line
    label: str
    framework: Literal["jax", "torch"]
    target: str  # "module:function" in this package, which builds the subject
    package: str  # that it needs
    methods: tuple[str, ...] = tuple(METHODS)
    is_peer: bool = False

    @property
    def base_form(self) -> str:
        """The form whose base optimizer is the denominator of the ratios."""
        return "static" if self.framework == "jax" else "torch"


def _table(*forms: Form) -> dict[str, Form]:
    return {form.name: form for form in forms}


_RULES = tuple(method.name for method in METHODS.values() if method.is_rule)
FORMS: dict[str, Form] = _table(
    Form("static", "JAX", "jax", "jax_subjects:static", "jax"),
    Form("traced", "JAX, traced", "jax", "jax_subjects:traced", "jax", _RULES),
    Form("optax", "optax.contrib.sam", "jax", "jax_subjects:optax_transparent", "optax", ("sam",), is_peer=True),
    Form(
        "optax_opaque",
        "optax.contrib.sam, opaque",
        "jax",
        "jax_subjects:optax_opaque",
        "optax",
        ("sam",),
        is_peer=True,
    ),
    Form("torch", "PyTorch", "torch", "torch_subjects:ours", "torch"),
    Form(
        "pytorch_optimizer",
        "pytorch_optimizer",
        "torch",
        "torch_subjects:peer",
        "pytorch_optimizer",
        ("sam", "look_sam", "asam"),
        is_peer=True,
    ),
    Form(
        "pytorch_optimizer_one_pass",
        "pytorch_optimizer, unused passes left out",
        "torch",
        "torch_subjects:peer_one_pass",
        "pytorch_optimizer",
        ("look_sam",),
        is_peer=True,
    ),
)
DEFAULT_FORMS = tuple(name for name in FORMS if name != "pytorch_optimizer_one_pass")
DEFAULT_ROWS = ("base", "sam", "look_sam")


@dataclass(frozen=True)
class Case:
    """One subject: a method in one form, on a recipe that names the method."""

    form: str
    row: str  # as in ``looksam.methods``: base, sam, look_sam, look_sam_10, look_sam_5@0.8, …
    recipe: Recipe
    base: str = ""  # the name of the case that it is compared with; its framework's base by default
    variant: str = ""  # tells two cases apart that differ in what follows
    store_dtype: str | None = None  # of the kept g_v or momentum
    environment: Mapping[str, str] = field(default_factory=dict)  # of its process

    @property
    def name(self) -> str:
        return f"{self.form}/{self.row}" + (f" {self.variant}" if self.variant else "")

    @property
    def method(self) -> str:
        """The method as people call it."""
        return label(self.row, k=self.recipe.k if METHODS[self.recipe.method].has_period else None)

    @property
    def denominator(self) -> str:
        return self.base or f"{FORMS[self.form].base_form}/base"

    def arguments(self, image_shape: Sequence[int], num_classes: int) -> dict[str, Any]:
        """The arguments of the form's target, as plain JSON."""
        settings = {"settings": self.recipe.to_dict(), "store_dtype": self.store_dtype}
        if FORMS[self.form].framework == "jax":
            return settings
        return settings | {"image_shape": list(image_shape), "num_classes": num_classes}


class Choice(NamedTuple):
    """The cases to measure, and one line for each form that cannot be."""

    cases: list[Case]
    skipped: list[str]


def choose(
    recipe: Recipe, rows: Sequence[str], forms: Sequence[str], jax_environment: Mapping[str, str] | None = None
) -> Choice:
    """The cases of these methods in these forms. The base optimizer of each framework is always among them.

    ``jax_environment`` has variables for the processes of JAX. Raises ValueError for a method or form that is unknown.
    """
    recipes = {row: recipe.replace(**settings_of(row)) for row in ("base", *rows)}
    for name in forms:
        if name not in FORMS:
            raise ValueError(f"form {name!r} is unknown{did_you_mean(name, FORMS)}")
    cases: dict[str, Case] = {}
    skipped = []
    for form in map(FORMS.__getitem__, forms):
        known = {row: own for row, own in recipes.items() if own.method in form.methods}
        late = [row for row, own in known.items() if form.is_peer and has_window(own)]
        if late:
            skipped.append(f"{form.label} is skipped for {', '.join(late)}: it has no start and no stop")
        wanted = [row for row, own in known.items() if row not in late and _differs(form, own)]
        reason = reason_to_skip(form, recipe) if wanted else ""
        if reason:
            skipped.append(f"{form.label} is skipped: {reason}")
        elif wanted:
            own = jax_environment if form.framework == "jax" and jax_environment else {}
            names = [(form.base_form, "base"), *((form.name, row) for row in wanted)]
            chosen = [Case(name, row, recipes[row], environment=own) for name, row in names]
            cases |= {case.name: case for case in chosen}
    return Choice(list(cases.values()), skipped)


def _differs(form: Form, recipe: Recipe) -> bool:
    """Whether the form has a program of its own: where every step refreshes, nothing is left to trace."""
    has_period = METHODS[recipe.method].has_period and recipe.k > 1
    return form.name != "traced" or has_period or has_window(recipe)


def reason_to_skip(form: Form, recipe: Recipe) -> str:
    """Why a form cannot run a recipe here; empty if it can."""
    if importlib.util.find_spec(form.package) is None:
        return f"{form.package} is not installed"
    checks = {
        f"model={recipe.model}": recipe.model not in MODELS and form.framework == "torch",
        f"groups={recipe.groups}": recipe.groups is not None and form.name != "static",
        f"p={recipe.p}": recipe.p != 2 and form.is_peer,
        f"perturb={recipe.perturb!r}": recipe.perturb is not None and (form.framework == "torch" or form.is_peer),
        f"optimizer={recipe.optimizer}": recipe.optimizer == "lamb" and form.framework == "torch",
        f"dtype={recipe.dtype}": recipe.dtype != "float32" and form.framework == "torch",
        f"microbatch={recipe.microbatch}": recipe.microbatch is not None and form.framework == "torch",
        f"mesh={recipe.mesh}": recipe.mesh_sizes() not in (None, (1, 1)) and form.framework == "torch",
    }
    return ", ".join(f"it has no {setting}" for setting, is_missing in checks.items() if is_missing)

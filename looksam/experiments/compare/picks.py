"""Which settings a comparison runs each method at."""

from typing import Any

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import small


def picks(name: str, recipe: Recipe, methods: list[str]) -> dict[str, dict[str, Any]]:
    """The tuned settings where the recipe has them, otherwise the recipe's own ρ, α and k for every method."""
    tuned = small.DIGITS_SELECTED.get(name, {})
    return {method: tuned.get(method) or _own(recipe, method) for method in methods if method != "base"}


def grids(name: str, recipe: Recipe, methods: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Eight settings a method, equal effort: those of the recipe, or a spread around its own ρ."""
    known = small.DIGITS_GRIDS if name in small.DIGITS_SELECTED else {}
    return {method: known.get(method) or _spread(recipe, method) for method in methods if method != "base"}


def _own(recipe: Recipe, method: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"rho": recipe.rho}
    if method in ("look_sam", "look_layer_sam"):
        settings["alpha"] = recipe.alpha
    if method in ("sam_k", "look_sam", "look_layer_sam"):
        settings["k"] = recipe.k
    return settings


def _spread(recipe: Recipe, method: str) -> list[dict[str, Any]]:
    own = _own(recipe, method)
    if "alpha" in own:
        return [own | {"rho": recipe.rho * f, "alpha": a} for f in (0.5, 1, 2, 4) for a in (0.3, 0.7)]
    return [own | {"rho": recipe.rho * f} for f in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4)]

"""One setting, trained by several methods."""

from collections.abc import Iterable

from looksam.trainer.recipe import Recipe


def by_method(settings: Recipe, periods: Iterable[int]) -> dict[str, Recipe]:
    """``base``, ``sam``, then ``sam_k-<k>`` and ``look_sam-<k>`` for each period k."""
    found = {"base": settings.replace(method="base"), "sam": settings.replace(method="sam")}
    for k in periods:
        found[f"sam_k-{k}"] = settings.replace(method="sam_k", k=k)
        found[f"look_sam-{k}"] = settings.replace(method="look_sam", k=k)
    return found


def gradients(recipe: Recipe) -> str:
    """What a step costs, in gradients."""
    if recipe.method == "base":
        return "1 gradient a step"
    return f"{1 + (1 if recipe.method in ('sam', 'layer_sam') else 1 / recipe.k):g} gradients a step"

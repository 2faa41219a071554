"""What parameters are called, in errors and by ``layers=``."""

from typing import Any

from torch import Tensor, nn

WRAPPERS = ("_orig_mod.", "module.")  # torch.compile and DistributedDataParallel; a layer keeps its name under them


def parameter_names(groups: list[dict[str, Any]], model: nn.Module | None) -> dict[Tensor, str]:
    """As the model calls them, or as the optimizer was told by ``named_parameters()``."""
    names: dict[Tensor, str] = {}
    for group in groups:
        names.update(zip(group["params"], group.get("param_names", ()), strict=False))
    if model is not None:
        names.update((p, name) for name, p in model.named_parameters())
    return {p: _unwrapped(name) for p, name in names.items()}


def described(groups: list[dict[str, Any]], model: nn.Module | None) -> dict[Tensor, str]:
    """A name or a place for every parameter of the optimizer, for errors."""
    places = {p: f"{j} of group {i}" for i, group in enumerate(groups) for j, p in enumerate(group["params"])}
    names = parameter_names(groups, model)
    return {p: f"'{names[p]}'" if p in names else place for p, place in places.items()}


def _unwrapped(name: str) -> str:
    for prefix in WRAPPERS:
        while name.startswith(prefix):
            name = name.removeprefix(prefix)
    return name

"""What a caller can get wrong, said before any time is spent: the value, the place and the fix."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from looksam.torch.balls import SCALINGS


def base_optimizer(base: Any, wrapper: type) -> None:
    if isinstance(base, type) and issubclass(base, Optimizer):
        raise TypeError(f"base={base.__name__} is a class; pass an instance, e.g. {base.__name__}(model.parameters()).")
    if not isinstance(base, Optimizer):
        raise TypeError(f"base is a {type(base).__name__}; pass a torch.optim.Optimizer, e.g. AdamW(...).")
    if isinstance(base, wrapper):
        raise TypeError(f"base is a {type(base).__name__} already; pass the optimizer that it wraps, opt.base.")
    if isinstance(base, torch.optim.LBFGS):
        raise TypeError("base is LBFGS, which calls the closure as often as it likes; pass a first-order optimizer.")
    for group in base.param_groups:
        if group.get("maximize"):
            raise ValueError("base has maximize=True, and SAM climbs the loss; minimise the negated loss instead.")


def parameters(named: list[tuple[str, Tensor]]) -> None:
    for name, p in named:
        if p.is_complex():
            raise TypeError(f"parameter {name} is {p.dtype}; the rules need real parameters: use torch.view_as_real.")


def gradient(name: str, grad: Tensor) -> None:
    if grad.layout != torch.strided:
        raise TypeError(f"the gradient of {name} has layout {grad.layout}; the rules need dense ones: sparse=False.")


def non_negative(name: str, value: Any) -> float:
    """The value of ρ or α."""
    if isinstance(value, Tensor) and value.ndim > 0:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; pass a number >= 0.")
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"{name}={value!r} is not a number; pass a number >= 0 or a function of the step count.")
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{name}={float(value)} is out of range; pass a finite {name} >= 0.")
    return float(value)


def period(k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k={k!r} is not an int; pass how many steps share one second gradient, e.g. k=5.")
    if k < 1:
        raise ValueError(f"k={k} is out of range; pass k >= 1 (k=1 is SAM, k=5 refreshes every 5th step).")
    return k


def exponent(p: Any) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise TypeError(f"p={p!r} is not a number; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    if not p > 1:  # NaN too
        raise ValueError(f"p={p} is out of range; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    return float(p)


def layer_scaling(scaling: Any) -> str:
    if scaling not in SCALINGS:
        names = ", ".join(map(repr, SCALINGS))
        raise ValueError(f"scaling={scaling!r} is unknown; pass one of {names}.")
    return scaling


def layer_function(layers: Callable[[str], Any] | None) -> None:
    if layers is not None and not callable(layers):
        raise TypeError(
            f"layers={layers!r} is not callable; pass a function from a name like 'block.weight' to a layer."
        )


def storage(dtype: Any) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"store_dtype={dtype} is not floating-point; pass e.g. torch.bfloat16 or None.")


def module(model: Any) -> None:
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass the torch.nn.Module that the closure trains.")

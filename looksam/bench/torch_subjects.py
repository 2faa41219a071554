"""The steps of a recipe in eager PyTorch, on one batch of noise: our optimizers, and those of pytorch_optimizer.

The step normalizes the images, takes the loss and its gradients, and updates, with the recipe's model, optimizer,
weight decay, label smoothing and clipping. It does not augment, and the learning rate is constant: their cost is
JAX's in the trainer, and nothing in PyTorch. Images and convolutions are in the channels-last format, PyTorch's fast
one for a CPU.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from looksam.bench.cycle import cycle
from looksam.methods import METHODS
from looksam.torch import vision_models
from looksam.torch.sam_family import RULES
from looksam.trainer.models import MODELS
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import has_window, rule_settings

Closure = Callable[[], Tensor]
Step = Callable[[Closure], Any]  # takes one step, and calls the closure for each gradient


class EagerSteps:
    """Steps of a model on one batch, with the number of gradients that they took."""

    def __init__(self, recipe: Recipe, image_shape: Sequence[int], num_classes: int) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        entry = MODELS[recipe.model]
        options = {**entry.fixed, **recipe.model_options()}
        model = vision_models.build(entry.builder, image_shape, num_classes, **options)
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        height, width, channels = image_shape
        images = torch.randint(0, 256, (recipe.batch_size, channels, height, width), dtype=torch.uint8)
        self._images = images.contiguous(memory_format=torch.channels_last)
        self._labels = torch.randint(0, num_classes, (recipe.batch_size,))
        self._gradients = self._steps = 0
        self._cycle = cycle(recipe)
        self.step: Step
        self.begin_cycle: Callable[[], None] = lambda: None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._steps % self._cycle == 0:
                self.begin_cycle()
            self.step(self._closure)
            self._steps += 1

    def facts(self) -> dict[str, float]:
        return {"gradients": self._gradients / max(self._steps, 1)}

    def _closure(self) -> Tensor:
        self.model.zero_grad()
        inputs = (self._images.float() / 255 - 0.5) / 0.5
        smoothing = self.recipe.label_smoothing
        loss = functional.cross_entropy(self.model(inputs), self._labels, label_smoothing=smoothing)
        loss.backward()
        self._gradients += 1
        return loss


def ours(
    settings: Mapping[str, Any], image_shape: Sequence[int], num_classes: int, store_dtype: str | None = None
) -> EagerSteps:
    """The base optimizer of PyTorch, alone or wrapped by one of our rules."""
    recipe = Recipe(**settings)
    steps = EagerSteps(recipe, image_shape, num_classes)
    kind, options = base_optimizer(recipe)
    base = kind(decayed(recipe, steps.model.named_parameters()), **options)
    if not METHODS[recipe.method].is_rule:
        steps.step = _plain_step(base, list(steps.model.parameters()), recipe.clip_norm)
        return steps
    kept = {"store_dtype": getattr(torch, store_dtype)} if store_dtype else {}
    settings = rule_settings(recipe, cycle(recipe)) | kept
    optimizer = RULES[recipe.method](base, model=steps.model, clip_norm=recipe.clip_norm, **settings)
    steps.step = optimizer.step
    if has_window(recipe):
        steps.begin_cycle = lambda: setattr(optimizer, "count", 0)
    return steps


def _plain_step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], clip_norm: float | None) -> Step:
    def step(closure: Closure) -> None:
        closure()
        if clip_norm is not None:
            clip_grad_norm_(parameters, clip_norm)
        optimizer.step()

    return step


def peer(
    settings: Mapping[str, Any], image_shape: Sequence[int], num_classes: int, store_dtype: None = None
) -> EagerSteps:
    """pytorch_optimizer's SAM, LookSAM or ASAM, in the loop of its documentation: a pass by hand, then step(closure).

    Nothing is clipped: that loop has no place for it.
    """
    steps, optimizer = _with_peer(settings, image_shape, num_classes)

    def step(closure: Closure) -> None:
        closure()
        optimizer.step(closure)

    steps.step = step
    return steps


def peer_one_pass(
    settings: Mapping[str, Any], image_shape: Sequence[int], num_classes: int, store_dtype: None = None
) -> EagerSteps:
    """Its LookSAM in a loop of our own, without the second gradients that it does not use."""
    steps, optimizer = _with_peer(settings, image_shape, num_classes)
    count, k = 0, steps.recipe.k

    def step(closure: Closure) -> None:
        nonlocal count
        closure()
        if count % k == 0:
            optimizer.step(closure)
        else:
            optimizer.second_step()
        count += 1

    steps.step = step
    return steps


def _with_peer(settings: Mapping[str, Any], image_shape: Sequence[int], num_classes: int) -> tuple[EagerSteps, Any]:
    recipe = Recipe(**settings)
    steps = EagerSteps(recipe, image_shape, num_classes)
    kind, options = base_optimizer(recipe)
    peers = importlib.import_module("pytorch_optimizer")  # compared with, never needed
    rules: dict[str, tuple[Any, dict[str, Any]]] = {
        "sam": (peers.SAM, {}),
        "look_sam": (peers.LookSAM, {"k": recipe.k, "alpha": recipe.alpha}),
        "asam": (peers.SAM, {"adaptive": True}),  # without eta
    }
    rule, own = rules[recipe.method]
    return steps, rule(decayed(recipe, steps.model.named_parameters()), kind, rho=recipe.rho, **own, **options)


def base_optimizer(recipe: Recipe) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of a recipe's base optimizer, and its options."""
    rate = recipe.peak_learning_rate()
    if recipe.optimizer == "sgdm":
        return torch.optim.SGD, {"lr": rate, "momentum": recipe.momentum}
    return torch.optim.AdamW, {"lr": rate}


def decayed(recipe: Recipe, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """The parameter groups: those with weight decay, and those without if the recipe decays kernels alone."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for _, parameter in parameters:
        groups[recipe.decay_all or parameter.ndim >= 2].append(parameter)
    decay = {True: recipe.weight_decay, False: 0.0}
    return [{"params": group, "weight_decay": decay[key]} for key, group in groups.items() if group]

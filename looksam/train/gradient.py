"""The gradient of a step's whole batch, spread over devices and taken in micro-batches, for a rule to use."""

from collections.abc import Callable
from typing import Any

import jax

from looksam.keys import per_image
from looksam.rules import Rule, SAMState, StepInfo, accumulated
from looksam.train.layout import Layout
from looksam.train.parts import Parts

# loss(params, mesh axes of the batch, shared, images, labels, keys) -> (mean loss, further means)
Loss = Callable[..., tuple[jax.Array, Any]]

BATCH = (1, 2, 3)  # images, labels and keys, after what is shared


class Gradient:
    """``gradient(params, shared, images, labels)`` gives ((loss, further means), gradient) of the batch."""

    def __init__(self, loss: Loss, layout: Layout, parts: Parts) -> None:
        self.layout, self.parts = layout, parts
        self._loss = loss
        self._whole = layout.work(self._worker, trees=1)

    def __call__(self, params: Any, *batch: Any) -> tuple[Any, Any]:
        value, (grads,) = self._whole(params, *batch)
        return value, grads

    def by(
        self, rule: Rule, params: Any, rule_state: Any, *batch: Any, refresh: bool | None
    ) -> tuple[Any, Any, Any, StepInfo]:
        """What ``rule.gradient`` returns. With groups, each group climbs its own gradient on a refresh step."""
        if self.parts.groups is None or refresh is False:
            return rule.gradient(self, params, rule_state, *batch, refresh=refresh)

        def worker(params: Any, both: Any, first: Any, images: Any, labels: Any) -> tuple[Any, Any]:
            shared, count = both
            of = accumulated(self._value_and_grad(()), self.parts.group_microbatches, BATCH)

            def in_group(params: Any, *part: Any) -> tuple[Any, Any]:
                value, g = of(params, *part)
                return value, (g, of(rule.neighbour(g, params, SAMState(count)), *part)[1])

            keys = per_image(shared.model_key, images.shape[0], first)
            return accumulated(in_group, self.parts.groups or 1, BATCH)(params, shared, images, labels, keys)

        shared, *rows = batch
        value, (g, g_s) = self.layout.work(worker, trees=2)(params, (shared, rule_state.count), *rows)
        return value, *rule.redirect(g, lambda _: g_s, params, rule_state, refresh=True)

    def _worker(self, params: Any, shared: Any, first: Any, images: Any, labels: Any) -> tuple[Any, tuple[Any]]:
        keys = per_image(shared.model_key, images.shape[0], first)
        of = accumulated(self._value_and_grad(self.layout.axes), self.parts.microbatches, BATCH)
        value, grads = of(params, shared, images, labels, keys)
        return value, (grads,)

    def _value_and_grad(self, axes: tuple[str, ...]) -> Callable[..., tuple[Any, Any]]:
        """Of some rows; BatchNorm's statistics are taken over ``axes`` too."""
        return jax.value_and_grad(lambda params, *batch: self._loss(params, axes, *batch), has_aux=True)

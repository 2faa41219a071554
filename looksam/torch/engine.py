"""What happens around the base optimizer's steps: gradients are taken, weights moved and put back, gradients bent."""

import operator
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from looksam.torch import checks, rule, scaling, vector
from looksam.torch.balls import Ball, Layers
from looksam.torch.names import described, parameter_names
from looksam.torch.progress import Climb, Progress
from looksam.torch.ranks import Ranks
from looksam.torch.replay import Replay
from looksam.torch.scaling import Scaler
from looksam.torch.sharding import Space, local
from looksam.torch.vector import Tensors

Setting = float | Callable[[int], float]  # a number, or a function of the rule's step count
SMALL = 2**20  # entries


@dataclass
class Engine:
    """One for each wrapper. Methods come in the order of a step."""

    base: Optimizer
    ball: Ball
    k: int
    settings: dict[str, Setting]  # rho, and alpha where g_v is reused
    layers: Layers | None
    store_dtype: torch.dtype | None
    model: nn.Module | None
    ranks: Ranks | None
    full_info: bool
    run: Progress = field(default_factory=Progress)

    @property
    def reuses(self) -> bool:
        """Is g_v kept? With k = 1 never: that is SAM."""
        return "alpha" in self.settings and self.k > 1

    @property
    def refreshes(self) -> bool:
        return self.run.count % self.k == 0

    @property
    def params(self) -> Tensors:
        return [p for group in self.base.param_groups for p in group["params"]]

    def new_replay(self) -> Replay:
        devices = {p.device for p in self.params}
        return Replay(self.model, sorted((x for x in devices if x.type not in ("cpu", "meta")), key=str))

    def clear_gradients(self) -> None:
        for p in self.params:
            p.grad = None

    def climb(self, scaler: Scaler | None) -> None:
        """Take the gradients and go to w + ε; where they overflowed, do nothing but note it."""
        run = self.run
        # Where ranks average their gradients, they must have the same ones.
        trained = {p for p in self.params if p.requires_grad} if self.ranks and self.reuses else ()
        params, grads, groups = self._gradients(also=trained)
        space = Space.of(params)
        if scaler and self._overflows(scaler, grads, space):
            return
        g = [_held(x) for x in grads]
        weights, parts = local(params), local(g)
        directions, factors = self.ball(parts, weights, self._layers_of(params), space)
        radii = _by_group(factors, self._values("rho"), groups)
        replay = run.start or self.new_replay()
        # From this line on, all will be put back.
        run.climb = Climb(dict(zip(params, g, strict=True)), weights, self._saved(params, weights), replay, scaler)
        replay.rewind(restart=run.start is not None)
        run.start = None
        self.clear_gradients()
        vector.add_scaled_(weights, radii, directions, space.dtype)
        torch.clear_autocast_cache()  # it may hold casts of w
        if self.ranks and self.reuses:  # g_v is made of the means
            self.ranks.average_(parts)

    def descend(self, wrapper: Optimizer) -> None:
        """Back to w, with the gradient for the base optimizer in place."""
        run, climb = self.run, self.run.climb
        assert climb is not None
        climb.restore()
        run.climb = None
        if climb.scaler:
            climb.scaler.unscale_(wrapper)
        params, g, g_s = self._pairs(climb)
        into = run.homes(params, self.store_dtype) if self.reuses else g if self.full_info else None
        agree = self.ranks.agree if self.ranks and not self.reuses else None
        run.info = rule.refresh(g, g_s, Space.of(params), into=into, agree=agree)
        run.g_v_norm = run.info.g_v_norm if self.reuses else None
        run.ready = True

    def reuse(self, scaler: Scaler | None) -> None:
        """Bend the gradients in place."""
        run = self.run
        params, grads, groups = self._gradients(also=run.g_v)  # of what this batch does not see, g is 0
        space, g = Space.of(params), local(grads)
        if scaler and self._overflows(scaler, grads, space):
            return
        if run.g_v_norm is None:
            run.info = rule.plain(g, space, full_info=self.full_info)
            return
        alpha = self._values("alpha")
        g_v = _aligned(params, list(run.g_v), local(list(run.g_v.values())))
        alphas = [alpha[i] for i in groups]
        run.info = rule.reuse(g, g_v, alphas, run.g_v_norm, space, full_info=self.full_info)

    def restore(self) -> None:
        """Put the weights back, if they are not at w, and forget the second pass."""
        run = self.run
        run.ready = run.overflow = False
        if run.climb is not None:
            run.climb.restore()
            run.climb = None
        if run.g_v_norm is None:  # its memory may hold weights
            run.g_v = {}

    def check_groups(self) -> None:
        """Write ρ and α into the groups that have none, unless the base optimizer calls something else so."""
        groups, names = self.base.param_groups, described(self.base.param_groups, self.model)
        checks.parameters([(name, p) for p, name in names.items()])
        for name, value in self.settings.items():
            for i, group in enumerate(groups if name not in self.base.defaults else []):
                if callable(value) and name in group:
                    raise ValueError(f"group {i} has {name}={group[name]}, and {name} is a function of the step.")
                if not callable(value):
                    checks.non_negative(f"group {i}: {name}", group.setdefault(name, value))
        self._layers_of(self.params)

    def _values(self, name: str) -> list[float]:
        """The setting of each group."""
        value, groups = self.settings[name], self.base.param_groups
        if callable(value):
            count = self.run.count
            return [checks.non_negative(f"{name}({count})", value(count))] * len(groups)
        if name in self.base.defaults:  # RMSprop's alpha, Adadelta's rho
            return [float(value)] * len(groups)
        return [checks.non_negative(f"group {i}: {name}", group.get(name, value)) for i, group in enumerate(groups)]

    def _gradients(self, also: Collection[Tensor] = ()) -> tuple[Tensors, Tensors, list[int]]:
        """The parameters that have a gradient, the gradients, and the groups they are in.

        A parameter in ``also`` that has none gets one of 0.
        """
        found = [(p, p.grad, i) for i, group in enumerate(self.base.param_groups) for p in group["params"]]
        missing = [n for n, (_, grad, _) in enumerate(found) if grad is None]
        if len(missing) == len(found):
            raise RuntimeError("no parameter has a gradient; call loss.backward(), in the closure if there is one.")
        for n in missing:
            p, _, i = found[n]
            if p in also:
                p.grad = torch.zeros_like(p)
                found[n] = p, p.grad, i
        params, grads, groups = zip(*(entry for entry in found if entry[1] is not None), strict=True)
        self._check_dense(params, grads)
        return params, grads, list(groups)

    def _pairs(self, climb: Climb) -> tuple[Tensors, Tensors, Tensors]:
        """Parameters with a gradient in either pass, and the parts of both on this rank. A missing one is 0."""
        params = [p for p in self.params if p.grad is not None or (p in climb.g and not self.ranks)]
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        grads: Any = [p.grad for p in params]
        self._check_dense(params, grads)
        g = [climb.g[p] if p in climb.g else torch.zeros_like(p) for p in params]
        return params, local(g), local(grads)

    def _saved(self, params: Tensors, weights: Tensors) -> Tensors:
        """A copy of the weights: where g_v is kept, which a refresh is about to overwrite, if its dtype allows."""
        if not self.reuses:
            return vector.copies(weights)
        homes = self.run.homes(params, self.store_dtype)
        if any(home.dtype != w.dtype for home, w in zip(homes, weights, strict=True)):
            return vector.copies(weights)
        torch._foreach_copy_(homes, weights)
        return homes

    def _check_dense(self, params: Tensors, grads: Tensors) -> None:
        if {grad.layout for grad in grads} == {torch.strided}:
            return
        for p, grad in zip(params, grads, strict=True):
            if grad.layout != torch.strided:
                checks.gradient(described(self.base.param_groups, self.model)[p], grad)

    def _layers_of(self, params: Tensors) -> list[Hashable]:
        """The layer each parameter belongs to; by default every tensor is a layer of its own."""
        if self.layers is None:
            return list(range(len(params)))
        names = parameter_names(self.base.param_groups, self.model)
        for p in params:
            if p not in names:
                place = described(self.base.param_groups, self.model)[p]
                raise ValueError(f"layers= needs names, and parameter {place} has none; pass model= as well.")
        return [self.layers(names[p]) for p in params]

    def _overflows(self, scaler: Scaler, grads: Tensors, space: Space) -> bool:
        scaler.unscale_(self.base)
        self.run.overflow = scaling.overflowed(local(grads), space)
        return self.run.overflow


def _by_group(factors: Tensor, values: list[float], groups: list[int]) -> Tensors:
    """The factor of each tensor, times the value of its group."""
    if len(set(values)) == 1:
        return (values[0] * factors).unbind()
    return torch._foreach_mul(factors.unbind(), [values[i] for i in groups])


def _aligned(params: Tensors, owners: Tensors, parts: Tensors) -> list[Tensor | None]:
    """The part that belongs to each parameter. Most often they are in order already; to hash tensors is slow."""
    if len(params) == len(owners) and all(map(operator.is_, params, owners)):
        return list(parts)
    by_owner = dict(zip(owners, parts, strict=True))
    return [by_owner.get(p) for p in params]


def _held(grad: Tensor) -> Tensor:
    """The clean gradient, to be held during the second pass.

    A copy, where DistributedDataParallel handed out a view of a bucket, which that pass overwrites. On a CPU also where
    it is small: held where backward left it, it would break up the memory that the pass is about to use, and cost
    more in page faults than it costs to copy. (ViT, ResNet: five per cent of the pass.)
    """
    small = grad.device.type == "cpu" and grad.numel() <= SMALL
    return grad.clone() if small or grad._is_view() else grad

"""The base optimizer's groups: checks, gradients, names of parameters, each group's ρ and α, what is perturbed."""

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from looksam import arguments
from looksam.torch.sharding import VectorSpace, local
from looksam.torch.state import without_rule
from looksam.torch.tensors import Tensors

ScalarOrSchedule = float | Callable[[int], float]  # a number, or a function of the rule's step count
Layers = Callable[[str], Hashable]  # from a parameter's name, "block.weight", to the name of its layer
ByName = Callable[[str], bool]  # from a parameter's name to yes or no

WRAPPERS = ("_orig_mod.", "module.")  # torch.compile and DistributedDataParallel; a layer keeps its name under them


@dataclass(frozen=True)
class ParamGroups:
    """The base optimizer's groups as a rule sees them; ``base`` may replace or extend them at any time."""

    base: Optimizer
    settings: dict[str, ScalarOrSchedule]  # rho, and the alpha of rules that have one
    functions: dict[str, Callable[[str], Hashable] | None]  # functions of a name, by the argument they were passed as
    model: nn.Module | None
    _results: dict[str, dict[Tensor, Hashable]] = field(default_factory=dict)  # of these functions
    _filled: set[tuple[int, str]] = field(default_factory=set)  # groups and settings that ``_fill`` has written

    @property
    def params(self) -> Tensors:
        """All parameters, in the order of the groups."""
        return [p for group in self.base.param_groups for p in group["params"]]

    @property
    def have_gradients(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(p.grad is not None for group in self.base.param_groups for p in group["params"])

    def take_over(self) -> None:
        """Checks all groups, and writes ρ and α into those that have none; a wrong group changes nothing.

        A setting that the base optimizer uses for something else, as RMSprop does alpha, is left alone. What an earlier
        wrapper of the same base wrote is replaced.
        """
        hooks = self.base._optimizer_load_state_dict_pre_hooks
        owners = {key: getattr(hook, "__self__", None) for key, hook in hooks.items()}
        earlier = {key: owner for key, owner in owners.items() if isinstance(owner, ParamGroups)}
        groups = self.base.param_groups
        stale = {(i, name) for other in earlier.values() for i, name in other._filled if i < len(groups)}
        self._check([{x: group[x] for x in group if (i, x) not in stale} for i, group in enumerate(groups)])
        for i, name in stale:
            groups[i].pop(name, None)
        for key in earlier:
            del hooks[key]
        self._fill()

    def watch_loading(self) -> None:
        """Lets the groups keep ρ and α when the base optimizer loads a state without them."""
        self.base.register_load_state_dict_pre_hook(self._to_load)

    def add(self, group: dict[str, Any]) -> None:
        """Adds a group to the base optimizer; a wrong one changes nothing."""
        groups = self.base.param_groups
        before = len(groups)
        try:
            self.base.add_param_group(dict(group))
            self._check(groups)
        except BaseException:
            del groups[before:]
            raise
        self._fill()

    def _check(self, groups: list[dict[str, Any]]) -> None:
        """Raises if a rule cannot work with these groups."""
        described = self._described()
        seen: set[Tensor] = set()
        for i, group in enumerate(groups):
            self._check_settings(i, group)
            for p in group["params"]:
                if p.is_complex():
                    raise TypeError(
                        f"parameter {described[p]} is {p.dtype}; the rules need real parameters: use "
                        "torch.view_as_real."
                    )
                if p in seen:
                    raise ValueError(
                        f"parameter {described[p]} is listed twice, so that it would be perturbed twice, and the base "
                        "optimizer would move it twice; list it once."
                    )
                seen.add(p)
        params = [p for group in groups for p in group["params"]]
        indices = [i for i, group in enumerate(groups) for _ in group["params"]]
        for argument in self.functions:
            self.named(argument, params)
        if self.perturbed(params, indices) == []:
            raise ValueError(
                f"perturb selects none of the {len(params)} parameters, the first of which is {described[params[0]]}; "
                "pass a function that is True for those that the rule shall perturb."
            )

    def _check_settings(self, i: int, group: dict[str, Any]) -> None:
        """Raises if a setting of the i-th group is wrong."""
        if group.get("maximize"):
            raise ValueError(
                f"group {i} has maximize=True, and SAM ascends the loss; minimise the negated loss instead."
            )
        if not isinstance(group.get("perturb", True), bool):
            raise TypeError(f"group {i}: perturb={group['perturb']!r} is not a bool; pass True or False.")
        for name, value in self._own_settings().items():
            if callable(value) and name in group:
                raise ValueError(f"group {i} has {name}={group[name]}, and {name} is a function of the step count.")
            if name in group:
                non_negative(f"group {i}: {name}", group[name])

    def _own_settings(self) -> dict[str, ScalarOrSchedule]:
        """Returns the settings that the base optimizer does not use for something else."""
        return {name: value for name, value in self.settings.items() if name not in self.base.defaults}

    def _fill(self) -> None:
        """Writes ρ and α into the groups that have none."""
        for name, value in self._own_settings().items():
            for i, group in enumerate(self.base.param_groups):
                if name not in group and not callable(value):
                    group[name] = value
                    self._filled.add((i, name))

    def _to_load(self, base: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the state dict that the base optimizer loads: with ρ, α and perturb as they are if it has none."""
        settings = self._own_settings()
        saved = [dict(group) for group in state["param_groups"]]
        for i, (group, ours) in enumerate(zip(saved, base.param_groups, strict=False)):  # the base checks their number
            for name in (*settings, "perturb"):
                if callable(settings.get(name)):
                    group.pop(name, None)  # a number is saved, and it is a function now
                elif name in ours:
                    group.setdefault(name, ours[name])
            self._check_settings(i, group)
        return {**state, "state": without_rule(state["state"]), "param_groups": saved}

    def values(self, name: str, count: int) -> list[float]:
        """Returns the value of a setting for each group, at this step count."""
        value, groups = self.settings[name], self.base.param_groups
        if callable(value):
            return [non_negative(f"{name}({count})", value(count))] * len(groups)
        if name in self.base.defaults:  # RMSprop's alpha, Adadelta's rho
            return [float(value)] * len(groups)
        return [non_negative(f"group {i}: {name}", group.get(name, value)) for i, group in enumerate(groups)]

    def gradients(self, also: Collection[Tensor] = ()) -> tuple[Tensors, Tensors, list[int]]:
        """Returns the parameters that have a gradient, the gradients, and the indices of their groups.

        A parameter in ``also`` without a gradient gets one of 0, unless it is frozen.
        """
        entries = [(p, p.grad, i) for i, group in enumerate(self.base.param_groups) for p in group["params"]]
        missing = [n for n, (_, grad, _) in enumerate(entries) if grad is None]
        if len(missing) == len(entries):
            raise RuntimeError("no parameter has a gradient; call loss.backward(), in the closure if there is one.")
        for n in missing:
            p, _, i = entries[n]
            if p in also and p.requires_grad:
                p.grad = torch.zeros_like(p)
                entries[n] = p, p.grad, i
        params, grads, indices = zip(*(entry for entry in entries if entry[1] is not None), strict=True)
        self.check_dense(params, grads)
        return params, grads, list(indices)

    def check_dense(self, params: Tensors, grads: Tensors) -> None:
        """Raises if a gradient is sparse."""
        if {grad.layout for grad in grads} == {torch.strided}:
            return
        for p, grad in zip(params, grads, strict=True):
            if grad.layout != torch.strided:
                raise TypeError(
                    f"the gradient of {self._described()[p]} has layout {grad.layout}; "
                    "the rules need dense gradients: sparse=False."
                )

    def only_creates_state(self) -> bool:
        """Whether a step would do no more than create the base optimizer's state: no learning rate, all gradients 0.

        ``torch.distributed.checkpoint`` takes such a step where there is no state yet. It is no step of training.
        """
        if self.base.state or any(group.get("lr", 0) != 0 for group in self.base.param_groups):
            return False
        params = [p for p in self.params if p.grad is not None]
        grads = [p.grad for p in params if p.grad is not None]
        return bool(params) and bool(VectorSpace.of(params).norm(local(grads)) == 0)

    def moves(self, count: int) -> bool:
        """Whether any weight is perturbed by a step at this count: not where every ρ is 0."""
        radii, switches = self.values("rho", count), self._switches()
        return any(rho > 0 and is_on for rho, is_on in zip(radii, switches, strict=True))

    def perturbed(self, params: Tensors, indices: list[int]) -> list[int] | None:
        """Returns the positions of the parameters that are perturbed; None for all. ``indices`` are their groups'."""
        switches, selected = self._switches(), self.named("perturb", params)
        if selected is None and all(switches):
            return None
        return [n for n, i in enumerate(indices) if switches[i] and (selected is None or selected[n])]

    def _switches(self) -> list[bool]:
        return [group.get("perturb", True) for group in self.base.param_groups]

    def named(self, argument: str, params: Tensors) -> list[Hashable] | None:
        """Returns what the function passed as this argument says of each parameter's name; None if none was passed."""
        function = self.functions.get(argument)
        if function is None:
            return None
        known = self._results.setdefault(argument, {})
        new = [p for p in params if p not in known]
        names = self._names() if new else {}
        for p in new:
            if p not in names:
                raise ValueError(
                    f"{argument}= needs names, and parameter {self._described()[p]} has none; pass model= as well."
                )
            known[p] = function(names[p])
        return [known[p] for p in params]

    def _names(self) -> dict[Tensor, str]:
        """Returns the names in the model, or those in the ``named_parameters()`` that the base optimizer was given."""
        names: dict[Tensor, str] = {}
        for group in self.base.param_groups:
            names.update(zip(group["params"], group.get("param_names", ()), strict=False))
        if self.model is not None:
            names.update((p, name) for name, p in self.model.named_parameters())
        return {p: _unwrapped(name) for p, name in names.items()}

    def described(self, p: Tensor) -> str:
        """Returns the name of a parameter, or its position, for error messages."""
        return self._described()[p]

    def _described(self) -> dict[Tensor, str]:
        """Returns a name or a position for every parameter, for error messages."""
        groups = self.base.param_groups
        positions = {p: f"{j} of group {i}" for i, group in enumerate(groups) for j, p in enumerate(group["params"])}
        names = self._names()
        return {p: f"'{names[p]}'" if p in names else position for p, position in positions.items()}


def trained(params: Tensors) -> list[bool]:
    """Whether each parameter is trained, not frozen. If none requires a gradient, all are, by gradients set by hand."""
    requiring = [p.requires_grad for p in params]
    return requiring if any(requiring) else [True] * len(params)


def non_negative(name: str, value: Any) -> float:
    """Returns ρ or α as a float; a 0-dim tensor counts as a number."""
    if type(value) is float and 0 <= value < math.inf:  # the usual case first, as this runs on every step
        return value
    if isinstance(value, Tensor):
        if value.ndim > 0:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; pass a number >= 0.")
        value = float(value)
    return arguments.non_negative(name, value)


def check_base(base: Any, wrapper: type[Optimizer]) -> None:
    """Raises if ``base`` is not an optimizer that the rules can wrap."""
    if isinstance(base, type) and issubclass(base, Optimizer):
        raise TypeError(f"base={base.__name__} is a class; pass an instance, e.g. {base.__name__}(model.parameters()).")
    if not isinstance(base, Optimizer):
        raise TypeError(f"base is a {type(base).__name__}; pass a torch.optim.Optimizer, e.g. AdamW(...).")
    if isinstance(base, wrapper):
        raise TypeError(f"base is a {type(base).__name__} already; pass the optimizer that it wraps, opt.base.")
    if isinstance(base, torch.optim.LBFGS):
        raise TypeError("base is LBFGS, which calls the closure any number of times; pass a first-order optimizer.")


def check_store_dtype(dtype: Any) -> None:
    """Raises if g_v cannot be kept in this dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"store_dtype={dtype} is not floating-point; pass e.g. torch.bfloat16 or None.")


def check_model(model: Any) -> None:
    """Raises if ``model`` is not a module."""
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass the torch.nn.Module that the closure trains.")


def _unwrapped(name: str) -> str:
    for prefix in WRAPPERS:
        while name.startswith(prefix):
            name = name.removeprefix(prefix)
    return name

"""What a rule carries from step to step: the count of steps, and g_v or the momentum v. All of it is saved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.sharding import is_dtensor, local
from looksam.torch.tensors import Tensors

Keeps = Literal["g_v", "v", "nothing"]

RULE = "rule"  # the rule's entry in the saved state of each parameter, next to those of the base optimizer


@dataclass
class RuleState:
    """The state of a rule. No rule keeps both g_v and v."""

    count: int = 0  # steps taken
    kept: dict[Tensor, Tensor] = field(default_factory=dict)  # g_v or v, of the parameters that have one
    norm: Tensor | None = None  # of what is kept; None if there is nothing to use

    def g_v_buffers(self, params: Tensors, dtype: torch.dtype | None) -> Tensors:
        """Returns the memory in which g_v of these parameters is kept, allocated where missing; the old g_v is lost."""
        self.norm = None
        self.kept = {p: self.kept[p] if p in self.kept else torch.empty_like(p, dtype=dtype) for p in params}
        return local(list(self.kept.values()))

    def v_of(self, params: Tensors, dtype: torch.dtype | None) -> Tensors:
        """Returns the momentum of these parameters, 0 where there was none; that of others is dropped."""
        self.kept = {
            p: self.kept[p] if p in self.kept else torch.zeros_like(p, dtype=dtype, requires_grad=False) for p in params
        }
        return local(list(self.kept.values()))

    def drop(self) -> None:
        """Frees the memory of what is kept."""
        self.kept, self.norm = {}, None

    def drop_unfinished(self) -> None:
        """Frees the memory of g_v where no refresh has filled it: it may hold weights."""
        if self.norm is None:
            self.kept = {}

    def added_to(
        self, state: dict[str, Any], params: Tensors, keeps: Keeps, dtype: torch.dtype | None
    ) -> dict[str, Any]:
        """Returns the base optimizer's state dict with the rule's entry in the state of each trained parameter.

        There, ``torch.distributed.checkpoint`` takes it for state of the optimizer, and shards it. It loads into what a
        new optimizer saves, so the entries have the same form whether there is a g_v or not: without one, ``kept`` is 0
        and ``norm`` is NaN. Count and norm are those of the rule, in every entry.
        """
        kept = {} if self.norm is None else self.kept
        entries = dict(state["state"])
        trained = [p.requires_grad or p in kept for p in params]
        for i, p in enumerate(params):
            if not trained[i] and any(trained):
                continue
            entry: dict[str, Any] = {"keeps": keeps, "count": self.count}
            if keeps != "nothing":
                none = torch.full((), math.nan, dtype=tensors.accumulator(params), device=local([p])[0].device)
                entry["kept"] = kept[p] if p in kept else torch.zeros_like(p, dtype=dtype, requires_grad=False)
                entry["norm"] = self.norm.clone() if self.norm is not None and p in kept else none
            entries[i] = {**entries.get(i, {}), RULE: entry}
        return {**state, "state": entries}


def without_rule(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the ``"state"`` of a state dict without the entries of a rule."""
    if not any(isinstance(entry, Mapping) and RULE in entry for entry in entries.values()):
        return entries
    others = {
        i: {name: x for name, x in entry.items() if name != RULE} if isinstance(entry, Mapping) else entry
        for i, entry in entries.items()
    }
    return {i: entry for i, entry in others.items() if entry != {}}  # that of SGD without momentum


def loaded(state: dict[str, Any], params: Tensors, keeps: Keeps, dtype: torch.dtype | None) -> RuleState:
    """Returns the rule's part of a state dict, or raises an error that names what is wrong with it."""
    absent = {"state", "param_groups"} - set(state)
    if absent:
        raise ValueError(f"this state dict has no {', '.join(sorted(absent))}; save opt.state_dict().")
    ids = [i for group in state["param_groups"] for i in group["params"]]
    if len(ids) != len(params):
        raise ValueError(f"this state dict is of {len(ids)} parameters, and the optimizer has {len(params)}.")
    saved = {i: state["state"].get(i) for i in ids}
    entries = {i: entry[RULE] for i, entry in saved.items() if isinstance(entry, Mapping) and RULE in entry}
    if not entries:
        raise ValueError(
            "this state dict has no 'rule' in the state of its parameters: it is that of a plain optimizer. To resume "
            "from it with a fresh rule, use opt.base.load_state_dict(state)."
        )
    owners = {i: p for i, p in zip(ids, params, strict=True) if i in entries}
    for i, entry in entries.items():
        _check(entry, f"the 'rule' of parameter {i}", owners[i], keeps)
    result = RuleState(_common("count", entries))
    kept = {i: entry for i, entry in entries.items() if keeps != "nothing" and not math.isnan(entry["norm"])}
    if kept:
        _common("norm", kept)
        norm = next(iter(kept.values()))["norm"]
        result.norm = norm.to(local(params)[0].device, tensors.accumulator(params), copy=True)
    for i, entry in kept.items():
        p = owners[i]
        result.kept[p] = torch.zeros_like(p, dtype=dtype, requires_grad=False).copy_(entry["kept"])
    return result


def _common(name: str, entries: dict[Any, dict[str, Any]]) -> Any:
    """Returns the value on which all parameters agree."""
    first, *others = entries.items()
    for i, entry in others:
        if entry[name] != first[1][name]:
            raise ValueError(
                f"this state dict has {name}={first[1][name]} for parameter {first[0]} and {name}={entry[name]} for "
                f"parameter {i}: they are of different steps; save opt.state_dict() as a whole."
            )
    return first[1][name]


def _check(entry: dict[str, Any], where: str, p: Tensor, keeps: Keeps) -> None:
    """Raises if the rule's entry of one parameter cannot be loaded."""
    fields = {"keeps", "count"} if entry.get("keeps") == "nothing" else {"keeps", "count", "kept", "norm"}
    missing = fields - set(entry)
    if missing:
        raise ValueError(f"{where} in this state dict has no {', '.join(sorted(missing))}; save opt.state_dict().")
    if entry["keeps"] != keeps:
        raise ValueError(
            f"this state dict is that of a rule that keeps {entry['keeps']}, and this one keeps {keeps}; build the "
            "rule that was saved."
        )
    if type(entry["count"]) is not int or entry["count"] < 0:
        raise ValueError(f"{where} in this state dict has count={entry['count']!r}; it must be an int >= 0.")
    if keeps == "nothing":
        return
    kept, norm = entry["kept"], entry["norm"]
    if not (isinstance(norm, Tensor) and norm.ndim == 0 and (math.isnan(norm) or 0 <= norm < math.inf)):
        raise ValueError(f"{where} in this state dict has norm={norm!r}; it must be a 0-dim tensor >= 0.")
    if not (isinstance(kept, Tensor) and kept.is_floating_point()):
        raise ValueError(f"{where} in this state dict has {kept!r} as its {keeps}; it must be a floating-point tensor.")
    if kept.shape != p.shape:
        theirs, ours = tuple(kept.shape), tuple(p.shape)
        raise ValueError(f"{where} in this state dict has a {keeps} of shape {theirs}, and the parameter's is {ours}.")
    if is_dtensor(kept) != is_dtensor(p):
        raise ValueError(
            f"{where} in this state dict has a {type(kept).__name__} as its {keeps}, and the parameter is a "
            f"{type(p).__name__}; use set_optimizer_state_dict of torch.distributed.checkpoint.state_dict."
        )
    if not bool(torch.isfinite(local([kept])[0]).all()):
        raise ValueError(f"{where} in this state dict has a {keeps} that is not finite; load an earlier one.")

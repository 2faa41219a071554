"""What a rule carries from step to step: the count of steps, and g_v or the momentum v. All of it is saved."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.sharding import local
from looksam.torch.tensors import Tensors

Keeps = Literal["g_v", "v", "nothing"]


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

    def state_dict(self, params: Tensors, keeps: Keeps) -> dict[str, Any]:
        """Returns plain values and tensors, for ``torch.load(weights_only=True)``; parameters by their position."""
        kept = {i: self.kept[p] for i, p in enumerate(params) if p in self.kept and self.norm is not None}
        return {"keeps": keeps, "count": self.count, "kept": kept, "norm": self.norm}

    def load_state_dict(self, saved: dict[str, Any], params: Tensors, store_dtype: torch.dtype | None) -> None:
        """Loads what ``state_dict`` returned, after ``checked``."""
        self.drop()
        self.count = saved["count"]
        for i, tensor in saved["kept"].items():
            self.kept[params[i]] = torch.zeros_like(params[i], dtype=store_dtype, requires_grad=False).copy_(tensor)
        if saved["norm"] is not None:
            device = local(params)[0].device
            self.norm = saved["norm"].to(device=device, dtype=tensors.accumulator(params), copy=True)


def checked(state: dict[str, Any], params: Tensors, keeps: Keeps) -> dict[str, Any]:
    """Returns the rule's part of an optimizer's state dict, or raises an error that names what is wrong with it."""
    saved: dict[str, Any] | None = state.get("rule")
    if saved is None:
        raise ValueError(
            "this state dict has no 'rule': it is that of a plain optimizer. To resume from it with a fresh rule, "
            "use opt.base.load_state_dict(state)."
        )
    missing = {"keeps", "count", "kept", "norm"} - set(saved)
    if missing:
        raise ValueError(f"the 'rule' of this state dict has no {', '.join(sorted(missing))}; save opt.state_dict().")
    if saved["keeps"] != keeps:
        raise ValueError(
            f"this state dict is that of a rule that keeps {saved['keeps']}, and this one keeps {keeps}; build the "
            "rule that was saved."
        )
    if not isinstance(saved["count"], int) or saved["count"] < 0:
        raise ValueError(f"this state dict has count={saved['count']!r}; it must be an int >= 0.")
    for i, tensor in saved["kept"].items():
        if not (isinstance(i, int) and 0 <= i < len(params)):
            raise ValueError(
                f"this state dict has a {keeps} for parameter {i}, and there are {len(params)} parameters."
            )
        if tensor.shape != params[i].shape:
            theirs, ours = tuple(tensor.shape), tuple(params[i].shape)
            raise ValueError(
                f"this state dict has a {keeps} of shape {theirs} for parameter {i}, whose shape is {ours}."
            )
    return saved

"""What a wrapper carries from step to step, and how it is saved."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from looksam.torch import sharding, vector
from looksam.torch.replay import Replay
from looksam.torch.rule import StepInfo
from looksam.torch.scaling import Scaler
from looksam.torch.vector import Tensors


@dataclass
class Climb:
    """What is held while the weights are at w + ε."""

    g: dict[Tensor, Tensor]  # the clean gradient, of the parameters that have one
    moved: Tensors  # the parts of those parameters on this rank
    weights: Tensors  # their values before, to the bit
    replay: Replay
    scaler: Scaler | None

    def restore(self) -> None:
        torch._foreach_copy_(self.moved, self.weights)
        self.replay.finish()
        torch.clear_autocast_cache()  # it may hold casts of w + ε


@dataclass
class Progress:
    """One object, so that copies of the wrapper's attributes (Lightning makes some) see the same step."""

    count: int = 0  # steps taken
    g_v: dict[Tensor, Tensor] = field(default_factory=dict)  # of the parameters that had a gradient at the last refresh
    g_v_norm: Tensor | None = None  # None: no g_v to reuse
    info: StepInfo | None = None
    start: Replay | None = None  # made before the clean pass
    in_closure: bool = False  # the start is that of the closure
    climb: Climb | None = None  # set while the weights are at w + ε
    ready: bool = False  # the second pass is done; what .grad holds is for the base optimizer
    overflow: bool = False  # the scaler skips this step

    def homes(self, params: Tensors, dtype: torch.dtype | None) -> Tensors:
        """The memory in which g_v of these parameters is kept, made where there is none; what it holds is lost."""
        self.g_v_norm = None
        self.g_v = {p: self.g_v[p] if p in self.g_v else torch.empty_like(p, dtype=dtype) for p in params}
        return sharding.local(list(self.g_v.values()))

    def saved(self, params: Tensors, reuses: bool) -> dict[str, Any]:
        """Plain values and tensors, which ``torch.load(weights_only=True)`` reads; parameters by their position."""
        g_v = {i: self.g_v[p] for i, p in enumerate(params) if p in self.g_v and self.g_v_norm is not None}
        return {"reuses": reuses, "count": self.count, "g_v": g_v, "g_v_norm": self.g_v_norm}

    def load(self, saved: dict[str, Any], params: Tensors, store_dtype: torch.dtype | None) -> None:
        """Take over what ``saved`` made, after ``check_saved``."""
        self.count, self.g_v, self.g_v_norm = saved["count"], {}, None
        for i, tensor in saved["g_v"].items():
            self.g_v[params[i]] = torch.zeros_like(params[i], dtype=store_dtype, requires_grad=False).copy_(tensor)
        if saved["g_v_norm"] is not None:
            device = sharding.local(params)[0].device
            self.g_v_norm = saved["g_v_norm"].to(device=device, dtype=vector.accumulator(params), copy=True)
        self.info, self.start, self.ready = None, None, False


def check_saved(state: dict[str, Any], params: Tensors, reuses: bool) -> dict[str, Any]:
    """The rule's part of a state dict, or an error that says what is wrong with it."""
    saved = state.get("rule")
    if saved is None:
        raise ValueError(
            "this state dict has no 'rule': it is of a plain optimizer. To go on from it with a fresh rule, "
            "use opt.base.load_state_dict(state)."
        )
    missing = {"reuses", "count", "g_v", "g_v_norm"} - set(saved)
    if missing:
        raise ValueError(f"the 'rule' of this state dict has no {', '.join(sorted(missing))}; save opt.state_dict().")
    if saved["reuses"] != reuses:
        kept = "keeps no g_v, and this one does" if reuses else "keeps a g_v, and this one does not"
        raise ValueError(f"this state dict is of a rule that {kept}; build the rule that was saved.")
    if not isinstance(saved["count"], int) or saved["count"] < 0:
        raise ValueError(f"this state dict has count={saved['count']!r}; it must be an int >= 0.")
    for i, tensor in saved["g_v"].items():
        if not (isinstance(i, int) and 0 <= i < len(params)):
            raise ValueError(f"this state dict has a g_v for parameter {i}, and there are {len(params)} parameters.")
        if tensor.shape != params[i].shape:
            theirs, ours = tuple(tensor.shape), tuple(params[i].shape)
            raise ValueError(f"this state dict has a g_v of shape {theirs} for parameter {i}, whose shape is {ours}.")
    return saved

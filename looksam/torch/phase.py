"""Where the current step is, and what a rule carries from step to step.

``CurrentStep`` is the state machine of the two passes: one phase, and one method per transition. ``RuleState`` is what
outlives a step and is saved.
"""

import enum
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.replay import Replay, Scaler
from looksam.torch.sharding import local
from looksam.torch.tensors import Tensors


class Phase(enum.Enum):
    """The phases of a step. Only in ``PERTURBED`` are the weights not at w.

    from                  by             to          called in
    --------------------  -------------  ----------  ----------------------------------------------------
    IDLE                  enter_closure  CLEAN_PASS  opt.step(closure)
    CLEAN_PASS            leave_closure  IDLE        opt.step(closure), if there was no second pass
    IDLE, CLEAN_PASS      perturb        PERTURBED   opt.ascend()
    IDLE, CLEAN_PASS      skip           SKIPPED     opt.ascend() or opt.step(), on overflow
    PERTURBED             return_to_w    IDLE        the end of ``with opt.ascend()``, or else opt.step()
    IDLE                  set_ready      READY       the same, once the gradient is in place
    READY                 begin          IDLE        opt.zero_grad(), which discards the second pass
    IDLE, READY, SKIPPED  finish         IDLE        opt.step(), right before the base optimizer's own
    all but CLEAN_PASS    restore        IDLE        opt.restore(), and where a pass failed
    """

    IDLE = "idle"  # between steps, or in a clean pass without a closure
    CLEAN_PASS = "clean pass"  # in the first run of a closure
    PERTURBED = "perturbed"  # in the second pass: the weights are at w + ε
    READY = "ready"  # both passes are done, and .grad holds the gradient for the base optimizer
    SKIPPED = "skipped"  # the clean gradient overflowed, and the gradient scaler will skip the step


BEFORE_ASCENT = (Phase.IDLE, Phase.CLEAN_PASS)


@dataclass
class Perturbed:
    """What is held while the weights are at w + ε."""

    g: dict[Tensor, Tensor]  # the clean gradient, by the parameters that have one
    moved: Tensors  # the shards of those parameters on this rank
    weights: Tensors  # their values at w, to the bit
    replay: Replay
    scaler: Scaler | None

    def restore(self) -> None:
        """Returns the weights to w, and random states and buffers to the end of the clean pass."""
        torch._foreach_copy_(self.moved, self.weights)
        self.replay.finish()
        torch.clear_autocast_cache()  # it may hold casts of w + ε


@dataclass
class CurrentStep:
    """The phase of the current step with what it holds; its methods are the only transitions. See ``Phase``."""

    phase: Phase = Phase.IDLE
    start: Replay | None = None  # from before the clean pass, if the step takes a second one
    perturbed: Perturbed | None = None  # set exactly while the phase is PERTURBED

    @property
    def may_begin(self) -> bool:
        """Whether ``opt.zero_grad()`` starts a clean pass; if not, it is a call from within a pass."""
        return self.phase is Phase.IDLE or self.phase is Phase.READY

    def begin(self, start: Replay | None) -> None:
        """Starts a clean pass without a closure; a second pass that was done is discarded."""
        self.start = start
        if self.phase is Phase.READY:
            self.phase = Phase.IDLE

    def enter_closure(self, start: Replay | None) -> None:
        """Starts the clean pass of a closure."""
        if self.phase not in BEFORE_ASCENT:
            raise RuntimeError("opt.step(closure) after opt.ascend(); call opt.step(), or opt.restore(), first.")
        self.phase, self.start = Phase.CLEAN_PASS, start

    def leave_closure(self) -> None:
        """Ends the closure; what came out of its second pass stays."""
        if self.phase is Phase.CLEAN_PASS:
            self.phase = Phase.IDLE

    def check_ascent(self) -> None:
        """Raises if the step has left its clean pass already."""
        if self.phase not in BEFORE_ASCENT:
            raise RuntimeError("opt.ascend() was called already; do the second pass, then opt.step().")

    def perturb(self, held: Perturbed) -> None:
        """Starts the second pass, before the weights move: from here on, ``restore`` undoes everything."""
        self.perturbed, self.phase = held, Phase.PERTURBED
        held.replay.rewind(restart=self.start is not None)
        self.start = None

    def skip(self) -> None:
        """Leaves the rest of the step out."""
        self.phase = Phase.SKIPPED

    def return_to_w(self) -> Perturbed:
        """Ends the second pass: puts the weights back, and returns what was held."""
        held = self.perturbed
        assert held is not None
        held.restore()
        self.perturbed, self.phase = None, Phase.IDLE
        return held

    def set_ready(self) -> None:
        """Notes that .grad holds the gradient for the base optimizer."""
        self.phase = Phase.READY

    def finish(self) -> bool:
        """Ends the step, and returns whether the gradient scaler skips it."""
        skipped = self.phase is Phase.SKIPPED
        self.phase = Phase.IDLE
        return skipped

    def restore(self) -> None:
        """Puts the weights back if they are not at w, and discards the second pass."""
        if self.perturbed is not None:
            self.return_to_w()
        elif self.phase is not Phase.CLEAN_PASS:
            self.phase = Phase.IDLE

    def check_at_w(self, call: str) -> None:
        """Raises if the weights are not at w."""
        if self.phase is Phase.PERTURBED:
            raise RuntimeError(f"{call} while the weights are at w + ε; call opt.step() or opt.restore() first.")


@dataclass
class RuleState:
    """What a rule carries from step to step."""

    count: int = 0  # steps taken
    g_v: dict[Tensor, Tensor] = field(default_factory=dict)  # of the parameters that had a gradient at the last refresh
    g_v_norm: Tensor | None = None  # None if there is no g_v to reuse

    def g_v_buffers(self, params: Tensors, dtype: torch.dtype | None) -> Tensors:
        """Returns the memory in which g_v of these parameters is kept, allocated where missing; the old g_v is lost."""
        self.g_v_norm = None
        self.g_v = {p: self.g_v[p] if p in self.g_v else torch.empty_like(p, dtype=dtype) for p in params}
        return local(list(self.g_v.values()))

    def drop_unfinished(self) -> None:
        """Frees the memory of g_v where no refresh has filled it: it may hold weights."""
        if self.g_v_norm is None:
            self.g_v = {}

    def state_dict(self, params: Tensors, reuses: bool) -> dict[str, Any]:
        """Returns plain values and tensors, for ``torch.load(weights_only=True)``; parameters by their position."""
        g_v = {i: self.g_v[p] for i, p in enumerate(params) if p in self.g_v and self.g_v_norm is not None}
        return {"reuses": reuses, "count": self.count, "g_v": g_v, "g_v_norm": self.g_v_norm}

    def load_state_dict(self, saved: dict[str, Any], params: Tensors, store_dtype: torch.dtype | None) -> None:
        """Loads what ``state_dict`` returned, after ``checked``."""
        self.count, self.g_v, self.g_v_norm = saved["count"], {}, None
        for i, tensor in saved["g_v"].items():
            self.g_v[params[i]] = torch.zeros_like(params[i], dtype=store_dtype, requires_grad=False).copy_(tensor)
        if saved["g_v_norm"] is not None:
            device = local(params)[0].device
            self.g_v_norm = saved["g_v_norm"].to(device=device, dtype=tensors.accumulator(params), copy=True)


def checked(state: dict[str, Any], params: Tensors, reuses: bool) -> dict[str, Any]:
    """Returns the rule's part of an optimizer's state dict, or raises an error that names what is wrong with it."""
    saved: dict[str, Any] | None = state.get("rule")
    if saved is None:
        raise ValueError(
            "this state dict has no 'rule': it is that of a plain optimizer. To resume from it with a fresh rule, "
            "use opt.base.load_state_dict(state)."
        )
    missing = {"reuses", "count", "g_v", "g_v_norm"} - set(saved)
    if missing:
        raise ValueError(f"the 'rule' of this state dict has no {', '.join(sorted(missing))}; save opt.state_dict().")
    if saved["reuses"] != reuses:
        kept = "keeps no g_v, and this one does" if reuses else "keeps a g_v, and this one does not"
        raise ValueError(f"this state dict is that of a rule that {kept}; build the rule that was saved.")
    if not isinstance(saved["count"], int) or saved["count"] < 0:
        raise ValueError(f"this state dict has count={saved['count']!r}; it must be an int >= 0.")
    for i, tensor in saved["g_v"].items():
        if not (isinstance(i, int) and 0 <= i < len(params)):
            raise ValueError(f"this state dict has a g_v for parameter {i}, and there are {len(params)} parameters.")
        if tensor.shape != params[i].shape:
            theirs, ours = tuple(tensor.shape), tuple(params[i].shape)
            raise ValueError(f"this state dict has a g_v of shape {theirs} for parameter {i}, whose shape is {ours}.")
    return saved

"""Where the current step is: the state machine of the two passes, with one phase, and one method per transition."""

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

from looksam.torch.replay import Replay
from looksam.torch.saved_weights import SavedWeights
from looksam.torch.scaling import Scaler


class Phase(enum.Enum):
    """The phases of a step. Only in ``PERTURBED`` are the weights not at w.

    from                  by             to          called in
    --------------------  -------------  ----------  ----------------------------------------------------
    IDLE                  enter_closure  CLEAN_PASS  opt.step(closure)
    CLEAN_PASS            leave_closure  IDLE        opt.step(closure), if there was no second pass
    IDLE, CLEAN_PASS      perturb        PERTURBED   opt.ascend()
    IDLE, CLEAN_PASS      skip           SKIPPED     opt.ascend(), its end or opt.step(), on overflow
    PERTURBED             return_to_w    IDLE        the end of ``with opt.ascend()``, or else opt.step()
    IDLE                  set_ready      READY       the same, once the gradient is in place
    READY                 begin          IDLE        opt.zero_grad(), which discards the second pass
    IDLE, READY, SKIPPED  finish         IDLE        opt.step(), right before the base optimizer's own
    all but CLEAN_PASS    restore        IDLE        opt.restore(), and where a pass failed
    """

    IDLE = "idle"  # between steps, or in a clean pass without a closure
    CLEAN_PASS = "clean pass"  # in the first run of a closure
    PERTURBED = "perturbed"  # in the second pass, MSAM's only one: the weights are at w + ε
    READY = "ready"  # all passes are done, and .grad holds the gradient for the base optimizer
    SKIPPED = "skipped"  # the clean gradient overflowed, and the gradient scaler will skip the step


BEFORE_ASCENT = (Phase.IDLE, Phase.CLEAN_PASS)
AFTER_ASCENT = (Phase.PERTURBED, Phase.READY)


@dataclass
class Perturbed:
    """What is held while the weights are at w + ε."""

    g: dict[Tensor, Tensor]  # the clean gradient, by the parameters that have one
    saved: SavedWeights  # the weights at w, to the bit
    replay: Replay | None  # None if there was no pass before

    def restore(self) -> None:
        """Returns the weights to w, and random states and buffers to the end of the clean pass."""
        if self.replay:
            self.replay.finish()
        torch.clear_autocast_cache()  # it may hold casts of w + ε
        self.saved.restore()


@dataclass
class CurrentStep:
    """The phase of the current step with what it holds; its methods are the only transitions. See ``Phase``."""

    phase: Phase = Phase.IDLE
    start: Replay | None = None  # from before the clean pass, if the step takes a second one
    perturbed: Perturbed | None = None  # set exactly while the phase is PERTURBED
    scaler: Scaler | None = None  # that unscales the gradients of this step
    in_closure: bool = False

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
        self.phase, self.start, self.in_closure = Phase.CLEAN_PASS, start, True

    def leave_closure(self) -> None:
        """Ends the closure; what came out of its second pass stays."""
        self.in_closure = False
        if self.phase is Phase.CLEAN_PASS:
            self.phase = Phase.IDLE

    def check_step(self, closure: object) -> None:
        """Raises if a step cannot be taken now."""
        if self.in_closure:
            raise RuntimeError("opt.step() was called in its own closure; leave it out there.")
        if closure is not None and self.phase is not Phase.IDLE:
            raise RuntimeError("opt.step(closure) after opt.ascend(); call opt.step(), or opt.restore(), first.")

    def check_ascent(self) -> None:
        """Raises if the step has left its clean pass already."""
        if self.phase not in BEFORE_ASCENT:
            raise RuntimeError("opt.ascend() was called already; do the second pass, then opt.step().")

    def perturb(self, held: Perturbed) -> None:
        """Starts the second pass, before the weights move: from here on, ``restore`` undoes everything."""
        self.perturbed, self.phase = held, Phase.PERTURBED
        if held.replay:
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
        self.phase, self.scaler = Phase.IDLE, None
        return skipped

    def restore(self) -> None:
        """Puts the weights back if they are not at w, and discards the second pass."""
        if self.perturbed is not None:
            self.return_to_w()
        elif self.phase is not Phase.CLEAN_PASS:
            self.phase = Phase.IDLE
        self.scaler = None

    def check_at_w(self, call: str) -> None:
        """Raises if the weights are not at w."""
        if self.phase is Phase.PERTURBED:
            raise RuntimeError(f"{call} while the weights are at w + ε; call opt.step() or opt.restore() first.")

"""Calls by frameworks that would train on a part of the batch without an error of their own."""

import sys

FRAMES = 10  # between the framework's call and ours: decorators of torch, and a wrapper by a scheduler


def refuse_accumulating_accelerate() -> None:
    """Raises if ``opt.step(closure)`` is called by Accelerate while it accumulates gradients.

    In ``accelerator.accumulate()``, it leaves the calls for all micro-batches but the last out, with their closures.
    """
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state or module.GradientState().num_steps == 1:
        return
    frame = sys._getframe(1)
    for _ in range(FRAMES):
        if frame.f_globals.get("__name__") == "accelerate.optimizer":
            raise RuntimeError(
                f"opt.step(closure) with gradient_accumulation_steps={module.GradientState().num_steps} of Accelerate, "
                "which would run the closure of the last micro-batch only; use looksam.torch.accelerate.Backward, or "
                "gradient_accumulation_steps=1 and all micro-batches in the closure."
            )
        if frame.f_back is None:
            return
        frame = frame.f_back

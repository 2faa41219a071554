"""On which steps a rule takes its second gradient. JAX, PyTorch and the trainer share it; no framework is imported."""

from dataclasses import dataclass
from typing import Any

from looksam import arguments


@dataclass(frozen=True)
class RefreshSchedule:
    """Every k-th step of a window; create one with ``every``. Step counts may be Python ints or arrays."""

    k: int
    start: int
    stop: int | None  # None: to the end

    @property
    def is_always_active(self) -> bool:
        """Whether the window is the whole of training."""
        return self.start == 0 and self.stop is None

    @property
    def refreshes_always(self) -> bool:
        """Whether every step refreshes."""
        return self.k == 1 and self.is_always_active

    def is_active(self, count: Any) -> Any:
        """Whether a step is in the window; outside, the base optimizer gets the plain gradient."""
        return count >= self.start if self.stop is None else (count >= self.start) & (count < self.stop)

    def refreshes(self, count: Any) -> Any:
        """Whether a step refreshes: the first step of the window, and every k-th from there."""
        if self.is_always_active:
            return count % self.k == 0
        return self.is_active(count) & ((count - self.start) % self.k == 0)


def every(k: int = 1, *, start: int = 0, stop: int | None = None) -> RefreshSchedule:
    """Returns the schedule that refreshes on steps start, start + k, start + 2k, … before stop.

    Args:
      k: number of steps that share one second gradient.
      start: the first step on which the rule acts; before it, the base optimizer gets the plain gradient.
      stop: the step from which on it gets the plain gradient again; None for the end of training.

    Example:
      >>> from looksam.schedule import every
      >>> schedule = every(2, start=3, stop=7)
      >>> [step for step in range(10) if schedule.refreshes(step)]
      [3, 5]
    """
    first = arguments.whole("start", start, least=0)
    if stop is not None and arguments.whole("stop", stop) <= first:
        raise ValueError(
            f"stop={stop} is not after start={first}, so that the rule would never act; pass a later stop."
        )
    return RefreshSchedule(arguments.period(k), first, None if stop is None else int(stop))

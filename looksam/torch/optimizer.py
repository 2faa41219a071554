"""The optimizer all names share: it wraps another one and decides which gradient that one sees."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from looksam.torch import checks, scaling
from looksam.torch.balls import Ball, Layers
from looksam.torch.engine import Engine, Setting
from looksam.torch.progress import check_saved
from looksam.torch.ranks import PERTURBATIONS, Ranks
from looksam.torch.rule import StepInfo
from looksam.torch.scaling import Scaler


class SharpnessAware(Optimizer):
    """{which ball} × {when the second gradient is taken} × {what is done in between}; see the five names.

    Attributes:
      base: the wrapped optimizer. Its param groups and state are this one's too.
    """

    base: Optimizer
    _engine: Engine

    def __init__(
        self,
        base: Optimizer,
        ball: Ball,
        *,
        rho: Setting,
        k: int,
        alpha: Setting | None = None,
        layers: Layers | None = None,
        store_dtype: torch.dtype | None = None,
        model: nn.Module | None = None,
        perturbation: str = "global",
        full_info: bool = False,
    ) -> None:
        checks.base_optimizer(base, SharpnessAware)
        checks.module(model)
        checks.storage(store_dtype)
        settings: dict[str, Setting] = {"rho": rho} | ({} if alpha is None else {"alpha": alpha})
        numbers = {name: value for name, value in settings.items() if not callable(value)}
        for name, value in numbers.items():
            checks.non_negative(name, value)
        if perturbation not in PERTURBATIONS:
            raise ValueError(f"perturbation={perturbation!r} is unknown; pass 'global' or 'rank'.")
        ranks = Ranks(model) if perturbation == "rank" else None
        engine = Engine(base, ball, checks.period(k), settings, layers, store_dtype, model, ranks, full_info)
        engine.check_groups()
        # Optimizer.__init__ would make param groups of its own; this sets up the rest: hooks and the profiler.
        self.__setstate__({"base": base, "defaults": {**numbers, **base.defaults}, "_engine": engine})

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("base", "defaults", "_engine")}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._engine.settings.items())
        return f"{type(self).__name__}({settings}, k={self._engine.k}, base={self.base!r})"

    # The base optimizer's own.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Give the base optimizer more parameters. They have no g_v until the next refresh."""
        self.base.add_param_group(param_group)
        self._engine.check_groups()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the base optimizer does.

        In a loop without a closure, call it right before the clean pass: the random state and the buffers that the
        second pass starts from are taken here.
        """
        self.base.zero_grad(set_to_none)
        run = self._engine.run
        if run.climb is None and not run.in_closure and not run.overflow:
            run.ready = False
            run.start = self._engine.new_replay() if self.needs_second_pass else None

    # The steps.

    @property
    def info(self) -> StepInfo | None:
        """What the last step did; None before the first."""
        return self._engine.run.info

    @property
    def needs_second_pass(self) -> bool:
        """Will the next step take a second gradient?"""
        return self._engine.refreshes

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, scaler: Scaler | None = None) -> Any:
        """Take one step, and return what the closure returned on its clean pass.

        Args:
          closure: clears the gradients, computes the loss, calls its ``backward`` and returns it. It is called once on
            reuse steps and twice on refresh steps, each time with no gradients left over. Without it, the gradients
            are in place already: see ``ascend``.
          scaler: the ``torch.amp.GradScaler`` by which the loss is scaled. A step whose clean gradient overflows is
            skipped and does not count.
        """
        scaler = scaling.enabled(scaler)
        run = self._engine.run
        loss = None if closure is None else self._passes(torch.enable_grad()(closure), scaler)
        self._prepare(scaler)
        skipped, run.ready, run.overflow = run.overflow, False, False
        if scaler:
            scaler.step(self.base)
        else:
            self.base.step()
        run.count += not skipped
        run.start = self._engine.new_replay() if closure is None and self.needs_second_pass else None
        return loss

    @torch.no_grad()
    def ascend(self, *, scaler: Scaler | None = None) -> "Ascent":
        """In a loop without a closure, between the passes: take the gradients and move the weights to w + ε.

        ``with opt.ascend():`` around the second pass puts the weights back when it ends, also by an exception. Without
        ``with``, ``opt.step()`` puts them back, and ``opt.restore()`` where the second pass failed.
        """
        run = self._engine.run
        if run.climb is not None or run.ready or run.overflow:
            raise RuntimeError("opt.ascend() was called already; do the second pass, then opt.step().")
        if not self.needs_second_pass:
            raise RuntimeError("opt.ascend() on a step that takes no second gradient; ask opt.needs_second_pass first.")
        if self._engine.ranks and not run.in_closure:
            raise RuntimeError("perturbation='rank' needs opt.step(closure): its clean pass must not be synchronised.")
        try:
            self._engine.climb(scaling.enabled(scaler))
        except BaseException:
            self._engine.restore()
            raise
        return Ascent(self)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights back after a second pass that failed, and forget it. At other times, do nothing."""
        self._engine.restore()

    def _passes(self, closure: Callable[[], Any], scaler: Scaler | None) -> Any:
        """The closure, once or twice."""
        engine, run = self._engine, self._engine.run
        if run.climb is not None or run.ready or run.overflow:
            raise RuntimeError("opt.step(closure) after opt.ascend(); call opt.step(), or opt.restore(), first.")
        if engine.ranks and scaler:
            raise ValueError("perturbation='rank' does not work with a gradient scaler; use bfloat16, or 'global'.")
        run.start = engine.new_replay() if engine.refreshes else None
        run.in_closure = True
        try:
            engine.clear_gradients()
            loss = self._clean(closure)
            if engine.refreshes:
                ascent = self.ascend(scaler=scaler)
                if not run.overflow:
                    with ascent:
                        closure()
        except BaseException:
            engine.restore()
            raise
        finally:
            run.in_closure = False
        return loss

    def _clean(self, closure: Callable[[], Any]) -> Any:
        if self._engine.ranks and self._engine.refreshes:
            with self._engine.ranks.apart():
                return closure()
        return closure()

    def _prepare(self, scaler: Scaler | None) -> None:
        """Put the gradient for the base optimizer in place, if it is not."""
        run = self._engine.run
        if run.climb is not None:
            if run.climb.scaler is not scaler:
                raise RuntimeError("opt.ascend and opt.step got different scalers; pass scaler= to both.")
            self._engine.descend(self)
        elif not (run.ready or run.overflow):
            if self.needs_second_pass:
                raise RuntimeError(
                    "this step takes a second gradient; pass a closure, or call opt.ascend() and loss.backward() again "
                    "where opt.needs_second_pass."
                )
            self._engine.reuse(scaler)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """That of the base optimizer, with the rule's count and g_v under ``"rule"``."""
        self._refuse_while_climbing("opt.state_dict()")
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        engine = self._engine
        state = {**self.base.state_dict(), "rule": engine.run.saved(engine.params, engine.reuses)}
        for after in self._optimizer_state_dict_post_hooks.values():
            state = after(self, state) or state
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the saved optimizer was, in the middle of a cycle too. A wrong state changes nothing."""
        self._refuse_while_climbing("opt.load_state_dict()")
        state, engine = dict(state_dict), self._engine
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state = hook(self, state) or state
        saved = check_saved(state, engine.params, engine.reuses)
        self.base.load_state_dict({name: value for name, value in state.items() if name != "rule"})
        engine.run.load(saved, engine.params, engine.store_dtype)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _refuse_while_climbing(self, what: str) -> None:
        if self._engine.run.climb is not None:
            raise RuntimeError(f"{what} while the weights are at w + ε; call opt.step() or opt.restore() first.")


class Ascent:
    """What ``opt.ascend()`` returns, for ``with``: the weights are put back at its end."""

    def __init__(self, optimizer: SharpnessAware) -> None:
        self._optimizer = optimizer

    def __enter__(self) -> None:
        pass

    @torch.no_grad()
    def __exit__(self, kind: type | None, *_: object) -> None:
        engine = self._optimizer._engine
        if kind is not None:
            engine.restore()
        elif engine.run.climb is not None:
            engine.descend(self._optimizer)

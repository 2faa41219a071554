"""The optimizer that all rules share: it wraps another one and decides which gradient that one sees."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from looksam import arguments
from looksam.torch import phase
from looksam.torch.formulas import StepInfo, UnitPerturbation
from looksam.torch.param_groups import (
    Layers,
    ParamGroups,
    ScalarOrSchedule,
    check_base,
    check_model,
    check_store_dtype,
    non_negative,
)
from looksam.torch.passes import Passes
from looksam.torch.phase import Phase
from looksam.torch.replay import Scaler, enabled
from looksam.torch.sharding import PERTURBATIONS, Ranks


class SharpnessAware(Optimizer):
    """A sharpness-aware rule around a base optimizer; the five subclasses are the rules.

    A rule is {perturbation} × {period of the second gradient} × {what the steps in between do}.

    Attributes:
      base: the wrapped optimizer. Its param groups and its state are also those of the wrapper.
    """

    base: Optimizer
    _passes: Passes

    def __init__(
        self,
        base: Optimizer,
        unit_perturbation: UnitPerturbation,
        *,
        rho: ScalarOrSchedule,
        k: int,
        alpha: ScalarOrSchedule | None = None,
        layers: Layers | None = None,
        store_dtype: torch.dtype | None = None,
        model: nn.Module | None = None,
        perturbation: str = "global",
        full_info: bool = False,
    ) -> None:
        check_base(base, SharpnessAware)
        check_model(model)
        check_store_dtype(store_dtype)
        arguments.name_function("layers", layers, "block.weight", "the name of its layer")
        settings: dict[str, ScalarOrSchedule] = {"rho": rho} | ({} if alpha is None else {"alpha": alpha})
        numbers = {name: value for name, value in settings.items() if not callable(value)}
        for name, value in numbers.items():
            non_negative(name, value)
        if perturbation not in PERTURBATIONS:
            raise ValueError(f"perturbation={perturbation!r} is unknown; pass 'global' or 'rank'.")
        ranks = Ranks(model) if perturbation == "rank" else None
        groups = ParamGroups(base, settings, layers, model)
        passes = Passes(groups, unit_perturbation, arguments.period(k), store_dtype, model, ranks, full_info)
        groups.check()
        # Optimizer.__init__ would build param groups of its own; this sets up the rest: hooks and the profiler.
        self.__setstate__({"base": base, "defaults": {**numbers, **base.defaults}, "_passes": passes})

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("base", "defaults", "_passes")}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._passes.groups.settings.items())
        return f"{type(self).__name__}({settings}, k={self._passes.k}, base={self.base!r})"

    # What belongs to the base optimizer.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        return self.base.state

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, Any]) -> None:
        self.base.state = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the base optimizer. They have no g_v until the next refresh."""
        self.base.add_param_group(param_group)
        self._passes.groups.check()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as the base optimizer does.

        In a loop without a closure, call it right before the clean pass: the random state and the buffers from which
        the second pass starts are recorded here.
        """
        self.base.zero_grad(set_to_none)
        if self._passes.step.may_begin:
            self._passes.step.begin(self._passes.new_replay())

    # The steps.

    @property
    def info(self) -> StepInfo | None:
        """What the last step did; None before the first."""
        return self._passes.info

    @property
    def needs_second_pass(self) -> bool:
        """Whether the next step takes a second gradient."""
        return self._passes.refreshes

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, scaler: Scaler | None = None) -> Any:
        """Takes one step, and returns what the closure returned on its clean pass.

        Args:
          closure: clears the gradients, computes the loss, calls its ``backward`` and returns it. It is called once on
            reuse steps and twice on refresh steps, each time with no gradients left over. Without a closure, the
            gradients must be in place already: see ``ascend``.
          scaler: the ``torch.amp.GradScaler`` that scales the loss. A step whose clean gradient overflows is skipped
            and does not count.
        """
        scaler = enabled(scaler)
        passes = self._passes
        loss = None if closure is None else self._run(torch.enable_grad()(closure), scaler)
        self._prepare(scaler)
        skipped = passes.step.finish()
        if scaler:
            scaler.step(self.base)
        else:
            self.base.step()
        passes.state.count += not skipped
        passes.step.begin(passes.new_replay() if closure is None else None)
        return loss

    @torch.no_grad()
    def ascend(self, *, scaler: Scaler | None = None) -> "SecondPass":
        """In a loop without a closure, between the passes: collects the gradients and moves the weights to w + ε.

        ``with opt.ascend():`` around the second pass puts the weights back when it ends, also by an exception. Without
        ``with``, ``opt.step()`` puts them back, or ``opt.restore()`` if the second pass failed.
        """
        passes = self._passes
        passes.step.check_ascent()
        if not self.needs_second_pass:
            raise RuntimeError(
                "opt.ascend() on a step that takes no second gradient; check opt.needs_second_pass first."
            )
        if passes.ranks and passes.step.phase is not Phase.CLEAN_PASS:
            raise RuntimeError("perturbation='rank' needs opt.step(closure): its clean pass must not be synchronised.")
        try:
            passes.perturb(enabled(scaler))
        except BaseException:
            passes.restore()
            raise
        return SecondPass(self)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the weights back after a second pass that failed, and discards that pass. Else does nothing."""
        self._passes.restore()

    def _run(self, closure: Callable[[], Any], scaler: Scaler | None) -> Any:
        """Runs the closure, once or twice, and returns its first result."""
        passes = self._passes
        if passes.ranks and scaler:
            raise ValueError("perturbation='rank' does not work with a gradient scaler; use bfloat16, or 'global'.")
        passes.step.enter_closure(passes.new_replay())
        try:
            passes.clear_gradients()
            loss = self._clean(closure)
            if passes.refreshes:
                second_pass = self.ascend(scaler=scaler)
                if passes.step.phase is Phase.PERTURBED:
                    with second_pass:
                        closure()
        except BaseException:
            passes.restore()
            raise
        finally:
            passes.step.leave_closure()
        return loss

    def _clean(self, closure: Callable[[], Any]) -> Any:
        """Runs the clean pass; if each rank has its own perturbation, its gradients are not synchronised."""
        if self._passes.ranks and self._passes.refreshes:
            with self._passes.ranks.unsynchronised():
                return closure()
        return closure()

    def _prepare(self, scaler: Scaler | None) -> None:
        """Puts the gradient for the base optimizer in place, if it is not there yet."""
        passes, held = self._passes, self._passes.step.perturbed
        if held is not None:
            if held.scaler is not scaler:
                raise RuntimeError("opt.ascend and opt.step got different scalers; pass scaler= to both.")
            passes.descend(self)
        elif passes.step.phase in phase.BEFORE_ASCENT:
            if self.needs_second_pass:
                raise RuntimeError(
                    "this step takes a second gradient; pass a closure, or call opt.ascend() and loss.backward() again "
                    "if opt.needs_second_pass."
                )
            passes.reuse(scaler)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Returns the state dict of the base optimizer, with the rule's count and g_v under ``"rule"``."""
        passes = self._passes
        passes.step.check_at_w("opt.state_dict()")
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = {**self.base.state_dict(), "rule": passes.state.state_dict(passes.groups.params, passes.reuses)}
        for after in self._optimizer_state_dict_post_hooks.values():
            state = after(self, state) or state
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes where the saved optimizer was, also in the middle of a cycle. A wrong state changes nothing."""
        passes = self._passes
        passes.step.check_at_w("opt.load_state_dict()")
        state, params = dict(state_dict), passes.groups.params
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state = hook(self, state) or state
        saved = phase.checked(state, params, passes.reuses)
        self.base.load_state_dict({name: value for name, value in state.items() if name != "rule"})
        passes.state.load_state_dict(saved, params, passes.store_dtype)
        passes.info = None
        passes.step.begin(None)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)


class SecondPass:
    """The context that ``opt.ascend()`` returns: the weights are put back at its end."""

    def __init__(self, optimizer: SharpnessAware) -> None:
        self._optimizer = optimizer

    def __enter__(self) -> None:
        pass

    @torch.no_grad()
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        passes = self._optimizer._passes
        if kind is not None:
            passes.restore()
        elif passes.step.phase is Phase.PERTURBED:
            passes.descend(self._optimizer)

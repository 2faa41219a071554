"""The optimizer that all rules share: it wraps another one and decides which gradient that one sees."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from looksam import arguments
from looksam.schedule import RefreshSchedule
from looksam.torch import guards, phase
from looksam.torch.compose import compose
from looksam.torch.formulas import StepInfo
from looksam.torch.momentum import MomentumPasses
from looksam.torch.param_groups import ByName, ScalarOrSchedule, check_base
from looksam.torch.parts import BetweenGradient, MomentumPerturbation, Perturbation, RefreshGradient
from looksam.torch.passes import Passes, SecondPass
from looksam.torch.phase import Phase
from looksam.torch.scaling import Scaler, check_not_unscaled, check_same, enabled, handed_over
from looksam.torch.state import loaded, without_rule


class Options(TypedDict, total=False):
    """Keywords that all named rules pass on to ``SharpnessAware``, which documents them."""

    perturb: ByName | None
    model: nn.Module | None
    per_rank: bool
    clip_norm: float | None
    full_info: bool


class SharpnessAware(Optimizer):
    """A sharpness-aware rule around a base optimizer: four choices, of which the named rules are combinations.

    Args:
      base: the optimizer that takes the steps, e.g. ``torch.optim.AdamW(model.parameters())``.
      perturbation: where the second gradient is taken: ``global_perturbation``, ``layerwise_perturbation``,
        ``elementwise_perturbation`` or ``momentum_perturbation``.
      rho: radius ρ ≥ 0 of the perturbation: a number, or a function of the rule's step count. A ``"rho"`` in a param
        group applies to that group: ε is ρ times a unit vector over all parameters, and each tensor uses its own
        group's ρ. A step on which every ρ is 0 takes no second gradient.
      schedule: on which steps it is taken, from ``every``; by default on all of them.
      refresh: what such a step returns: ``sam_gradient()``, the default, or ``gsam_gradient(alpha)``.
      between: what the other steps return: ``plain_gradient()``, the default, or ``reused_g_v(alpha)``.
      perturb: a function from a parameter's name, like ``"block.weight"``, to whether it is perturbed; by default all
        are. One that is not is left at w, and counts in no norm of which ε is made; g_v is still over all parameters.
        ``"perturb": False`` in a param group does the same for that group. Names are those of ``model``, or of the
        ``named_parameters()`` that the base was given.
      model: the module that the closure trains. Its buffers (BatchNorm statistics) then come from the clean pass.
      per_rank: whether each rank has a perturbation of its own; ``model`` must then be a DistributedDataParallel.
      clip_norm: the largest norm, over all parameters, of the gradient that the base optimizer gets; a longer one is
        scaled down. By default nothing is clipped. ``opt.info`` reports norms before clipping.
      full_info: fill in all fields of ``opt.info``, which costs one more pass over the gradients on some steps.

    Attributes:
      base: the wrapped optimizer. Its param groups and its state are also those of the wrapper.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, elementwise_perturbation, every, reused_g_v
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = SharpnessAware(  # LookSAM with ASAM's perturbation, from step 1 on
      ...     torch.optim.SGD([w], lr=0.1),
      ...     elementwise_perturbation(),
      ...     rho=0.5,
      ...     schedule=every(3, start=1),
      ...     between=reused_g_v(alpha=0.3),
      ... )
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = (w**2).sum()
      ...     loss.backward()
      ...     return loss
      >>> refreshed = []
      >>> for _ in range(5):
      ...     loss = opt.step(closure)
      ...     refreshed.append(opt.info.refreshed)
      >>> refreshed
      [False, True, False, False, True]
    """

    base: Optimizer
    _passes: Passes
    _step_supports_amp_scaling = True  # so that GradScaler.step(opt) hands over its scale
    first_step = second_step = descent_step = guards.PASSES
    base_optimizer = guards.BASE
    rho = alpha = guards.SETTINGS

    def __init__(
        self,
        base: Optimizer,
        perturbation: Perturbation | MomentumPerturbation,
        rho: ScalarOrSchedule,
        *,
        schedule: RefreshSchedule | None = None,
        refresh: RefreshGradient | None = None,
        between: BetweenGradient | None = None,
        perturb: ByName | None = None,
        model: nn.Module | None = None,
        per_rank: bool = False,
        clip_norm: float | None = None,
        full_info: bool = False,
    ) -> None:
        check_base(base, SharpnessAware)
        passes = compose(
            base,
            perturbation,
            rho,
            schedule=schedule,
            refresh=refresh,
            between=between,
            perturb=perturb,
            model=model,
            per_rank=per_rank,
            clip_norm=clip_norm,
            full_info=full_info,
        )
        passes.leftovers.remember(passes.groups)  # another optimizer may have taken steps before
        numbers = {name: value for name, value in passes.groups.settings.items() if not callable(value)}
        # Optimizer.__init__ would build param groups of its own; this sets up the rest: hooks and the profiler.
        self.__setstate__({"base": base, "defaults": {**numbers, **base.defaults}, "_passes": passes})

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("base", "defaults", "_passes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._passes.groups.watch_loading()  # by a hook, which a copy of the base does not have yet

    def __repr__(self) -> str:
        schedule = self._passes.schedule
        settings: dict[str, Any] = {**self._passes.groups.settings, "k": schedule.k}
        if not schedule.is_always_active:
            settings |= {"start": schedule.start, "stop": schedule.stop}
        listed = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{type(self).__name__}({listed}, base={self.base!r})"

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
        """Adds parameters to the base optimizer, or raises. They have no g_v until the next refresh."""
        self._passes.groups.add(param_group)

    def train(self) -> None:
        """Switches a base optimizer that has two sets of weights, as schedule-free ones do, to those of training.

        It may be called in any pass, as Hugging Face's Trainer does: there the base is in this mode already.
        """
        getattr(self.base, "train", lambda: None)()

    def eval(self) -> None:
        """Switches such a base optimizer to the weights of evaluation. For all others it does nothing."""
        self._passes.step.check_at_w("opt.eval()")
        getattr(self.base, "eval", lambda: None)()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as the base optimizer does.

        In a loop without a closure, call it right before the clean pass: the random state and the buffers from which
        the second pass starts are recorded here.
        """
        self.base.zero_grad(set_to_none)
        if self._passes.step.may_begin:
            self._passes.step.begin(self._passes.new_replay())
            if not set_to_none:
                self._passes.leftovers.remember(self._passes.groups)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Registers a hook to call right before the base optimizer's step, when ``.grad`` holds what that will use."""
        return self.base.register_step_pre_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    # The steps.

    @property
    def info(self) -> StepInfo | None:
        """What the last step did; None before the first."""
        return self._passes.info

    @property
    def needs_second_pass(self) -> bool:
        """Whether the next step takes a second gradient; never for MSAM, whose only one is taken at w + ε."""
        return self._passes.refreshes

    @property
    def count(self) -> int:
        """The number of steps taken, by which refreshes and schedules go. It can be set between steps."""
        return self._passes.state.count

    @count.setter
    def count(self, count: int) -> None:
        self._passes.step.check_at_w("setting opt.count")
        self._passes.state.count = arguments.whole("count", count, least=0)

    @property
    def k(self) -> int:
        """The number of steps that share one second gradient. It can be set between steps, and is not saved."""
        return self._passes.schedule.k

    @k.setter
    def k(self, k: int) -> None:
        passes = self._passes
        passes.step.check_at_w("setting opt.k")
        if isinstance(passes, MomentumPasses):
            raise AttributeError(f"k={k} cannot be set: with the momentum perturbation every step takes one gradient.")
        passes.schedule = dataclasses.replace(passes.schedule, k=arguments.period(k))
        if not passes.reuses:
            passes.state.drop()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, scaler: Scaler | None = None) -> Any:
        """Takes one step, and returns what the closure returned on its clean pass (for MSAM, on its only one).

        Args:
          closure: clears the gradients, computes the loss, calls its ``backward`` and returns it. It is called twice on
            refresh steps and once on all others, each time with no gradients left over. Without a closure, the
            gradients must be in place already: see ``ascend``.
          scaler: the ``torch.amp.GradScaler`` that scales the loss. A step whose clean gradient overflows is skipped
            and does not count. Without a closure, ``scaler.step(opt)`` does the same.

        A step without any gradient does nothing and does not count.
        """
        passes, called_by_scaler = self._passes, handed_over(self, closure)
        passes.step.check_step(closure)
        scaler = called_by_scaler or enabled(scaler)
        if closure is None and scaler is None and passes.only_creates_state:
            self.base.step()
            return None
        loss = None if closure is None else self._run(torch.enable_grad()(closure), scaler)
        self._prepare(scaler)
        skipped, is_empty = passes.step.finish(), not passes.groups.have_gradients
        if not skipped:
            if not is_empty:
                passes.clip(known=closure is not None)
            self.base.step()
        passes.state.count += not (skipped or is_empty)
        passes.step.begin(passes.new_replay() if closure is None else None)
        passes.leftovers.remember(passes.groups)
        if called_by_scaler:
            called_by_scaler.give_back(self)
        return loss

    @torch.no_grad()
    def ascend(self, *, scaler: Scaler | None = None) -> SecondPass:
        """In a loop without a closure, between the passes: collects the gradients and moves the weights to w + ε.

        ``with opt.ascend():`` around the second pass puts the weights back when it ends, also by an exception. Without
        ``with``, ``opt.step()`` puts them back, or ``opt.restore()`` if the second pass failed. With MSAM it goes
        around the only pass, of every step: outside of its window it does nothing.
        """
        passes = self._passes
        passes.step.check_ascent()
        if not (passes.refreshes or passes.perturbs_first):
            if isinstance(passes, MomentumPasses):
                return SecondPass(passes, self)
            raise RuntimeError(
                "opt.ascend() on a step that takes no second gradient; check opt.needs_second_pass first."
            )
        if passes.ranks and passes.step.phase is not Phase.CLEAN_PASS:
            raise RuntimeError("per_rank=True needs opt.step(closure): its clean pass must not be synchronised.")
        scaler = enabled(scaler)
        check_not_unscaled(scaler, self)
        try:
            passes.perturb(scaler)
        except BaseException:
            passes.restore(self)
            raise
        return SecondPass(passes, self)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the weights back after a second pass that failed, and discards that pass. Else does nothing."""
        self._passes.restore(self)

    def _run(self, closure: Callable[[], Any], scaler: Scaler | None) -> Any:
        """Runs the closure, once or twice, and returns its first result."""
        passes = self._passes
        if passes.ranks and scaler:
            raise ValueError("per_rank=True does not work with a gradient scaler; use bfloat16, or leave it out.")
        guards.refuse_accumulating_accelerate()
        passes.leftovers.check(passes.groups)
        passes.step.enter_closure(passes.new_replay())
        try:
            passes.clear_gradients()
            if passes.perturbs_first:
                with self.ascend(scaler=scaler):
                    return closure()
            loss = self._clean(closure)
            if passes.groups.have_gradients and passes.refreshes:
                second_pass = self.ascend(scaler=scaler)
                if passes.step.phase is Phase.PERTURBED:
                    with second_pass:
                        closure()
        except BaseException:
            passes.restore(self)
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
        passes = self._passes
        if passes.step.phase in phase.AFTER_ASCENT:
            check_same(passes.step.scaler, scaler)
        if passes.step.phase is Phase.PERTURBED:
            passes.end_second_pass(self)
        elif passes.step.phase in phase.BEFORE_ASCENT and passes.groups.have_gradients:
            if passes.perturbs_first:
                raise RuntimeError(
                    "this step takes its gradient at w + ε; pass a closure, or put `with opt.ascend():` around the "
                    f"forward and backward pass. {guards.FRAMEWORKS}"
                )
            if passes.refreshes:
                raise RuntimeError(
                    "this step takes a second gradient; pass a closure, or call opt.ascend() and loss.backward() again "
                    f"if opt.needs_second_pass. {guards.FRAMEWORKS}"
                )
            check_not_unscaled(scaler, self)
            passes.reuse(scaler)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Returns the state dict of the base optimizer, with the rule's count and g_v, or v, in that of each parameter.

        They are ``["state"][i]["rule"]``, where ``torch.distributed.checkpoint`` takes them for state of the optimizer.
        """
        passes = self._passes
        passes.step.check_at_w("opt.state_dict()")
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = passes.state.added_to(self.base.state_dict(), passes.groups.params, passes.keeps, passes.store_dtype)
        for after in self._optimizer_state_dict_post_hooks.values():
            state = after(self, state) or state
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes where the saved optimizer was, also in the middle of a cycle. A wrong state changes nothing."""
        passes = self._passes
        passes.step.check_at_w("opt.load_state_dict()")
        state, before = dict(state_dict), (self.base.state, self.base.param_groups)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state = hook(self, state) or state
        rule = loaded(state, passes.groups.params, passes.keeps, passes.store_dtype)
        try:
            self.base.load_state_dict({**state, "state": without_rule(state["state"])})
        except BaseException:
            self.base.state, self.base.param_groups = before
            raise
        passes.state, passes.info = rule, None
        passes.step.begin(None)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

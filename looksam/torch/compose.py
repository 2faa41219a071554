"""Builds the passes of a rule from its four choices, and checks that these go together."""

from collections.abc import Callable, Hashable

from torch import nn
from torch.optim import Optimizer

from looksam import arguments
from looksam.schedule import RefreshSchedule, every
from looksam.torch.momentum import MomentumPasses, check_base_momentum
from looksam.torch.param_groups import ByName, ParamGroups, ScalarOrSchedule, check_model, non_negative
from looksam.torch.parts import (
    BetweenGradient,
    MomentumPerturbation,
    Perturbation,
    RefreshGradient,
    plain_gradient,
    sam_gradient,
)
from looksam.torch.passes import Passes
from looksam.torch.sharding import Ranks


def compose(
    base: Optimizer,
    perturbation: Perturbation | MomentumPerturbation,
    rho: ScalarOrSchedule,
    *,
    schedule: RefreshSchedule | None,
    refresh: RefreshGradient | None,
    between: BetweenGradient | None,
    perturb: ByName | None,
    model: nn.Module | None,
    per_rank: bool,
    clip_norm: float | None,
    full_info: bool,
) -> Passes:
    """Returns the passes of the rule that ``SharpnessAware`` is given; the arguments are documented there."""
    check_model(model)
    arguments.name_function("perturb", perturb, "block.weight", "True or False")
    schedule = every() if schedule is None else schedule
    refresh = sam_gradient() if refresh is None else refresh
    between = plain_gradient() if between is None else between
    for name, part, kind, example in (
        ("perturbation", perturbation, Perturbation | MomentumPerturbation, "global_perturbation()"),
        ("schedule", schedule, RefreshSchedule, "every(5)"),
        ("refresh", refresh, RefreshGradient, "sam_gradient()"),
        ("between", between, BetweenGradient, "plain_gradient()"),
    ):
        if not isinstance(part, kind):
            raise TypeError(f"{name} is a {type(part).__name__}; pass e.g. {example}.")
    if not callable(rho):
        non_negative("rho", rho)
    functions: dict[str, Callable[[str], Hashable] | None] = {"perturb": perturb}
    make: Callable[..., Passes] = Passes
    store_dtype = between.store_dtype
    if isinstance(perturbation, MomentumPerturbation):
        _check_one_pass(base, perturbation, schedule, refresh, between, per_rank)
        make, store_dtype = MomentumPasses, perturbation.store_dtype
    else:
        functions[perturbation.argument] = perturbation.by_name
    gsam_alpha = "alpha" if between.alpha is None else "gsam_alpha"
    settings = {"rho": rho, "alpha": between.alpha} | ({} if refresh.alpha is None else {gsam_alpha: refresh.alpha})
    groups = ParamGroups(base, {name: x for name, x in settings.items() if x is not None}, functions, model)
    passes = make(
        groups,
        perturbation,
        schedule,
        refresh_alpha=None if refresh.alpha is None else gsam_alpha,
        reuse_alpha=None if between.alpha is None else "alpha",
        store_dtype=store_dtype,
        model=model,
        ranks=Ranks(model) if per_rank else None,
        clip_norm=None if clip_norm is None else arguments.positive("clip_norm", clip_norm),
        full_info=full_info,
    )
    groups.take_over()
    return passes


def _check_one_pass(
    base: Optimizer,
    perturbation: MomentumPerturbation,
    schedule: RefreshSchedule,
    refresh: RefreshGradient,
    between: BetweenGradient,
    per_rank: bool,
) -> None:
    """Raises if a choice needs the clean gradient, which a rule with the momentum perturbation does not take."""
    needs = {
        f"k={schedule.k}": schedule.k > 1,
        "refresh=gsam_gradient(...)": refresh.alpha is not None,
        "between=reused_g_v(...)": between.alpha is not None,
        "per_rank=True": per_rank,
    }
    for choice, is_needed in needs.items():
        if is_needed:
            raise ValueError(
                f"{choice} needs the clean gradient, which a rule with the momentum perturbation does not take; leave "
                "it out, or choose another perturbation."
            )
    if perturbation.use_base_momentum:
        check_base_momentum(base, perturbation.momentum)
        if schedule.start > 0:
            raise ValueError(
                f"use_base_momentum=True with start={schedule.start}: the base's momentum has gradients of before that "
                "step, and the rule's own has not; leave either out."
            )

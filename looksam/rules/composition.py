"""A rule from its four choices, for combinations that have no name of their own."""

from collections.abc import Sequence
from typing import Any

from looksam import arguments
from looksam.rules import validation
from looksam.rules.batching import Groups
from looksam.rules.choices import BetweenGradient, RefreshGradient, ScalarOrSchedule, plain_gradient, sam_gradient
from looksam.rules.momentum_rule import MomentumPerturbation, MomentumRule
from looksam.rules.perturbation import ByPath, Perturbation
from looksam.rules.rule import Rule, shows_call
from looksam.schedule import RefreshSchedule, every


@shows_call
def compose(
    perturbation: Perturbation | MomentumPerturbation,
    rho: ScalarOrSchedule,
    *,
    schedule: RefreshSchedule | None = None,
    refresh: RefreshGradient | None = None,
    between: BetweenGradient | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """Returns the rule of four choices. The named rules are compositions of these parts; so are rules of your own.

    Args:
      perturbation: where the second gradient is taken: ``global_perturbation``, ``layerwise_perturbation``,
        ``elementwise_perturbation``, ``momentum_perturbation``, or a function ``(g, params, dtype) -> ε/ρ``.
      rho: radius ρ ≥ 0 of the perturbation: a number, an array scalar or a schedule of the rule's step count.
      schedule: on which steps it is taken, from ``every``; by default on all of them.
      refresh: what a step that takes it returns: ``sam_gradient()``, the default, or ``gsam_gradient(alpha)``.
      between: what the other steps return: ``plain_gradient()``, the default, or ``reused_g_v(alpha)``.
      perturb, groups, batch_argnums: as for ``looksam.sam``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam import rules
      >>> rule = rules.compose(  # LookSAM with ASAM's perturbation, from step 2 on
      ...     rules.elementwise_perturbation(),
      ...     rho=0.5,
      ...     schedule=rules.every(3, start=2),
      ...     between=rules.reused_g_v(alpha=0.3),
      ... )
      >>> [rule.refreshes(step) for step in range(7)]
      [False, False, True, False, False, True, False]
    """
    schedule = every() if schedule is None else schedule
    refresh = sam_gradient() if refresh is None else refresh
    between = plain_gradient() if between is None else between
    for name, value, kind in (
        ("schedule", schedule, RefreshSchedule),
        ("refresh", refresh, RefreshGradient),
        ("between", between, BetweenGradient),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}; pass a {kind.__name__}, e.g. {_EXAMPLES[name]}.")
    if not isinstance(perturbation, MomentumPerturbation) and not callable(perturbation):
        raise TypeError(f"perturbation is a {type(perturbation).__name__}; pass e.g. global_perturbation().")
    arguments.name_function("perturb", perturb, "block/kernel", "True or False")
    make: Any = Rule
    if isinstance(perturbation, MomentumPerturbation):
        _check_one_gradient(schedule, refresh, between, groups)
        make = MomentumRule
    rule: Rule = make(
        perturbation,
        rho=validation.setting("rho", rho),
        schedule=schedule,
        refresh_gradient=refresh,
        between=between,
        is_perturbed=perturb,
        groups=validation.group_setting(groups),
        batch_argnums=batch_argnums,
    )
    return rule


_EXAMPLES = {"schedule": "every(5)", "refresh": "sam_gradient()", "between": "plain_gradient()"}


def _check_one_gradient(
    schedule: RefreshSchedule, refresh: RefreshGradient, between: BetweenGradient, groups: Groups | None
) -> None:
    """Raises if a choice needs the clean gradient, which the momentum perturbation does without."""
    needs = {
        f"schedule=every({schedule.k})": schedule.k > 1,
        "refresh=gsam_gradient(…)": refresh.weights is not None,
        "between=reused_g_v(…)": between.weight is not None,
        f"groups={groups!r}": groups is not None,
    }
    for choice, is_needed in needs.items():
        if is_needed:
            raise ValueError(
                f"{choice} needs the clean gradient, which a rule with momentum_perturbation does not take; leave it "
                "out, or pass another perturbation."
            )

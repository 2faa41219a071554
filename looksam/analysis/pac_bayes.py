"""The PAC-Bayes bound of the paper's appendix, as a number."""

import math
from typing import Any, NamedTuple

from looksam import arguments
from looksam.rules import validation


class Bound(NamedTuple):
    """The bound in terms: bound = worst_loss + slack, slack = √((weights + confidence + constant)/(n − 1))."""

    bound: float
    worst_loss: float
    slack: float
    weights: float  # d log(1 + ‖w‖²/ρ'² (1 + √(log n / d))²)
    confidence: float  # 4 log(n/δ)
    constant: float  # 8 log(6n + 3d), Õ(1) in the theorem


def pac_bayes_bound(
    n: int,
    parameters: int,
    weight_norm: float,
    rho: float,
    rho0: float = 0.0,
    delta: float = 0.05,
    *,
    worst_loss: float = 0.0,
) -> Bound:
    """Returns the right-hand side of L_D(w) ≤ max L_S(w + ε) over ‖ε‖ ≤ ρ', plus slack.

    It holds with probability 1 − δ over n training examples.

    slack = √((d log(1 + ‖w‖²/ρ'² (1 + √(log n / d))²) + 4 log(n/δ) + 8 log(6n + 3d)) / (n − 1)), ρ'² = ρ² + ρ₀²: the
    last line of the paper's proof, which calls d, the number of parameters, k. The proof is for a loss between 0 and 1,
    and rests on an assumption of the paper, that random perturbations do not lower the expected loss. With far more
    parameters than examples the bound is vacuous: for networks the slack alone is far above 1.

    Args:
      n: number of training examples, ≥ 2.
      parameters: d, their number.
      weight_norm: ‖w‖, the 2-norm of all parameters.
      rho: radius ρ of the perturbation.
      rho0: radius ρ₀ of the error that LookSAM's reuse makes; 0 for exact SAM.
      delta: 1 minus the confidence, in (0, 1).
      worst_loss: the largest training loss within the radius; with 0 the bound is the slack alone.

    Example:
      >>> from looksam.analysis import pac_bayes_bound
      >>> print(f"{pac_bayes_bound(n=600, parameters=42_634, weight_norm=20.0, rho=0.1).slack:.1f}")
      27.5
    """
    arguments.whole("n", n, least=2)
    arguments.whole("parameters", parameters)
    for name, value in (("weight_norm", weight_norm), ("rho", rho), ("rho0", rho0), ("worst_loss", worst_loss)):
        validation.non_negative(name, value)
    squared = _radius_squared(float(rho), float(rho0))
    _check_delta(delta)
    growth = (1 + math.sqrt(math.log(n) / parameters)) ** 2
    weights = parameters * math.log1p(float(weight_norm) ** 2 / squared * growth)
    confidence = 4 * math.log(n / delta)
    constant = 8 * math.log(6 * n + 3 * parameters)
    slack = math.sqrt((weights + confidence + constant) / (n - 1))
    return Bound(float(worst_loss) + slack, float(worst_loss), slack, weights, confidence, constant)


def _radius_squared(rho: float, rho0: float) -> float:
    squared = rho**2 + rho0**2
    if not squared > 0:
        raise ValueError(f"rho={rho} and rho0={rho0} give a radius of 0 and an infinite bound; pass rho > 0.")
    return squared


def _check_delta(delta: Any) -> None:
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise TypeError(f"delta={delta!r} is not a number; pass 0 < delta < 1, e.g. 0.05.")
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta} is out of range; pass 0 < delta < 1, e.g. 0.05.")

"""Tools that measure flatness: pure functions of a loss and the weights."""

from looksam.analysis.decomposition import (
    Change,
    Components,
    Drift,
    DriftState,
    Prediction,
    SecondOrder,
    components,
    make_drift,
    second_order,
)
from looksam.analysis.hessian import (
    Eigenvalues,
    LanczosState,
    Trace,
    hessian_vector_product,
    lanczos_start,
    lanczos_step,
    quadratic_form,
    rademacher,
    ritz_values,
    top_eigenvalues,
    trace,
    trace_of,
)
from looksam.analysis.landscape import (
    filter_normalized,
    landscape_line,
    landscape_plane,
    random_direction,
    unit_direction,
)
from looksam.analysis.pac_bayes import Bound, pac_bayes_bound
from looksam.analysis.sharpness import ascent_sharpness, m_sharpness, one_step_sharpness
from looksam.analysis.summary import measure

__all__ = [
    "Bound",
    "Change",
    "Components",
    "Drift",
    "DriftState",
    "Eigenvalues",
    "LanczosState",
    "Prediction",
    "SecondOrder",
    "Trace",
    "ascent_sharpness",
    "components",
    "filter_normalized",
    "hessian_vector_product",
    "lanczos_start",
    "lanczos_step",
    "landscape_line",
    "landscape_plane",
    "m_sharpness",
    "make_drift",
    "measure",
    "one_step_sharpness",
    "pac_bayes_bound",
    "quadratic_form",
    "rademacher",
    "random_direction",
    "ritz_values",
    "second_order",
    "top_eigenvalues",
    "trace",
    "trace_of",
    "unit_direction",
]

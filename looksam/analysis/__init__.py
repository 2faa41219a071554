"""Tools that measure flatness: pure functions of a loss and the weights."""

from looksam.analysis.chunked_loss import chunked_loss
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
from looksam.analysis.resumable import InMemory, Kept
from looksam.analysis.sharpness import (
    AscentState,
    ascent_rise,
    ascent_sharpness,
    ascent_start,
    ascent_step,
    m_sharpness,
    one_step_sharpness,
)
from looksam.analysis.summary import measure

__all__ = [
    "AscentState",
    "Bound",
    "Change",
    "Components",
    "Drift",
    "DriftState",
    "Eigenvalues",
    "InMemory",
    "Kept",
    "LanczosState",
    "Prediction",
    "SecondOrder",
    "Trace",
    "ascent_rise",
    "ascent_sharpness",
    "ascent_start",
    "ascent_step",
    "chunked_loss",
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

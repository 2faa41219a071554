"""``looksam.conv_general_dilated`` against JAX's own convolution, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxprs_in_params

import looksam
from looksam import convolution

LAYOUT = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}


@st.composite
def problems(draw):
    """A convolution whose output is not empty: (shapes of the arrays, its other arguments)."""
    spatial, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    each = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * spatial))
    sizes, extents, strides = each(3, 8), each(1, 4), each(1, 3)
    input_dilation, kernel_dilation = each(1, 2), each(1, 2)
    padding = draw(st.sampled_from(["SAME", "VALID", None]))
    if padding is None or input_dilation != (1,) * spatial:
        padding = tuple(zip(each(-1, 3), each(-1, 3), strict=True))
    channels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    arguments = {
        "window_strides": strides,
        "padding": padding,
        "lhs_dilation": input_dilation,
        "rhs_dilation": kernel_dilation,
        "dimension_numbers": LAYOUT[spatial],
        "feature_group_count": groups,
    }
    x = (draw(st.integers(1, 3)), *sizes, groups * channels[0])
    kernel = (*extents, channels[0], groups * channels[1])
    return (x, kernel), arguments


def _arrays(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def _values_and_gradients(conv, x, kernel):
    """The output and the gradients of a weighted sum of it, as one program: op by op takes longer to compile."""

    @jax.jit
    def program(x, kernel, dy):
        y, backward = jax.vjp(conv, x, kernel)
        return y, *backward(dy)

    [dy] = _arrays(jax.eval_shape(conv, x, kernel).shape)
    return program(x, kernel, dy)


def _assert_close(actual, desired, tolerance=1e-12):
    for a, b in zip(actual, desired, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_outputs_and_gradients_equal_those_of_jax(problem):
    shapes, arguments = problem
    x, kernel = _arrays(*shapes)
    ours, jaxs = (
        functools.partial(conv, **arguments) for conv in (looksam.conv_general_dilated, lax.conv_general_dilated)
    )
    _assert_close(_values_and_gradients(ours, x, kernel), _values_and_gradients(jaxs, x, kernel))


CASES = {  # of the models: stem, block, downsampling block and skip connection, ImageNet stem
    "3x3": ((2, 8, 8, 3), (3, 3, 3, 4), 1, 1),
    "3x3 stride 2": ((2, 8, 8, 4), (3, 3, 4, 6), 2, 1),
    "3x3 stride 2, odd": ((2, 7, 9, 4), (3, 3, 4, 6), 2, 1),
    "1x1 stride 2": ((2, 8, 8, 4), (1, 1, 4, 6), 2, 0),
    "1x1": ((2, 5, 5, 4), (1, 1, 4, 6), 1, 0),
    "7x7 stride 2": ((1, 16, 16, 3), (7, 7, 3, 4), 2, 3),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    """(ours, JAX's, x, kernel): a convolution of the models."""
    x, kernel, stride, padding = CASES[request.param]
    arguments = ((stride, stride), [(padding, padding)] * 2)
    ours, jaxs = (
        lambda a, b, conv=conv: conv(a, b, *arguments, dimension_numbers=LAYOUT[2])
        for conv in (looksam.conv_general_dilated, lax.conv_general_dilated)
    )
    return ours, jaxs, *_arrays(x, kernel)


def test_hessian_vector_products(case):
    ours, jaxs, x, kernel = case
    tangents = tuple(_arrays(x.shape, kernel.shape))

    def product(conv):
        loss = lambda x, kernel: jnp.sum(jnp.sin(conv(x, kernel)))
        return jax.jit(lambda *a: jax.jvp(jax.grad(loss, (0, 1)), a, tangents)[1])(x, kernel)

    def reverse(conv):
        loss = lambda x, kernel: jnp.sum(jnp.sin(conv(x, kernel)))
        along = lambda *a: sum(jnp.vdot(g, t) for g, t in zip(jax.grad(loss, (0, 1))(*a), tangents, strict=True))
        return jax.jit(jax.grad(along, (0, 1)))(x, kernel)

    _assert_close(product(ours), product(jaxs), 1e-11)
    _assert_close(reverse(ours), reverse(jaxs), 1e-11)


def test_under_vmap_of_images_and_of_kernels(case):
    ours, jaxs, x, kernel = case
    xs, kernels = jnp.stack([x, 2 * x]), jnp.stack([kernel, -kernel])
    for axes in ((0, None), (None, 0), (0, 0)):
        args = (x if axes[0] is None else xs, kernel if axes[1] is None else kernels)
        ours_and_jaxs = (jax.vmap(functools.partial(_values_and_gradients, conv), axes)(*args) for conv in (ours, jaxs))
        _assert_close(*ours_and_jaxs)


def test_gradients_contain_channels_last_convolutions_only(case):
    ours, jaxs, x, kernel = case
    jaxpr = jax.make_jaxpr(functools.partial(_values_and_gradients, ours))(x, kernel)
    convolutions = [eqn for eqn in _equations(jaxpr.jaxpr) if eqn.primitive.name == "conv_general_dilated"]
    last = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, LAYOUT[2])
    assert all(eqn.params["dimension_numbers"] == last for eqn in convolutions)
    strided = jax.eval_shape(jaxs, x, kernel).shape[1] < x.shape[1]
    assert len(convolutions) == (0 if kernel.shape[:2] == (1, 1) else 2 + 4 if strided else 2 + 1)


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "highest"},
        {"preferred_element_type": jnp.float64},
        {"dimension_numbers": ("NHCW", "HWIO", "NHCW")},
    ],
)
def test_other_arguments_are_those_of_jax(options):
    x, kernel = _arrays((2, 4, 4, 4), (3, 3, 4, 4))
    arguments = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": LAYOUT[2], **options}
    ours = jax.make_jaxpr(lambda *a: looksam.conv_general_dilated(*a, **arguments))(x, kernel)
    assert str(ours) == str(jax.make_jaxpr(lambda *a: lax.conv_general_dilated(*a, **arguments))(x, kernel))


def test_other_back_ends_get_jaxs_gradients(case, monkeypatch):
    ours, jaxs, x, kernel = case
    monkeypatch.setattr(convolution.jax, "default_backend", lambda: "gpu")
    assert str(jax.make_jaxpr(ours)(x, kernel)) == str(jax.make_jaxpr(jaxs)(x, kernel))


def test_errors_are_those_of_jax():
    x, kernel = _arrays((2, 4, 4, 3), (3, 3, 4, 4))
    with pytest.raises(ValueError, match="feature"):
        looksam.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT[2])


def test_the_flax_layer_is_flaxs_with_other_gradients():
    ours, flaxs = (
        layer(3, 4, (3, 3), strides=2, param_dtype=jnp.float64, rngs=nnx.Rngs(0)) for layer in (looksam.Conv, nnx.Conv)
    )
    [x] = _arrays((2, 6, 6, 3))
    np.testing.assert_array_equal(ours(x), flaxs(x))
    assert ours.conv_general_dilated is looksam.conv_general_dilated


def test_bfloat16_keeps_its_dtype():
    x, kernel = (a.astype(jnp.bfloat16) for a in _arrays((2, 4, 4, 4), (3, 3, 4, 4)))
    conv = functools.partial(looksam.conv_general_dilated, dimension_numbers=LAYOUT[2])
    y, backward = jax.vjp(lambda *a: conv(*a, (1, 1), "SAME"), x, kernel)
    assert [output.dtype for output in (y, *backward(y))] == [jnp.bfloat16] * 3

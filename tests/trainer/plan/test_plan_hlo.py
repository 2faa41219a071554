"""What looksam.trainer.plan reads from compiled programs, against counts made another way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from looksam.trainer.models import build_model
from looksam.trainer.plan.flops import flops, uncounted
from looksam.trainer.plan.hlo import parse
from looksam.trainer.plan.program import cost, memory
from looksam.trainer.plan.shapes import Array, bits, parse_shape


def compiled(function, *shapes):
    arrays = [s if hasattr(s, "dtype") else jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    return jax.jit(function).lower(*arrays).compile()


def text(function, *shapes):
    return compiled(function, *shapes).as_text()


# --- FLOPs ------------------------------------------------------------------------------------------------------


def test_products_count_2mnk_and_agree_with_the_compiler():
    program = compiled(lambda a, b, c: (a @ b) @ c, (8, 32), (32, 16), (16, 4))
    assert flops(program.as_text()) == 2 * 8 * 32 * 16 + 2 * 8 * 16 * 4 == program.cost_analysis()["flops"]


def test_a_product_may_have_several_batch_and_contracted_axes():
    program = compiled(lambda a, b: jnp.einsum("nmqhd,nmkhd->nhqk", a, b), (3, 2, 5, 4, 8), (3, 2, 7, 4, 8))
    assert flops(program.as_text()) == 2 * (3 * 4 * 5 * 7) * (2 * 8) == program.cost_analysis()["flops"]


def test_products_that_become_sums_are_not_counted():
    assert flops(text(jnp.vdot, (64,), (64,))) == flops(text(jnp.matmul, (8, 1), (1, 16))) == 0


def test_loops_count_as_often_as_they_run():
    def inner(x, w):
        return lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]

    def outer(x, w):
        return lax.scan(lambda c, _: (inner(c, w), None), x, None, length=3)[0].sum()

    body = 2 * 8 * 16 * 16
    assert flops(text(outer, (8, 16), (5, 16, 16))) == 3 * 5 * body
    # the gradient of a product is two products
    assert flops(text(jax.grad(outer, argnums=(0, 1)), (8, 16), (5, 16, 16))) == 3 * (3 * 5 * body)
    # which the compiler's own count leaves out
    assert compiled(outer, (8, 16), (5, 16, 16)).cost_analysis()["flops"] < 2 * body


def test_a_loop_of_unknown_length_raises_only_around_flops():
    count = jax.ShapeDtypeStruct((), jnp.int32)
    with_product = text(lambda n, x: lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ y), x), count, (8, 8))
    with pytest.raises(ValueError, match=r"loop 'while\S*' holds 1,024 FLOPs a pass.*use lax.scan"):
        flops(with_product)
    assert flops(text(lambda n, x: lax.fori_loop(0, n, lambda _, y: y + y, x) @ x, count, (8, 8))) == 1024


def test_of_a_conditional_the_costliest_branch_counts():
    predicate = jax.ShapeDtypeStruct((), jnp.bool_)
    program = text(lambda p, a: lax.cond(p, lambda: a @ a, lambda: a @ a @ a @ a), predicate, (8, 8))
    assert flops(program) == 3 * 1024


def vit_flops(images, tokens, patch_values, width, hidden, depth, classes):
    """Forward and backward, from the formula: a product's gradient is two more, but none with respect to the images."""
    per_token = 4 * width * width + 2 * width * hidden + 2 * tokens * width
    forward = 2 * images * (depth * tokens * per_token + width * classes)
    return 3 * forward + 2 * (2 * images * tokens * patch_values * width)


def test_a_vit_has_the_flops_of_its_formula():
    sizes = {"patch": 4, "width": 24, "depth": 2, "heads": 3}
    model = build_model("vit", image_shape=(8, 8, 3), num_classes=10, **sizes)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))

    def loss(params, images):
        return jnp.sum(jnp.square(model.apply(params, stats, images, train=True)[0]))

    program = jax.jit(jax.grad(loss)).lower(params, jax.ShapeDtypeStruct((6, 8, 8, 3), jnp.float32)).compile()
    formula = vit_flops(6, tokens=4, patch_values=48, width=24, hidden=96, depth=2, classes=10)
    assert cost(program).flops == formula
    assert cost(program).uncounted == ()


CONVOLUTIONS = {
    "plain": ((2, 8, 8, 4), (3, 3, 4, 6), {"padding": "SAME"}),
    "strided": ((2, 8, 9, 4), (3, 3, 4, 6), {"padding": "SAME", "window_strides": (2, 2)}),
    "strided 1x1": ((2, 8, 8, 4), (1, 1, 4, 6), {"padding": "VALID", "window_strides": (2, 2)}),
    "dilated": ((2, 9, 9, 4), (3, 2, 4, 6), {"padding": "VALID", "rhs_dilation": (2, 3)}),
    "transposed": ((2, 5, 5, 4), (4, 4, 4, 6), {"padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2)}),
    "grouped": ((2, 8, 8, 4), (3, 3, 2, 6), {"padding": "SAME", "feature_group_count": 2}),
    "depthwise": ((2, 8, 8, 4), (3, 3, 1, 4), {"padding": "SAME", "feature_group_count": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_and_its_gradients_count_each_term_once(name):
    images, kernel, options = CONVOLUTIONS[name]
    options = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC")} | options
    convolve = functools.partial(lax.conv_general_dilated, **options)
    # with ones everywhere, every term that is computed adds 1 to the output: count them there
    terms = int(jnp.sum(convolve(jnp.ones(images, jnp.float32), jnp.ones(kernel, jnp.float32))))
    assert flops(text(convolve, images, kernel)) == 2 * terms

    def loss(x, w):
        return jnp.sum(jnp.square(convolve(x, w)))

    # each term of the output is one of the gradient of the images, and one of that of the weights; the latter, of a
    # depthwise convolution, is compiled for CPU as that of all pairs of channels, of which most are thrown away
    wasted = 4 if name == "depthwise" else 1
    assert flops(text(jax.grad(loss, argnums=(0, 1)), images, kernel)) == (1 + 1 + wasted) * 2 * terms


def test_products_in_bfloat16_count_the_same():
    arrays = (jax.ShapeDtypeStruct((8, 32), jnp.bfloat16), jax.ShapeDtypeStruct((32, 16), jnp.bfloat16))
    assert flops(text(jnp.matmul, *arrays)) == 2 * 8 * 32 * 16


def test_what_may_hide_flops_is_named():
    assert uncounted(text(lambda x: jnp.sort(x @ x, axis=0), (8, 8))) == ()
    (found,) = uncounted(text(lambda x: lax.linalg.cholesky(x), (8, 8)))
    assert found.startswith('custom-call "lapack_spotrf')
    assert uncounted("HloModule m\n\nENTRY %e () -> f32[2] {\n  ROOT %x = f32[2]{0} ragged-dot()\n}\n") == (
        "ragged-dot",
    )


# --- shapes, memory, text ---------------------------------------------------------------------------------------


def test_shapes_have_the_bytes_of_their_elements():
    assert parse_shape("(f32[2,3]{1,0:T(8,128)}, pred[], (bf16[<=4], s4[3]), token[])") == (
        Array("f32", (2, 3)),
        Array("pred", ()),
        Array("bf16", (4,)),
        Array("s4", (3,)),
        Array("token", ()),
    )
    assert [array.bytes for array in parse_shape("f32[2,3] pred[] bf16[4] s4[3] f8e4m3fn[5] c128[2]")] == [
        *(24, 1, 8, 2, 5, 32)
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint32, jnp.float64, jnp.complex64):
        array = np.zeros((3, 5), dtype)
        (shape,) = parse(text(lambda x: x, array)).computations["main.1"]["x.1"].shape
        assert (shape.dims, shape.bytes) == ((3, 5), array.nbytes)
    with pytest.raises(ValueError, match="element type 'zz' has no known width"):
        bits("zz")


def test_memory_is_of_one_device():
    on = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(on, P("data")))
    w = jax.ShapeDtypeStruct((32, 32), jnp.float32, sharding=NamedSharding(on, P()))
    program = jax.jit(lambda w, x: (w + 1, jnp.tanh(x @ w) @ w), donate_argnums=0).lower(w, x).compile()
    found = memory(program)
    assert found.arguments == 4 * (32 * 32 + 64 * 32 // 8)
    assert found.aliased == 4 * 32 * 32
    assert found.temporary >= 0
    assert found.total == found.arguments + found.outputs - found.aliased + found.temporary
    assert cost(program).flops == 2 * (2 * 8 * 32 * 32)


def test_text_that_is_no_program_raises():
    with pytest.raises(ValueError, match="begins with 'module @jit_f'"):
        parse("module @jit_f\n")
    with pytest.raises(ValueError, match="has no ENTRY"):
        parse("HloModule m\n")
    with pytest.raises(ValueError, match="no instruction of a compiled program: 'what is this'"):
        parse("HloModule m\n\nENTRY %e () -> f32[] {\n  what is this\n}\n")

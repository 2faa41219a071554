"""FLOPs and memory of programs, against counts made another way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from looksam.trainer.models import build_model
from looksam.trainer.plan.flops import cost, count, jaxprs_in
from looksam.trainer.plan.program import Memory


def traced(function, *shapes):
    arrays = [s if hasattr(s, "dtype") else jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    return jax.jit(function).trace(*arrays)


def flops(function, *shapes):
    return count(traced(function, *shapes).jaxpr).flops


def compilers_flops(function, *shapes):
    return traced(function, *shapes).lower().compile().cost_analysis()["flops"]


def uncounted(function, *shapes):
    return count(traced(function, *shapes).jaxpr).uncounted


# --- FLOPs ------------------------------------------------------------------------------------------------------


def test_products_count_2mnk_and_agree_with_the_compiler():
    program = lambda a, b, c: (a @ b) @ c, (8, 32), (32, 16), (16, 4)
    assert flops(*program) == 2 * 8 * 32 * 16 + 2 * 8 * 16 * 4 == compilers_flops(*program)


def test_a_product_may_have_several_batch_and_contracted_axes():
    program = lambda a, b: jnp.einsum("nmqhd,nmkhd->nhqk", a, b), (3, 2, 5, 4, 8), (3, 2, 7, 4, 8)
    assert flops(*program) == 2 * (3 * 4 * 5 * 7) * (2 * 8) == compilers_flops(*program)


def test_products_that_become_sums_are_not_counted():
    assert flops(jnp.vdot, (64,), (64,)) == flops(jnp.matmul, (8, 1), (1, 16)) == 0


def test_loops_count_as_often_as_they_run():
    def inner(x, w):
        return lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]

    def outer(x, w):
        return lax.scan(lambda c, _: (inner(c, w), None), x, None, length=3)[0].sum()

    body = 2 * 8 * 16 * 16
    assert flops(outer, (8, 16), (5, 16, 16)) == 3 * 5 * body
    # the gradient of a product is two products
    assert flops(jax.grad(outer, argnums=(0, 1)), (8, 16), (5, 16, 16)) == 3 * (3 * 5 * body)
    # which the compiler's own count leaves out
    assert compilers_flops(outer, (8, 16), (5, 16, 16)) < 2 * body


def test_a_loop_of_unknown_length_raises_only_around_flops():
    length = jax.ShapeDtypeStruct((), jnp.int32)
    with pytest.raises(ValueError, match=r"loop 'while\S*' holds 1,024 FLOPs per pass.*use lax.scan"):
        flops(lambda n, x: lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ y), x), length, (8, 8))
    assert flops(lambda n, x: lax.fori_loop(0, n, lambda _, y: y + y, x) @ x, length, (8, 8)) == 1024
    assert flops(lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ y), x), (8, 8)) == 3 * 1024


def test_of_a_conditional_the_costliest_branch_counts():
    predicate = jax.ShapeDtypeStruct((), jnp.bool_)
    assert flops(lambda p, a: lax.cond(p, lambda: a @ a, lambda: a @ a @ a @ a), predicate, (8, 8)) == 3 * 1024


@jax.custom_vjp
def cubed(a):
    return a @ a @ a


cubed.defvjp(lambda a: (a @ a @ a, a), lambda a, g: (a @ g @ a @ a,))


def test_products_inside_calls_count_once():
    assert flops(jax.jit(lambda a: a @ a), (8, 8)) == 1024
    assert flops(cubed, (8, 8)) == 2 * 1024
    assert flops(jax.grad(lambda a: jnp.sum(jnp.square(cubed(a)))), (8, 8)) == (2 + 3) * 1024
    assert flops(jax.vmap(lambda a: a @ a), (5, 8, 8)) == 5 * 1024


def test_what_is_recomputed_counts_again():
    def layer(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    def gradient(layer):
        return jax.grad(lambda w, x: jnp.sum(jnp.square(layer(w, x))), argnums=(0, 1))

    # forward, backward twice as much; recomputed: all but the last product, whose result is no residual
    assert flops(gradient(layer), (8, 8), (8, 8)) == 3 * 2 * 1024
    assert flops(gradient(jax.checkpoint(layer)), (8, 8), (8, 8)) == (2 + 2 + 4) * 1024


def test_dead_code_is_not_counted():
    assert flops(lambda a: (a @ a, a + 1)[1], (8, 8)) == 0
    assert flops(lambda a: jax.jit(lambda a: (a @ a, a + 1))(a)[1], (8, 8)) == 0


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

    program = jax.jit(jax.grad(loss)).trace(params, jax.ShapeDtypeStruct((6, 8, 8, 3), jnp.float32))
    formula = vit_flops(6, tokens=4, patch_values=48, width=24, hidden=96, depth=2, classes=10)
    assert count(program.jaxpr).flops == formula
    assert count(program.jaxpr).uncounted == ()


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
    assert flops(convolve, images, kernel) == 2 * terms

    def loss(x, w):
        return jnp.sum(jnp.square(convolve(x, w)))

    # each term of the output is one of the gradient of the images, and one of that of the weights
    assert flops(jax.grad(loss, argnums=(0, 1)), images, kernel) == 3 * 2 * terms


def test_products_in_bfloat16_count_the_same():
    arrays = (jax.ShapeDtypeStruct((8, 32), jnp.bfloat16), jax.ShapeDtypeStruct((32, 16), jnp.bfloat16))
    assert flops(jnp.matmul, *arrays) == 2 * 8 * 32 * 16


def test_what_may_hide_flops_is_named():
    assert uncounted(lambda x: jnp.sort(x @ x, axis=0), (8, 8)) == ()
    assert uncounted(lambda x: lax.linalg.cholesky(x), (8, 8)) == ("cholesky",)
    assert uncounted(lambda x: lax.custom_root(jnp.sin, x, lambda f, y: y, lambda g, y: y), (8,)) == ()
    solve = functools.partial(lax.custom_linear_solve, solve=lambda _, b: b, symmetric=True)
    assert uncounted(lambda a, b: solve(lambda x: a @ x, b), (8, 8), (8,)) == ("custom_linear_solve",)
    sizes = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert uncounted(lax.ragged_dot, (8, 4), (2, 4, 3), sizes) == ("ragged_dot_general",)
    result = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert uncounted(lambda x: jax.pure_callback(np.sin, result, x), (8, 8)) == ("pure_callback",)


@pytest.mark.parametrize("hold", [lambda j: {"jaxpr": j}, lambda j: {"x": (0, [j])}, lambda j: {"x": {"y": j.jaxpr}}])
def test_jaxprs_are_found_wherever_an_equation_holds_them(hold):
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(1.0)
    assert jaxprs_in({"length": 3, "name": "f", **hold(jaxpr)}) == [jaxpr.jaxpr]


# --- one device of a mesh ---------------------------------------------------------------------------------------


def on_a_mesh(function):
    """The program of ``function(w, x)``, the rows of x over eight devices, traced, and w donated."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct((32, 32), jnp.float32, sharding=NamedSharding(mesh, P()))
    return jax.jit(function(mesh), donate_argnums=0).trace(w, x)


def step(w, x):
    return w + 1, jnp.tanh(x @ w) @ w


def test_memory_and_flops_are_of_one_device():
    program = on_a_mesh(
        lambda mesh: jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P("data")))
    )
    compiled = program.lower().compile()
    found = Memory.of(compiled)
    assert found.arguments == 4 * (32 * 32 + 64 * 32 // 8)
    assert found.aliased == 4 * 32 * 32
    assert found.temporary >= 0
    assert found.total == found.arguments + found.outputs - found.aliased + found.temporary
    whole = cost(program, compiled, devices=8)
    assert (whole.flops, whole.uncounted, whole.memory) == (2 * (2 * 8 * 32 * 32), (), found)


def test_products_that_the_compiler_splits_are_named_and_not_counted():
    work = count(on_a_mesh(lambda mesh: step).jaxpr, devices=8)
    assert (work.flops, work.uncounted) == (0, ("dot_general outside shard_map",))

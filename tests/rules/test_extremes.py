"""Zero, overflow and NaN: no finite gradient becomes a NaN through a rule, and nothing non-finite is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import LOOK_RULES, RULES, TWO_GRADIENT_RULES, build

every_rule = pytest.mark.parametrize("name", RULES)
two_gradient_rule = pytest.mark.parametrize("name", TWO_GRADIENT_RULES)
look_rule = pytest.mark.parametrize("name", LOOK_RULES)

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
G = {"a": jnp.array([0.3, 0.1]), "b": jnp.array([-0.2])}
G_S = {"a": jnp.array([0.5, -0.1]), "b": jnp.array([0.4])}
ZERO = jax.tree.map(jnp.zeros_like, G)


@pytest.fixture(name="form", params=["static", "traced", "differentiable"], autouse=True)
def _form(request):
    global form
    form = request.param


def refreshed(rule, g, g_s, params=PARAMS, state=None):
    return _step(rule, g, g_s, params, rule.init(params) if state is None else state, refresh=True)


def reused(rule, g, state, params=PARAMS):
    return _step(rule, g, jax.tree.map(lambda x: x * jnp.nan, g), params, state, refresh=False)


def _step(rule, g, g_s, params, state, *, refresh):
    """A step that refreshes or not, by the argument or by a count at which it is due."""
    if form != "static":
        rule = rule.differentiable() if form == "differentiable" else rule
        state = state._replace(count=jnp.array(0 if refresh else 1, jnp.int32))
        refresh = None
    return rule.transform(g, lambda w: g_s, params, state, refresh=refresh)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def finite(tree):
    return all(bool(jnp.all(jnp.isfinite(x.astype(jnp.float32)))) for x in jax.tree.leaves(tree))


def spoilt(tree, value):
    return {**tree, "b": jnp.full_like(tree["b"], value)}


@every_rule
def test_zero_gradient(name):
    rule = build(name)
    grads, state, info = rule.transform(
        ZERO, lambda w: same(w, PARAMS) or ZERO, PARAMS, rule.init(PARAMS), refresh=True
    )
    same(grads, ZERO)
    assert finite((state, info)) and not info.fell_back


@look_rule
def test_zero_g_v_and_zero_g_on_reuse(name):
    rule = build(name)
    _, state, info = refreshed(rule, G, jax.tree.map(lambda x: 3 * x, G))  # parallel: g_v is rounding, so 0
    assert float(info.g_v_norm) == float(state.g_v_norm) == 0.0
    same(reused(rule, G, state)[0], G)
    _, state, _ = refreshed(rule, G, G_S)
    grads, _, info = reused(rule, ZERO, state)
    same(grads, ZERO)
    assert finite(info)


@every_rule
def test_a_gradient_too_small_to_have_a_direction(name):
    tiny = jax.tree.map(lambda x: 1e-200 * x, G)  # its squares underflow
    grads, state, info = refreshed(build(name), tiny, G_S)
    same(grads, G_S)
    assert finite((state, info)) and not info.fell_back and float(info.g_v_norm) == 0.0


@look_rule
def test_one_scalar_parameter_has_no_g_v(name):
    rule, params = build(name), {"w": jnp.array(0.3)}
    value_and_grad = jax.value_and_grad(lambda params: jnp.sin(7 * params["w"]))
    _, _, state, _ = rule.gradient(value_and_grad, params, rule.init(params))
    assert float(state.g_v_norm) == 0.0
    _, grads, _, _ = rule.gradient(value_and_grad, params, state)
    same(grads, value_and_grad(params)[1])


@two_gradient_rule
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])  # 1e200: its square overflows
def test_a_bad_sam_gradient_falls_back_to_g(name, value):
    rule = build(name)
    _, state, _ = refreshed(rule, G, G_S)
    grads, state, info = refreshed(rule, G, spoilt(G_S, value), state=state)
    same(grads, G)
    assert info.fell_back and finite((state, info))
    if name in LOOK_RULES:
        assert float(state.g_v_norm) == 0.0
        grads, state, info = reused(rule, G, state)  # plain g until the next refresh
        same(grads, G)
        assert not info.fell_back
        _, state, _ = refreshed(rule, G, G_S, state=state)
        assert float(state.g_v_norm) > 0


@every_rule
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_gradient_is_passed_on_and_poisons_nothing(name, value):
    rule = build(name)
    bad = spoilt(G, value)
    _, state, _ = refreshed(rule, G, G_S)
    if name in LOOK_RULES:
        before = state.g_v
        grads, state, _ = reused(rule, bad, state)
        same(grads, bad)
        same(state.g_v, before)
    grads, state, _ = refreshed(rule, bad, bad, state=state)
    same(grads, bad)  # "a" untouched: one NaN tensor does not make them all NaN
    assert finite(state)


@two_gradient_rule
def test_a_norm_that_overflows_is_not_a_nan(name):
    rule = build(name)
    huge = jax.tree.map(lambda x: 1e200 * x, G)
    _, state, _ = refreshed(rule, G, G_S)
    if name in LOOK_RULES:
        grads, state, info = reused(rule, huge, state)
        same(grads, huge)
        assert info.fell_back and not np.isnan(info.cosine)
    grads, state, info = refreshed(rule, huge, huge, state=state)
    same(grads, huge)
    assert info.fell_back and finite(state) and not np.isnan(info.cosine)


@two_gradient_rule
def test_overflow_of_the_loss_at_the_perturbed_parameters(name):
    """The loss overflows at w + ε and not at w."""
    params = {"w": jnp.array([709.75, 1.0])}

    def loss(params):
        return jnp.sum(jnp.exp(params["w"])) * 1e-300

    rule = build(name)
    value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, rule.init(params))
    assert info.fell_back and finite((value, grads, state))


@look_rule
def test_float16_that_overflows_when_rounded(name):
    params = {"w": jnp.ones(3, jnp.float16)}
    rule = build(name)
    g = {"w": jnp.array([6e4, 0.0, 0.0], jnp.float16)}
    g_s = {"w": jnp.array([0.0, 1.0, 0.0], jnp.float16)}
    _, state, _ = refreshed(rule, g, g_s, params)
    assert float(state.g_v["w"][1]) == 1.0
    next_g = {"w": jnp.array([3.9e4, 3.9e4, 3.9e4], jnp.float16)}  # + 0.7 ‖g‖ along the second: past 65,504
    grads, state, info = reused(rule, next_g, state, params)
    same(grads, next_g)
    assert info.fell_back
    wide = {"w": jnp.array([6e4, 6e4, 0.0], jnp.float16)}
    _, state, info = refreshed(rule, wide, {"w": jnp.array([6e4, -6e4, 6e4], jnp.float16)}, params, state)
    assert finite(state)


@look_rule
def test_a_g_v_too_large_for_its_store_is_dropped(name):
    rule = build(name, store_dtype=jnp.float16)
    g_s = jax.tree.map(lambda x: 1e6 * x, G_S)
    grads, state, info = refreshed(rule, G, g_s)
    same(grads, g_s)
    assert finite(state) and float(state.g_v_norm) == 0.0 and not info.fell_back

"""What all rules share: ``start``, ``stop``, ``perturb``, and compositions of the four choices, against the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import MomentumOracle, RuleOracle
from problems import LAYER_RULES, ONE_GRADIENT_RULES, RULES, SETTINGS, build, make_problem, reference
from test_conformance import trees_equal
from test_oracle import run_both

import looksam
from looksam import rules

every_rule = pytest.mark.parametrize("name", RULES)
both_forms = pytest.mark.parametrize("static", [True, False], ids=["static", "traced"])
PERIOD = SETTINGS["k"]


def layers_of(name, problem):
    return {"layers": list(problem.leaves)} if name in LAYER_RULES else {}


def mask_of(problem, chosen):
    """The entries of the flat vector whose leaf is among the chosen ones."""
    mask = np.zeros(problem.seen.size, bool)
    for (path, _), leaf in zip(jax.tree_util.tree_leaves_with_path(problem.params), problem.leaves, strict=True):
        mask[leaf] = chosen(jax.tree_util.keystr(path, simple=True, separator="/"))
    return mask


@every_rule
@both_forms
@pytest.mark.parametrize(("start", "stop"), [(4, None), (2, 8)])
def test_a_rule_between_start_and_stop(name, static, start, stop):
    problem = make_problem()
    oracle = reference(name, start=start, stop=stop, **layers_of(name, problem))
    run_both(problem, build(name, start=start, stop=stop), oracle, "sgdm", steps=11, static=static)


@every_rule
@both_forms
def test_outside_its_window_a_rule_takes_one_gradient_and_is_the_base_optimizer(name, static):
    problem, start, stop, calls = make_problem(), 2, 2 + PERIOD + 1, []
    plain, rule = jax.value_and_grad(problem.loss), build(name, start=start, stop=stop)

    def counting(params):
        jax.debug.callback(lambda: calls.append(1))
        return plain(params)

    @functools.partial(jax.jit, static_argnames="refresh")
    def step(params, state, refresh):
        _, grads, state, info = rule.gradient(counting, params, state, refresh=refresh)
        return grads, state, info

    params, state = problem.params, rule.init(problem.params)
    for i in range(stop + 2):
        calls.clear()
        grads, state, info = jax.block_until_ready(step(params, state, rule.refreshes(i) if static else None))
        jax.effects_barrier()
        inside, period = start <= i < stop, rule.schedule.k
        refreshed = inside and (i - start) % period == 0
        assert bool(info.refreshed) == refreshed
        assert len(calls) == (2 if refreshed and name not in ONE_GRADIENT_RULES else 1)
        if not inside:
            trees_equal(grads, jax.jit(plain)(params)[1])
            assert float(info.g_v_norm) == 0 and not info.fell_back
        params = jax.tree.map(lambda w, g: w - 0.05 * g, params, grads)


@every_rule
def test_a_plain_step_is_the_step_outside_the_window(name):
    """To the bit, with the state that follows; and it reads nothing that the rule keeps."""
    problem, start, stop = make_problem(), 2, 4
    rule, value_and_grad = build(name, start=start, stop=stop), jax.value_and_grad(problem.loss)
    state, g = rule.init(problem.params), jax.grad(problem.loss)(problem.params)
    for i in range(stop + 2):
        expected = rule.gradient(value_and_grad, problem.params, state, refresh=rule.refreshes(i))[1:]
        assert rule.is_active(i) == (start <= i < stop)
        if not rule.is_active(i):
            trees_equal(rule.plain(g, problem.params, state), expected)
        state = expected[1]
    kept = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    program = jax.make_jaxpr(rule.plain)(g, problem.params, state).jaxpr
    read = {id(variable) for equation in program.eqns for variable in equation.invars}
    vectors = [variable for variable in program.invars[-len(jax.tree.leaves(state)) :] if variable.aval.ndim]
    assert len(vectors) == len(kept) and not any(id(variable) in read for variable in vectors)


@pytest.mark.parametrize("traced", [False, True])
def test_a_checked_rule_refuses_a_plain_step_on_which_it_acts(traced):
    rule = looksam.look_sam(0.1, k=3, start=1).checked()
    plain = jax.jit(rule.plain) if traced else rule.plain
    params = jnp.ones(3)
    _, state, _ = plain(params, params, rule.init(params))
    error = jax.errors.JaxRuntimeError if traced else ValueError
    with pytest.raises(error, match="plain on step 1.*acts on that step"):
        jax.block_until_ready(plain(params, params, state))


def test_a_plain_step_checks_its_arguments():
    rule, params = looksam.look_sam(0.1, k=3, start=1), jnp.ones(3)
    with pytest.raises(TypeError, match="state is a SAMState"):
        rule.plain(params, params, looksam.sam(0.1).init(params))
    with pytest.raises(TypeError, match="is_active run on the host"):
        jax.jit(rule.is_active)(1)


def test_refreshes_of_a_window_are_counted_from_its_start():
    rule = looksam.look_sam(0.1, k=3, start=4, stop=9)
    assert [step for step in range(20) if rule.refreshes(step)] == [4, 7]


@every_rule
def test_only_chosen_parameters_are_perturbed(name):
    problem, chosen = make_problem(), lambda path: "nested" in path or path == "zero"
    oracle = reference(name, perturbed=mask_of(problem, chosen), **layers_of(name, problem))
    run_both(problem, build(name, perturb=chosen), oracle, "sgdm", steps=PERIOD + 3, static=False)


@every_rule
def test_unperturbed_parameters_stay_as_they_are_to_the_bit(name):
    problem, seen = make_problem(), []
    rule = build(name, perturb=lambda path: path == "matrix")
    gradient_at = lambda weights: seen.append(weights) or jax.grad(problem.loss)(weights)
    state, g = rule.init(problem.params), jax.grad(problem.loss)(problem.params)
    for _ in range(2):  # MSAM moves on its second step
        _, state, _ = rule.transform(g, gradient_at, problem.params, state, refresh=True)
    moved = seen[-1].pop("matrix")
    assert not np.array_equal(moved, problem.params["matrix"])
    trees_equal(seen[-1], {key: leaf for key, leaf in problem.params.items() if key != "matrix"})


# --- compositions -------------------------------------------------------------------------------------------------

COMPOSITIONS = {
    "LookSAM with ASAM's perturbation": (
        lambda: rules.compose(
            rules.elementwise_perturbation(eta=0.1), 0.3, schedule=rules.every(3), between=rules.reused_g_v(0.4)
        ),
        lambda problem: RuleOracle(0.3, k=3, alpha=0.4, eta=0.1),
    ),
    "GSAM on every second step, g_v in between, from step 3 on": (
        lambda: rules.compose(
            rules.global_perturbation(3.0),
            0.2,
            schedule=rules.every(2, start=3),
            refresh=rules.gsam_gradient(0.6),
            between=rules.reused_g_v(0.5),
        ),
        lambda problem: RuleOracle(0.2, k=2, alpha=0.5, gsam_alpha=0.6, p=3.0, start=3),
    ),
    "GSAM on every third step with LayerSAM's perturbation, until step 8": (
        lambda: rules.compose(
            rules.layerwise_perturbation(scaling="adaptive"),
            0.2,
            schedule=rules.every(3, stop=8),
            refresh=rules.gsam_gradient(0.3),
        ),
        lambda problem: RuleOracle(0.2, k=3, gsam_alpha=0.3, scaling="adaptive", layers=list(problem.leaves), stop=8),
    ),
    "MSAM of some parameters, from step 2 to step 7": (
        lambda: rules.compose(
            rules.momentum_perturbation(0.5),
            0.4,
            schedule=rules.every(start=2, stop=7),
            perturb=lambda path: path != "matrix",
        ),
        lambda problem: MomentumOracle(
            0.4, momentum=0.5, start=2, stop=7, perturbed=mask_of(problem, lambda path: path != "matrix")
        ),
    ),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
@both_forms
def test_composition(name, static):
    problem = make_problem(seed=4)
    make_rule, make_oracle = COMPOSITIONS[name]
    run_both(problem, make_rule(), make_oracle(problem), "sgdm", steps=11, static=static)


def test_parts_of_ones_own():
    """A perturbation along the signs, a refresh that returns the mean of both gradients, and twice g_v in between."""
    rule = rules.compose(
        lambda g, params, dtype: jax.tree.map(jnp.sign, g),
        0.1,
        schedule=rules.every(2),
        refresh=rules.RefreshGradient(lambda products, count: (0.5, 0.5)),
        between=rules.BetweenGradient(lambda g_norm, g_v_norm, count: 2.0),
    )
    gradient = jax.grad(lambda w: jnp.sum(jnp.array([1.0, 3.0]) * w**2))
    params = jnp.array([1.0, -1.0])
    for refresh in (True, None):
        state = rule.init(params)
        g, g_s = np.array([2.0, -6.0]), np.array([2.2, -6.6])
        grads, state, _ = rule.transform(gradient(params), gradient, params, state, refresh=refresh)
        np.testing.assert_allclose(grads, (g + g_s) / 2, rtol=1e-12)
        grads, _, info = rule.transform(gradient(params), gradient, params, state, refresh=refresh and False)
        np.testing.assert_allclose(grads, g, rtol=1e-12)  # g_s is parallel to g: there is no g_v
        assert float(info.g_v_norm) == 0


@both_forms
def test_a_reuse_of_ones_own_ends_with_the_window(static):
    rule = rules.compose(
        rules.global_perturbation(),
        0.5,
        schedule=rules.every(2, stop=2),
        between=rules.BetweenGradient(lambda g_norm, g_v_norm, count: 0.5),
    )
    gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.array([1.0, 3.0], jnp.float32) * w**2))
    params = jnp.array([1.0, 1.0], jnp.float32)
    state, seen = rule.init(params), []
    for i in range(4):
        _, grads, state, _ = rule.gradient(gradient, params, state, refresh=rule.refreshes(i) if static else None)
        seen.append(bool(np.array_equal(grads, [2.0, 6.0])))
    assert seen == [False, False, True, True]


# --- the rules of other papers, by hand ---------------------------------------------------------------------------


def test_asam_without_eta_is_the_adaptive_form():
    """ε = ρ w² g/‖w g‖, written out on two tensors."""
    params = {"a": jnp.array([0.5, -2.0]), "b": jnp.array([3.0])}
    g = {"a": np.array([1.0, 4.0]), "b": np.array([-0.5])}
    length = np.sqrt(sum(np.sum((np.asarray(params[key]) * g[key]) ** 2) for key in g))
    expected = {key: params[key] + 0.7 * params[key] ** 2 * g[key] / length for key in g}
    rule = looksam.asam(0.7, eta=0.0)
    perturbed = rule.perturb(jax.tree.map(jnp.asarray, g), params, rule.init(params))
    for key in g:
        np.testing.assert_allclose(perturbed[key], expected[key], rtol=1e-14)


def test_asam_scales_the_chosen_parameters_alone():
    problem, chosen = make_problem(seed=5), lambda path: path != "nested/vector"
    oracle = reference("asam", scaled=mask_of(problem, chosen))
    run_both(problem, build("asam", scale=chosen), oracle, "sgdm", steps=3, static=True)


def test_gsam_by_hand():
    """With g = (3, 4) and g_s = (4, 2): ⟨g, g_s⟩ = 20, ‖g_s‖² = 20, so g_⊥ = g − g_s = (−1, 2)."""
    params, g, g_s = jnp.zeros(2), jnp.array([3.0, 4.0]), jnp.array([4.0, 2.0])
    rule = looksam.gsam(0.1, alpha=0.25)
    grads, _, info = rule.transform(g, lambda w: g_s, params, rule.init(params))
    np.testing.assert_allclose(grads, [4.25, 1.5], rtol=1e-15)
    np.testing.assert_allclose(info.returned_norm, np.hypot(4.25, 1.5), rtol=1e-15)
    np.testing.assert_allclose(info.cosine, (3 * 4.25 + 4 * 1.5) / (5 * np.hypot(4.25, 1.5)), rtol=1e-15)


@both_forms
def test_gsam_without_alpha_is_sam_to_the_bit(static):
    problem, results = make_problem(), []
    for rule in (looksam.gsam(0.1, alpha=0.0), looksam.sam(0.1)):
        step = jax.jit(functools.partial(rule.gradient, jax.value_and_grad(problem.loss), refresh=static or None))
        params, state = problem.params, rule.init(problem.params)
        for _ in range(5):
            _, grads, state, info = step(params, state)
            params = jax.tree.map(lambda w, g: w - 0.05 * g, params, grads)
        results.append((params, grads, info.cosine))
    trees_equal(*results)


@pytest.mark.parametrize("g_s", [[0.0, 0.0], [6.0, 8.0]], ids=["zero", "parallel"])
def test_gsam_returns_g_s_where_there_is_no_orthogonal_part(g_s):
    params, g, g_s = jnp.zeros(2), jnp.array([3.0, 4.0]), jnp.array(g_s)
    rule = looksam.gsam(0.1, alpha=1e3)
    grads, _, info = rule.transform(g, lambda w: g_s, params, rule.init(params))
    np.testing.assert_array_equal(grads, g_s)
    assert not info.fell_back


def test_msam_without_rho_is_the_base_optimizer_to_the_bit():
    problem = make_problem()
    plain, rule = jax.value_and_grad(problem.loss), looksam.msam(0.0)
    step = jax.jit(functools.partial(rule.gradient, plain))
    params, base, state = problem.params, problem.params, rule.init(problem.params)
    for _ in range(5):
        value, grads, state, _ = step(params, state)
        base_value, base_grads = jax.jit(plain)(base)
        params, base = (jax.tree.map(lambda w, g: w - 0.05 * g, w, g) for w, g in ((params, grads), (base, base_grads)))
        trees_equal((params, value), (base, base_value))


def test_the_value_of_msam_is_that_at_the_perturbed_parameters():
    problem, rule = make_problem(), looksam.msam(0.3, momentum=0.0)
    value_and_grad = jax.value_and_grad(problem.loss)
    _, g, state, _ = rule.gradient(value_and_grad, problem.params, rule.init(problem.params))
    value, _, _, _ = rule.gradient(value_and_grad, problem.params, state)
    norm = np.sqrt(sum(np.sum(np.asarray(x) ** 2) for x in jax.tree.leaves(g)))
    expected = problem.loss(jax.tree.map(lambda w, g: w - 0.3 * g / norm, problem.params, g))
    np.testing.assert_allclose(value, expected, rtol=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_does_not_enter_the_momentum_of_msam(bad):
    rule, params = looksam.msam(0.5), jnp.ones(2)
    _, before, _ = rule.transform(params, lambda w: jnp.array([3.0, 4.0]), params, rule.init(params))
    grads, after, info = rule.transform(params, lambda w: jnp.array([bad, 1.0]), params, before)
    np.testing.assert_array_equal(grads, [bad, 1.0])  # passed on, as the base optimizer would get it
    trees_equal(after, before._replace(count=before.count + 1))
    assert not info.fell_back


def test_a_momentum_that_overflows_is_reset():
    rule, params = looksam.msam(0.5, store_dtype=jnp.float16), jnp.ones(2, jnp.float32)
    state = rule.init(params)
    for expected in ([4e4, 4e4], [0.0, 0.0], [4e4, 4e4]):  # 1.9 times 4e4 does not fit
        _, state, _ = rule.transform(params, lambda w: jnp.full(2, 4e4, jnp.float32), params, state)
        np.testing.assert_array_equal(state.v, np.array(expected, np.float16))
        assert np.isfinite(state.v_norm)


@both_forms
def test_a_window_that_begins_again_begins_without_momentum(static):
    rule, params = looksam.msam(0.5, stop=2), jnp.array([3.0, 4.0])
    gradient = jax.value_and_grad(lambda w: jnp.sum(w**2))
    state = rule.init(params)
    for i in range(3):
        refresh = rule.refreshes(i) if static else None
        _, _, state, _ = rule.gradient(gradient, params, state, refresh=refresh)
    state = state._replace(count=jnp.zeros_like(state.count))
    value, g, state, _ = rule.gradient(gradient, params, state, refresh=static or None)
    assert float(value) == 25.0  # not perturbed
    trees_equal(state.v, g)


def test_gsam_whose_combination_overflows_a_narrow_dtype_returns_g():
    params = jnp.zeros(2, jnp.float16)
    g, g_s = (jnp.array(x, jnp.float16) for x in ([6e4, -100.0], [6e4, 6e4]))
    rule = looksam.gsam(0.1, alpha=2.0)
    grads, _, info = rule.transform(g, lambda w: g_s, params, rule.init(params))
    np.testing.assert_array_equal(grads, g)
    assert info.fell_back


def test_momentum_in_half_the_memory():
    problem = make_problem()
    state = looksam.msam(0.1, store_dtype=jnp.bfloat16).init(problem.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.v)} == {jnp.dtype(jnp.bfloat16)}

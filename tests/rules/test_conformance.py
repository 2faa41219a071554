"""What every rule must do, run over all of them."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from problems import (
    EVERY_RULE,
    LAYER_RULES,
    LOOK_RULES,
    ONE_GRADIENT_RULES,
    PERIODIC_RULES,
    RULES,
    SETTINGS,
    build,
    make_problem,
)

import looksam

every_rule = pytest.mark.parametrize("name", RULES)
look_rule = pytest.mark.parametrize("name", LOOK_RULES)
PERIOD = SETTINGS["k"]


@pytest.fixture(scope="module")
def problem():
    return make_problem()


def with_rho(name, rho):
    return build(name, rho=rho)


def trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def trees_close(a, b, tolerance=1e-12):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def make_step(rule, loss, rate=0.05):
    """One step of SGD along the rule's gradient; ``refresh`` is static."""

    @functools.partial(jax.jit, static_argnames="refresh")
    def step(params, state, *args, refresh=None):
        value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, state, *args, refresh=refresh)
        return jax.tree.map(lambda w, g: w - (rate * g).astype(w.dtype), params, grads), state, (value, grads, info)

    return step


def run(rule, problem, steps, static=False):
    step = make_step(rule, problem.loss)
    params, state, outputs = problem.params, rule.init(problem.params), []
    for i in range(steps):
        params, state, out = step(params, state, refresh=rule.refreshes(i) if static else None)
        outputs.append(out)
    return params, state, outputs


@every_rule
def test_zero_rho_is_the_base_optimizer(name, problem):
    params, _, outputs = run(with_rho(name, 0.0), problem, 2 * PERIOD + 1)
    base = problem.params
    for _, grads, info in outputs:
        g = jax.grad(problem.loss)(base)
        trees_close(grads, g, 1e-14)
        assert float(info.g_v_norm) == 0.0
        base = jax.tree.map(lambda w, g: w - 0.05 * g, base, g)
    trees_close(params, base, 1e-13)


@pytest.mark.parametrize(("name", "plain"), [(m.name, m.every_step) for m in EVERY_RULE if m.has_period])
def test_period_one_is_the_very_program_of_sam(name, plain, problem):
    ours, sam = build(name, k=1), build(plain)
    trees_equal(run(ours, problem, 4), run(sam, problem, 4))

    def program(rule):
        step = functools.partial(rule.gradient, jax.value_and_grad(problem.loss))
        return str(jax.make_jaxpr(step)(problem.params, rule.init(problem.params)))

    assert program(ours) == program(sam)


def test_sam_is_optax_opaque_sam(problem):
    normalized = optax.chain(optax.contrib.normalize(), optax.sgd(0.1))
    theirs = optax.contrib.sam(optax.sgd(0.05, momentum=0.9), normalized, opaque_mode=True)
    ours = looksam.as_optimizer(looksam.sam(0.1), optax.sgd(0.05, momentum=0.9))
    grad = jax.grad(problem.loss)
    results = []
    for tx in (ours, theirs):
        params, state = problem.params, tx.init(problem.params)
        update = jax.jit(functools.partial(tx.update, grad_fn=lambda w, _: grad(w)))
        for _ in range(5):
            updates, state = update(grad(params), state, params)
            params = optax.apply_updates(params, updates)
        results.append(params)
    trees_close(*results, 1e-13)


@every_rule
@pytest.mark.parametrize("form", ["traced", "static"])
def test_gradient_evaluations_are_counted_and_nothing_recompiles(name, form, problem):
    calls = []
    plain = jax.value_and_grad(problem.loss)

    def counting(params):
        jax.debug.callback(lambda: calls.append(1))
        return plain(params)

    rule = build(name)

    @functools.partial(jax.jit, static_argnames="refresh")
    def step(params, state, refresh):
        _, grads, state, _ = rule.gradient(counting, params, state, refresh=refresh)
        return jax.tree.map(lambda w, g: w - 0.05 * g, params, grads), state

    params, state, per_step = problem.params, rule.init(problem.params), []
    for i in range(3 * PERIOD):
        refresh = rule.refreshes(i) if form == "static" else None
        params, state = jax.block_until_ready(step(params, state, refresh))
        jax.effects_barrier()
        per_step.append(len(calls))
        calls.clear()
        if i == PERIOD - 1:
            programs = step._cache_size()
    always = name not in PERIODIC_RULES
    most = 1 if name in ONE_GRADIENT_RULES else 2
    assert per_step == [most if always or i % PERIOD == 0 else 1 for i in range(3 * PERIOD)]
    assert step._cache_size() == programs == (2 if form == "static" and not always else 1)


@every_rule
def test_static_and_traced_forms_agree(name, problem):
    traced, static = run(build(name), problem, 15), run(build(name), problem, 15, static=True)
    trees_close(traced, static, 1e-12)


@every_rule
def test_traced_steps_can_be_differentiated_in_reverse(name, problem):
    """A derivative of the parameters after a few steps in the learning rate, by JAX and by the static steps."""

    def slope(rule, static):
        def after(rate):
            params, state = problem.params, rule.init(problem.params)
            for i in range(PERIOD + 1):
                refresh = rule.refreshes(i) if static else None
                _, grads, state, _ = rule.gradient(jax.value_and_grad(problem.loss), params, state, refresh=refresh)
                params = jax.tree.map(lambda w, g: w - rate * g, params, grads)
            return problem.loss(params)

        return jax.grad(after)(0.05)

    rule = build(name)
    np.testing.assert_allclose(slope(rule.differentiable(), False), slope(rule, True), rtol=1e-10)


@pytest.mark.parametrize("name", PERIODIC_RULES)
def test_traced_steps_take_no_more_memory_than_static_ones(name):
    params = [jnp.ones((64, 256)), jnp.ones((256, 64))]
    loss = lambda params, x: jnp.mean((jax.nn.relu(x @ params[0]) @ params[1] - x) ** 2)
    rule, x = build(name), jnp.ones((2, 64))

    def temporaries(refresh):
        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state, x):
            _, grads, state, _ = rule.gradient(jax.value_and_grad(loss), params, state, x, refresh=refresh)
            return jax.tree.map(lambda w, g: w - 0.05 * g, params, grads), state

        program = step.lower(params, rule.init(params), x).compile()
        return program.memory_analysis().temp_size_in_bytes / sum(w.nbytes for w in params)

    static = max(temporaries(True), temporaries(False))
    assert temporaries(None) < static + 0.7  # copies of the parameters; with lax.cond it is two more


@every_rule
def test_a_static_value_overrides_the_counter_which_still_advances(name, problem):
    rule = build(name)
    grad = jax.value_and_grad(problem.loss)
    state = rule.init(problem.params)
    _, plain, state, info = rule.gradient(grad, problem.params, state, refresh=False)  # before any refresh
    trees_equal(plain, grad(problem.params)[1])
    assert not info.refreshed and not info.fell_back and int(state.count) == 1
    _, _, state, info = rule.gradient(grad, problem.params, state, refresh=True)
    assert info.refreshed and int(state.count) == 2


@every_rule
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_are_kept(name, dtype, problem):
    params = jax.tree.map(lambda x: x.astype(dtype), problem.params)

    def loss(params):
        return problem.loss(jax.tree.map(lambda x: x.astype(jnp.float64), params))

    rule = build(name)
    state = rule.init(params)
    step = make_step(rule, loss)
    for _ in range(2):
        new_params, new_state, (_, grads, info) = step(params, state)
        for old, new in ((params, new_params), (params, grads), (state, new_state)):
            assert jax.tree.map(jnp.result_type, old) == jax.tree.map(jnp.result_type, new)
        assert info.grad_norm.dtype == jnp.float32  # norms accumulate in float32
        params, state = new_params, new_state


@every_rule
def test_norms_of_narrow_gradients_do_not_saturate(name):
    """Summed in bfloat16, 4096 ones stop at 256."""
    params = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    rule = build(name)
    _, _, info = rule.transform(params, lambda w: params, params, rule.init(params), refresh=True)
    assert float(info.grad_norm) == 64.0


@look_rule
def test_store_dtype_halves_the_kept_memory(name, problem):
    size = sum(x.nbytes for x in jax.tree.leaves(problem.params))
    rule = build(name)
    assert sum(x.nbytes for x in jax.tree.leaves(rule.init(problem.params).g_v)) == size
    narrow = build(name, store_dtype=jnp.bfloat16)
    state = narrow.init(problem.params)
    assert sum(x.nbytes for x in jax.tree.leaves(state.g_v)) == size / 4  # from float64
    value_and_grad = jax.value_and_grad(problem.loss)
    _, _, state, _ = narrow.gradient(value_and_grad, problem.params, state)
    _, _, wide, _ = rule.gradient(value_and_grad, problem.params, rule.init(problem.params))
    for kept, exact in zip(jax.tree.leaves(state.g_v), jax.tree.leaves(wide.g_v), strict=True):
        assert kept.dtype == jnp.bfloat16
        np.testing.assert_array_equal(kept, exact.astype(jnp.bfloat16))
    kept_norm = np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in jax.tree.leaves(state.g_v)))
    np.testing.assert_allclose(state.g_v_norm, kept_norm, rtol=1e-14)  # of what is kept, not of what was rounded


@pytest.mark.parametrize("name", [name for name in RULES if name not in LOOK_RULES + ONE_GRADIENT_RULES])
def test_rules_that_reuse_nothing_keep_nothing(name, problem):
    assert [x.shape for x in jax.tree.leaves(build(name).init(problem.params))] == [()]


@every_rule
def test_vmap_over_rho_and_weights(name, problem):
    """A sweep: each vmapped run equals the same run alone."""
    radii = jnp.array([0.05, 0.2])
    weights = jax.tree.map(lambda x: jnp.stack([x, 1.5 * x]), problem.params)

    @functools.partial(jax.jit, static_argnames="refresh")
    def step(rho, params, state, refresh):
        value_and_grad = jax.value_and_grad(problem.loss)

        def one(rho, params, state):
            return with_rho(name, rho).gradient(value_and_grad, params, state, refresh=refresh)[1:3]

        return jax.vmap(one)(rho, params, state)

    state = jax.vmap(with_rho(name, 0.1).init)(weights)
    for refresh in (None, False):
        grads, state = step(radii, weights, state, refresh)
    for i in range(2):
        rule, params = with_rho(name, float(radii[i])), jax.tree.map(lambda x: x[i], weights)  # noqa: B023
        alone = rule.init(params)
        for refresh in (True, False):
            _, expected, alone, _ = rule.gradient(jax.value_and_grad(problem.loss), params, alone, refresh=refresh)
        trees_close(jax.tree.map(lambda x: x[i], grads), expected, 1e-12)  # noqa: B023


@every_rule
def test_scan_equals_a_loop(name, problem):
    rule = build(name)

    def body(carry, _):
        params, state = carry
        _, grads, state, info = rule.gradient(jax.value_and_grad(problem.loss), params, state)
        return (jax.tree.map(lambda w, g: w - 0.05 * g, params, grads), state), info.refreshed

    carry = (problem.params, rule.init(problem.params))
    (params, state), refreshed = jax.jit(lambda carry: jax.lax.scan(body, carry, length=7))(carry)
    looped, looped_state, outputs = run(rule, problem, 7)
    trees_close((params, state), (looped, looped_state), 1e-12)
    assert [bool(x) for x in refreshed] == [bool(info.refreshed) for _, _, info in outputs]


@every_rule
def test_sharded_over_eight_devices_equals_one(name):
    mesh = jax.make_mesh((8,), ("shard",), axis_types=(AxisType.Auto,))
    problem = make_problem(seed=3, shapes={"matrix": (16, 3), "wide": (2, 8), "bias": (3,)})
    specs = {"matrix": PartitionSpec("shard"), "wide": PartitionSpec(None, "shard"), "bias": PartitionSpec()}
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    sharded = jax.device_put(problem.params, shardings)
    rule = build(name)
    state = rule.init(sharded)
    for kept in state[1:2]:  # g_v, or MSAM's momentum
        assert kept["matrix"].sharding == shardings["matrix"]
    step = make_step(rule, problem.loss)
    for _ in range(PERIOD + 1):
        sharded, state, _ = step(sharded, state)
    params, alone, _ = run(rule, problem, PERIOD + 1)
    trees_close((sharded, state), (params, alone), 1e-12)


@every_rule
def test_state_survives_serialisation_in_mid_cycle(name, problem):
    rule = build(name)
    step = make_step(rule, problem.loss)
    params, state = problem.params, rule.init(problem.params)
    for _ in range(PERIOD + 2):
        params, state, _ = step(params, state)
    leaves, structure = jax.tree.flatten((params, state))
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        restored = jax.tree.unflatten(structure, [saved[key] for key in saved.files])
    for _ in range(PERIOD):
        params, state, out = step(params, state)
        *restored, restored_out = step(*restored)
        trees_equal((params, state, out), (*restored, restored_out))


@every_rule
def test_schedules_see_the_rules_own_count(name, problem):
    rho = lambda count: 0.2 - 0.02 * jnp.asarray(count, float)
    has_alpha = "alpha" in RULES[name][1]
    options = {"alpha": lambda count: 0.1 * jnp.asarray(count, float)} if has_alpha else {}
    scheduled = build(name, rho=rho, **options)
    _, _, outputs = run(scheduled, problem, 6)
    w, state, value_and_grad = problem.params, scheduled.init(problem.params), jax.value_and_grad(problem.loss)
    for i, (_, grads, _) in enumerate(outputs):
        fixed = {"alpha": 0.1 * i} if has_alpha else {}
        constant = build(name, rho=float(rho(i)), **fixed)
        _, expected, state, _ = constant.gradient(value_and_grad, w, state, refresh=constant.refreshes(i))
        trees_close(grads, expected, 1e-12)
        w = jax.tree.map(lambda x, g: x - 0.05 * g, w, expected)


@every_rule
def test_value_and_aux_are_of_the_clean_pass(name, problem):
    def loss(params, shift):
        value = problem.loss(params, shift)
        return value, {"seen": params["matrix"], "shift": shift}

    rule = build(name)
    value_and_grad = jax.value_and_grad(loss, has_aux=True)
    (value, aux), _, _, _ = rule.gradient(value_and_grad, problem.params, rule.init(problem.params), 0.25)
    np.testing.assert_array_equal(value, problem.loss(problem.params, 0.25))
    trees_equal(aux, {"seen": problem.params["matrix"], "shift": 0.25})


@every_rule
def test_params_without_leaves_or_entries(name):
    rule = build(name)
    for params in ({}, {"empty": jnp.zeros((0, 2))}):
        grads, _, info = rule.transform(params, lambda w: w, params, rule.init(params), refresh=True)
        trees_equal(grads, params)
        assert np.all(np.isfinite([float(x) for x in info]))


@pytest.mark.parametrize("name", LAYER_RULES)
def test_layer_rules_ignore_the_scale_of_the_loss(name):
    """Where squares of the gradient leave float32's range, the normalized ε stays the same."""
    params = {"a": jnp.array([1.0, 2.0], jnp.float32), "b": jnp.array([[0.5]], jnp.float32)}
    rule, seen = build(name), []
    for size in (1.0, 1e-17, 1e17):
        g = jax.tree.map(lambda x: jnp.full_like(x, size), params)  # noqa: B023
        rule.transform(g, lambda w, g=g: seen.append(w) or g, params, rule.init(params), refresh=True)
    for perturbed in seen[1:]:
        trees_close(perturbed, seen[0], 1e-6)
    moved = {key: float(jnp.linalg.norm(seen[0][key] - params[key])) for key in params}
    whole = np.sqrt(1 + 4 + 0.25)
    np.testing.assert_allclose(moved["a"], 0.1 * np.sqrt(5) / whole, rtol=1e-5)
    np.testing.assert_allclose(moved["b"], 0.1 * 0.5 / whole, rtol=1e-5)

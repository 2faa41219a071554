"""The trainer against the same steps by hand, and what stops a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import looksam
from looksam.experiments.engine.records import program
from looksam.experiments.engine.runner import Runner, curve_epochs
from looksam.experiments.engine.runs import Run
from looksam.trainer import RunError, evaluate_run, run
from looksam.trainer.batches import load
from looksam.trainer.data import epoch_batches
from looksam.trainer.loop import restored
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.metrics import read_metrics
from looksam.trainer.run_folder.run_directory import read_recipe
from looksam.trainer.training import Training, compile_step

SHORT = Recipe(
    mesh="data=1", batch_size=200, epochs=2, learning_rate=0.05, method="look_sam", rho=0.1, k=3, log_every=2
)


pytestmark = pytest.mark.usefixtures("as_users_run_it")


def test_steps_equal_the_same_by_hand():
    training = Training(SHORT)
    state = training.init()
    params, rule = state.params, looksam.look_sam(0.1, 0.7, k=3)
    tx = optax.sgd(optax.cosine_decay_schedule(0.05, 6), momentum=0.9)
    rule_state, opt_state = rule.init(params), tx.init(params)
    images, labels = training.dataset.train.images / np.float32(240), training.dataset.train.labels

    def loss(params, x, y):
        logits, _ = training.programs.model.apply(params, {}, x, train=True)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    params = jax.tree.map(jnp.copy, params)  # the trainer donates its own
    for i in range(5):
        batch = epoch_batches(600, 200, 0, i // 3)[i % 3]
        state, metrics = training.step(state, i)
        value, grads, rule_state, info = rule.gradient(
            jax.value_and_grad(loss), params, rule_state, images[batch], labels[batch]
        )
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
        np.testing.assert_allclose(metrics["cosine"], info.cosine, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state.params, params)
    assert int(state.step) == int(state.rule_state.count) == 5


@pytest.mark.parametrize("method", ["sam", "look_sam", "msam"])
def test_a_late_rule_is_the_base_optimizer_before_its_start(method):
    """Bit for bit, and not after it: of the 6 steps, the rule acts on the last two."""
    recipe = SHORT.replace(method=method, start=0.667)
    late, base = Training(recipe), Training(recipe.replace(method="base"))
    state, other = late.init(), base.init()
    assert [late.programs.refreshes(i) for i in range(6)] == [None] * 4 + [True, method != "look_sam"]
    for i in range(6):
        state, metrics = late.step(state, i)
        other, plain = base.step(other, i)
        same = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.params, other.params)), strict=True)]
        moved = i >= (5 if method == "msam" else 4)  # the first step of MSAM has no momentum yet
        assert not any(same) if moved else all(same)
        assert bool(metrics["refreshed"]) == bool(late.programs.refreshes(i))
        assert moved or float(metrics["loss"]) == float(plain["loss"])
    assert late.programs.step._cache_size() == (3 if method == "look_sam" else 2)


def test_a_rule_that_stops_reuses_nothing_afterwards():
    """LookSAM until step 3: then its gradient is the plain one, whatever it has kept."""
    training = Training(SHORT.replace(stop=0.5))
    state, refreshed = training.init(), []
    for i in range(5):
        state, metrics = training.step(state, i)
        refreshed.append(bool(metrics["refreshed"]))
        assert (float(metrics["cosine"]) > 0.9999) == (i >= 3)
    assert refreshed == [True, False, False, False, False]


def test_momentum_sam_equals_the_same_by_hand():
    """The gradient is taken at w − ρ v/‖v‖, with v the momentum of the gradients, by the recipe's momentum."""
    recipe = SHORT.replace(method="msam", momentum=0.8, rho=0.3)
    training = Training(recipe)
    state = training.init()
    params = jax.tree.map(jnp.copy, state.params)
    v, tx = jax.tree.map(jnp.zeros_like, params), optax.sgd(optax.cosine_decay_schedule(0.05, 6), momentum=0.8)
    opt_state = tx.init(params)
    images, labels = training.dataset.train.images / np.float32(240), training.dataset.train.labels

    def loss(params, x, y):
        logits, _ = training.programs.model.apply(params, {}, x, train=True)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    for i in range(4):
        batch = epoch_batches(600, 200, 0, i // 3)[i % 3]
        state, metrics = training.step(state, i)
        norm = optax.tree.norm(v)
        moved = jax.tree.map(lambda w, v, norm=norm: w - 0.3 * v / norm if norm > 0 else w, params, v)
        value, g = jax.value_and_grad(loss)(moved, images[batch], labels[batch])
        v = jax.tree.map(lambda v, g: 0.8 * v + g, v, g)
        updates, opt_state = tx.update(g, opt_state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state.params, params)
    assert training.programs.step._cache_size() == 1


@pytest.mark.parametrize("settings", [{"method": "msam"}, {"method": "look_sam", "start": 0.3, "stop": 0.9}])
def test_a_run_resumes_in_the_same_bits(settings, tmp_path):
    recipe = SHORT.replace(**settings, epochs=4, log_every=1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(recipe, whole, quiet=True)
    for steps in (2, 5, None):  # the start and stop are those of the whole run, wherever this one stops
        run(recipe.replace(steps=steps), cut, quiet=True, report=lambda line: None)
    ends = []
    for folder in (whole, cut):
        with restored(folder) as (_, step, state):
            assert step == 12
            ends.append(state)
    jax.tree.map(np.testing.assert_array_equal, *ends)
    lines = [read_metrics(folder / "metrics.jsonl") for folder in (whole, cut)]
    losses = [[line["loss"] for line in part if line["split"] == "train"] for part in lines]
    assert losses[0] == losses[1] and len(losses[0]) == 12


def test_an_expression_that_matches_no_parameter():
    message = "perturb='Dense' matches none of the parameters, head/bias, head/kernel, hidden/0/bias, .*, …; pass an"
    for build in (
        Training,
        lambda recipe: Runner(recipe, load(recipe)),
        lambda recipe: compile_step(recipe, None, True),
    ):
        with pytest.raises(ValueError, match=message):
            build(SHORT.replace(perturb="Dense"))


def test_only_parameters_that_match_are_perturbed():
    """With all biases left alone, the gradient of SAM is that at kernels + ε."""
    recipe = SHORT.replace(method="sam", perturb="kernel$", epochs=1)
    training = Training(recipe)
    state = training.init()
    params, batch = jax.tree.map(jnp.copy, state.params), epoch_batches(600, 200, 0, 0)[0]
    images, labels = training.dataset.train.images[batch] / np.float32(240), training.dataset.train.labels[batch]

    def loss(params):
        logits, _ = training.programs.model.apply(params, {}, images, train=True)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    g = jax.tree_util.tree_map_with_path(
        lambda path, x: x * (path[-1].key == "kernel"), jax.grad(loss)(params)
    )  # 0 where nothing is perturbed
    g_s = jax.grad(loss)(jax.tree.map(lambda w, x: w + 0.1 * x / optax.tree.norm(g), params, g))
    expected = jax.tree.map(lambda w, x: w - 0.05 * x, params, g_s)
    state, _ = training.step(state, 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state.params, expected)


def test_a_step_that_is_not_logged_skips_what_only_the_metrics_need():
    training, ends = Training(SHORT), []
    for log in (True, False):
        state = training.init()
        for i in range(2):  # a refresh and a reuse step
            state, metrics = training.step(state, i, log=log)
        assert np.isfinite(metrics["loss"])
        assert np.isfinite(metrics["cosine"]) == np.isfinite(metrics["grad_norm"]) == log
        ends.append(state)
    jax.tree.map(np.testing.assert_array_equal, *ends)
    assert training.programs.step._cache_size() == 2


def test_statistics_are_of_the_clean_pass_and_dropout_of_one_key():
    small = {"model": "wide_resnet", "depth": 10, "widen": 1, "batch_size": 50, "dropout": 0.3}
    recipe = SHORT.replace(**small, rho=5.0)  # far away: statistics there would differ
    training, flat = Training(recipe), Training(recipe.replace(rho=0.0))
    far, metrics = training.step(training.init(), 0)
    near, still = flat.step(flat.init(), 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), far.stats, near.stats)
    assert metrics["g_v_norm"] > 0.1
    assert float(still["g_v_norm"]) == 0.0  # ρ = 0 and the same mask: g_s is g


def test_evaluation_counts_every_image_once():
    training = Training(SHORT)
    state = training.init()
    test = training.dataset.test
    logits = np.asarray(training.programs.model.apply(state.params, {}, test.images / np.float32(240), train=False)[0])
    scores = training.evaluate(state)  # 1,197 images in batches of 500
    assert scores["accuracy"] == pytest.approx(100 * np.mean(np.argmax(logits, -1) == test.labels), abs=1e-4)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, test.labels).mean()
    assert scores["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_run_writes_its_recipe_metrics_and_checkpoint(tmp_path):
    result = run(SHORT, tmp_path / "run", quiet=True)
    assert (result["status"], result["step"]) == ("finished", 6)
    assert read_recipe(tmp_path / "run") == SHORT
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in lines if line["split"] == "train"] == [2, 4, 6]
    assert [line["step"] for line in lines if line["split"] == "test"] == [3, 6]
    again = evaluate_run(tmp_path / "run")
    assert again["test_accuracy"] == result["test_accuracy"]
    assert run(SHORT, tmp_path / "run", quiet=True)["test_accuracy"] == result["test_accuracy"]  # nothing left to do


def test_another_recipe_in_the_same_folder(tmp_path):
    run(SHORT.replace(steps=1), tmp_path, quiet=True)
    with pytest.raises(RunError, match="rho: 0.1 there, 0.2 here"):
        run(SHORT.replace(steps=1, rho=0.2), tmp_path, quiet=True)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(RunError, match=r"no recipe\.json"):
        evaluate_run(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to .*pass another --run-dir"):
        run(SHORT, tmp_path / "file" / "run", quiet=True)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    recipe = SHORT.replace(learning_rate=1e30, method="base", log_every=1, epochs=20)
    with pytest.raises(RunError, match=r"loss is (nan|inf) at step \d+; .*Lower --learning-rate"):
        run(recipe, tmp_path, quiet=True)


def test_a_batch_larger_than_the_data():
    with pytest.raises(ValueError, match="batch_size=601 is larger than the 600 training images"):
        load(Recipe(batch_size=601))


def test_data_is_limited_held_out_and_noisy_as_the_recipe_says():
    whole, held = load(Recipe()), load(Recipe(validation=0.25))
    assert (len(held.train), len(held.validation), len(held.test)) == (450, 150, len(whole.test))
    assert len(load(Recipe(train_limit=130)).train) == 130
    few = load(Recipe(classes=3, train_limit=60, batch_size=10))
    assert few.num_classes == 3 and np.bincount(few.train.labels).tolist() == [20, 20, 20]
    np.testing.assert_array_equal(few.test.labels, whole.test.labels[whole.test.labels < 3])
    with pytest.raises(ValueError, match="classes=11 is more than the 10 of digits"):
        load(Recipe(classes=11))
    noisy = load(Recipe(label_noise=0.5))
    changed = np.mean(noisy.train.labels != whole.train.labels)
    assert 0.4 < changed <= 0.5
    np.testing.assert_array_equal(noisy.test.labels, whole.test.labels)


@pytest.mark.parametrize(
    "settings", [{}, {"method": "gsam"}, {"method": "msam", "rho": 0.5}, {"method": "asam", "rho": 1.0, "start": 0.5}]
)
def test_a_vmapped_run_is_the_run_of_its_seed(settings, tmp_path):
    recipe = SHORT.replace(label_noise=0.2, **settings)
    recipes = [recipe.replace(seed=1), recipe.replace(seed=2, rho=0.3, alpha=0.2, learning_rate=0.02)]
    curve = Runner(recipe, load(recipe)).start(recipes).run(points=2).accuracy
    assert curve.shape == (2, 2)
    for i, own in enumerate(recipes):
        alone = run(own, tmp_path / str(i), quiet=True)
        assert curve[-1, i] == pytest.approx(alone["test_accuracy"], abs=0.1)  # at most one image of 1,197


@pytest.mark.parametrize("change", [{"k": 2}, {"start": 0.5}, {"stop": 4}, {"eta": 0.1}, {"perturb": "kernel"}])
def test_vmapped_runs_differ_in_few_settings(change):
    settings = "seed, learning_rate, weight_decay, rho, alpha"
    with pytest.raises(ValueError, match=f"vmapped runs may only differ in {settings}, not as"):
        Runner(SHORT, load(SHORT)).start([SHORT.replace(**change)])
    runs = [Run("train", recipe) for recipe in (SHORT, SHORT.replace(**change))]
    assert program(runs[0]) != program(runs[1])


def test_curve_epochs():
    assert curve_epochs(100, 4) == [25, 50, 75, 100]
    assert curve_epochs(2, 10) == [1, 2]

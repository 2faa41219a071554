"""What is trained and measured in a run, against the trainer and against NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looksam.experiments.engine import records as engine_records
from looksam.experiments.engine.records import held_out_and_test, program, records
from looksam.experiments.engine.runs import Run, plain
from looksam.trainer.batches import load
from looksam.trainer.data import epoch_batches
from looksam.trainer.data.transforms.augment import normalize
from looksam.trainer.models import Model, build_model
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import init_state, make_train_step, moments
from looksam.trainer.training import Training

HELD_OUT, TEST = 150, 1197
SHORT = Recipe(
    mesh="data=1",
    validation=0.25,
    train_limit=200,
    label_noise=0.2,
    batch_size=50,
    epochs=3,
    learning_rate=0.05,
    method="sam",
    rho=0.1,
)
RECIPES = [SHORT.replace(seed=3), SHORT.replace(seed=4, learning_rate=0.02, weight_decay=0.01, rho=0.3)]


def done(runs):
    return [pair for part in records(runs) for pair in part]


@pytest.fixture(scope="module")
def trained():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        both = {kind: done([Run(kind, recipe) for recipe in RECIPES]) for kind in ("train", "tune")}
    for kind, pairs in both.items():
        assert [run for run, _ in pairs] == [Run(kind, recipe) for recipe in RECIPES]
    return {kind: [record for _, record in pairs] for kind, pairs in both.items()}


def test_accuracies_are_of_the_images_that_they_say(trained):
    for record in trained["train"]:
        assert len(record["validation_accuracy"]) == len(record["train_loss"]) == 3
        hits = np.array([*record["validation_accuracy"]]) * HELD_OUT / 100
        np.testing.assert_allclose(hits, np.round(hits), atol=HELD_OUT * 1e-5)
        hits = record["test_accuracy"] * TEST / 100
        assert hits == pytest.approx(round(hits), abs=TEST * 1e-5)  # five digits are kept


def test_tuning_trains_the_same_and_has_no_number_of_the_test_set(trained):
    for tuned, reported in zip(trained["tune"], trained["train"], strict=True):
        assert tuned.keys() == {"validation_accuracy", "train_loss", "seconds"}
        assert tuned["validation_accuracy"] == reported["validation_accuracy"]
        assert tuned["train_loss"] == reported["train_loss"]


def test_the_best_epoch_is_selected_on_held_out_images(trained, monkeypatch):
    for record in trained["train"]:
        assert 0 <= record["test_accuracy_at_best"] <= 100 and 0 <= record["train_accuracy"] <= 100
        if record["validation_accuracy"][-1] > max(record["validation_accuracy"][:-1]):
            assert record["test_accuracy_at_best"] == record["test_accuracy"]
    held_out = iter(np.array([[50.0, 50.0], [70.0, 40.0], [70.0, 60.0]]))  # by epoch, of two runs
    test = iter(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    runner = object.__new__(engine_records.Runner)
    runner.recipe = SHORT
    monkeypatch.setattr(engine_records.Runner, "run_epoch", lambda self, epoch: np.zeros(2))
    monkeypatch.setattr(
        engine_records.Runner, "accuracy", lambda self, images=None: next(held_out if images is None else test)
    )
    np.testing.assert_array_equal(runner.run(10, other="test").at_best, [3.0, 6.0])


def test_held_out_images_are_in_no_other_set():
    recipe = SHORT.replace(label_noise=0.0)
    (validation, test), whole = held_out_and_test(recipe), load(Recipe())
    assert (len(validation.train), len(validation.test), len(test)) == (200, HELD_OUT, TEST)
    np.testing.assert_array_equal(test.images, whole.test.images)
    rows = {image.tobytes(): row for row, image in enumerate(whole.train.images)}
    assert len(rows) == 600  # no two alike
    train, held = ({rows[image.tobytes()] for image in part.images} for part in (validation.train, validation.test))
    assert len(train) == 200 and len(held) == HELD_OUT and train.isdisjoint(held)


@pytest.mark.usefixtures("as_users_run_it")
def test_a_run_is_that_of_the_trainer(trained):
    validation, test = held_out_and_test(SHORT)
    training = Training(RECIPES[0], validation)  # compiles what a run would: the vmapped runs share nothing with it
    state, losses = training.init(), []
    for i in range(training.total_steps):
        state, metrics = training.step(state, i)
        losses.append(metrics["loss"])
    record = trained["train"][0]
    np.testing.assert_allclose(record["train_loss"], np.reshape(losses, (3, 4)).mean(axis=1), rtol=1e-4)
    assert training.evaluate(state)["accuracy"] == pytest.approx(record["validation_accuracy"][-1], abs=1e-3)
    training.dataset = dataclasses.replace(validation, test=test)
    assert training.evaluate(state)["accuracy"] == pytest.approx(record["test_accuracy"], abs=1e-3)
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(state.params)]
    assert record["weight_norm"] == pytest.approx(np.linalg.norm(np.concatenate(leaves)), rel=1e-4)
    inputs = normalize(validation.train.images, *moments(validation))
    logits = np.asarray(training.programs.model.apply(state.params, state.stats, inputs, train=False)[0], np.float64)
    right = logits[np.arange(200), validation.train.labels]
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - right)
    assert record["train_loss_at_end"] == pytest.approx(loss, rel=1e-4)
    assert record["sharpness_train"] > 0 and record["parameters"] == pytest.approx(42_634, rel=1e-4)


def test_runs_with_other_hyperparameters_share_a_program():
    run = Run("train", RECIPES[0])
    assert program(run) == program(Run("train", RECIPES[1]))
    others = [Run("tune", RECIPES[0]), Run("train", SHORT.replace(k=3)), Run("train", SHORT.replace(label_noise=0.0))]
    assert all(program(run) != program(other) for other in others)


def test_numbers_are_stored_in_few_digits():
    assert plain(np.float32(1 / 3)) == 0.33333 and plain(np.array([[1.0, math.nan], [math.inf, 123456.7]])) == [
        [1.0, None],
        [None, 123460.0],
    ]


# --- drift ------------------------------------------------------------------------------------------------------

DRIFT = Recipe(
    mesh="data=1", validation=0.25, train_limit=400, batch_size=50, epochs=2, learning_rate=0.1, method="sam", rho=0.5
)


def regression(recipe, dataset):
    """Logistic regression in float64: what it gives is easily done again by hand."""
    model = build_model("mlp", image_shape=(8, 8, 1), num_classes=10, dtype=jnp.float64, widths=())

    def init(key):
        params, stats = model.init(key)
        noise = iter(jax.random.split(key, 2))
        return jax.tree.map(lambda x: jax.random.normal(next(noise), x.shape, jnp.float64), params), stats

    return Model(init, model.apply)


@pytest.mark.usefixtures("in_float64")
def test_a_step_of_drift_is_the_trainers():
    recipe = DRIFT.replace(optimizer="adamw", weight_decay=0.1, decay_all=False, clip_norm=0.5, warmup_steps=2, p=3.0)
    dataset, _ = held_out_and_test(recipe)
    model, train = regression(recipe, dataset), dataset.train
    images, labels = jnp.asarray(train.images), jnp.asarray(train.labels)
    rule, tx = make_rule(recipe, 16), make_optimizer(recipe, 16)
    state = init_state(jax.random.key(0), model, rule, tx)
    trainers = jax.jit(make_train_step(recipe, dataset, model, rule, tx), static_argnums=3)
    ours = engine_records._make_drift_step(recipe, dataset, model, 16, images, labels)
    params, opt_state = state.params, None
    for batch in epoch_batches(400, 50, 0, 0)[:3]:
        state, _ = trainers(state, images[batch], labels[batch], True)
        hyperparams = recipe.rho, recipe.learning_rate, recipe.weight_decay
        params, opt_state, _ = ours(params, opt_state, {}, batch, *hyperparams)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), params, state.params)


@pytest.mark.usefixtures("in_float64")
def test_drift_is_that_of_numpy(monkeypatch):
    monkeypatch.setattr(engine_records, "make_model", regression)
    runs = [Run("drift", DRIFT.replace(seed=seed)) for seed in (0, 1)]
    pairs = done(runs)
    assert [run for run, _ in pairs] == runs
    for run, record in pairs:
        expected = _drift_by_hand(run.recipe)
        assert record.keys() == expected.keys() | {"seconds"}
        for name, numbers in expected.items():
            for number, parts in numbers.items():
                np.testing.assert_allclose(record[name][number], parts, rtol=6e-5, atol=1e-6)  # five digits are kept


def _drift_by_hand(recipe):
    """SAM by SGD-M on logistic regression, and how its vectors differ from those of five steps before."""
    dataset, _ = held_out_and_test(recipe)
    x = np.asarray(normalize(dataset.train.images, *moments(dataset)), np.float64).reshape(400, 64)
    y = np.eye(10)[dataset.train.labels]
    params, _ = regression(recipe, dataset).init(jax.random.key(recipe.seed))
    w = np.concatenate([np.asarray(params["head"]["kernel"]).ravel(), np.asarray(params["head"]["bias"])])

    def gradient(w, rows):
        logits = x[rows] @ w[:640].reshape(64, 10) + w[640:]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        wrong = (shares / shares.sum(axis=1, keepdims=True) - y[rows]) / len(rows)
        return np.concatenate([(x[rows].T @ wrong).ravel(), wrong.sum(axis=0)])

    seen, momentum = [], 0.0
    for i in range(16):
        rows = epoch_batches(400, 50, recipe.seed, i // 8)[i % 8]
        g = gradient(w, rows)
        g_s = gradient(w + recipe.rho * g / np.linalg.norm(g), rows)
        g_h = (g @ g_s) / (g @ g) * g
        seen.append({"g": g, "g_s": g_s, "g_h": g_h, "g_v": g_s - g_h})
        momentum = 0.9 * momentum + g_s
        w = w - 0.1 * 0.5 * (1 + np.cos(np.pi * i / 16)) * momentum
    found = {}
    for name in ("g", "g_s", "g_h", "g_v"):
        rows = [_change(seen[i][name], seen[i - 5][name]) for i in range(5, 16)]
        parts = [np.mean(part, axis=0) for part in (rows[:3], rows[3:])]  # steps 5 to 7 and 8 to 15: the two epochs
        found[name] = dict(zip(("norm", "absolute", "relative", "cosine"), np.transpose(parts), strict=True))
    return found


def _change(new, old):
    norm, apart = np.linalg.norm(new), np.linalg.norm(new - old)
    return norm, apart, apart / norm, new @ old / norm / np.linalg.norm(old)

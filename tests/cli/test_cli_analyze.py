"""``looksam analyze``: its numbers against the same by hand, its files, and what it refuses."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import looksam.trainer
from looksam.analysis import pac_bayes_bound
from looksam.cli import main
from looksam.cli.work_progress import WorkProgress
from looksam.experiments.report import analysis_report
from looksam.experiments.report.document import Heatmap
from looksam.trainer import analyze_run, evaluate_run, run
from looksam.trainer.kept_parts import KeptParts, digest_of
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import RunError, write_recipe
from looksam.trainer.trained import run_analysis
from looksam.trainer.training import Training

RECIPE = Recipe(mesh="data=1", batch_size=200, epochs=2, method="look_sam", rho=0.2, k=3, learning_rate=0.05)
TRAIN, TEST = 600, 1197

pytestmark = pytest.mark.usefixtures("as_users_run_it")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits-seed0"
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        run(RECIPE, folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def result(run_dir):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        return analyze_run(run_dir, images="all")


@pytest.fixture
def cli(capsys):
    def run(*argv):
        code = main(list(map(str, argv)))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def stored(monkeypatch, result):
    """The measured numbers, not measured anew; what was asked for is kept."""
    asked = []

    def measured(directory, **options):
        asked.append((directory, options))
        options["report"]("on the way")
        return result

    monkeypatch.setitem(vars(looksam.trainer), "analyze_run", measured)
    return asked


def by_hand(run_dir):
    """(params, loss): the loss of all images, as a function of the weights, without the trainer's."""
    training = Training(RECIPE)
    checkpoints = Checkpoints(run_dir / "checkpoints", keep=2, read_only=True)
    _, state, _ = checkpoints.restore(training.programs.abstract_state)
    checkpoints.close()

    def loss(params, part="train"):
        data = getattr(training.dataset, part)
        x = jnp.asarray(data.images / np.float32(240)).reshape(len(data), -1)
        for layer in ("0", "1", "2"):
            x = jax.nn.relu(x @ params["hidden"][layer]["kernel"] + params["hidden"][layer]["bias"])
        logits = x @ params["head"]["kernel"] + params["head"]["bias"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(data)), data.labels])

    return state.params, jax.jit(loss, static_argnames="part")


def test_numbers(run_dir, result):
    params, loss = by_hand(run_dir)
    value, g = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(g)))
    up = jax.tree.map(lambda w, x: w + 0.2 * x / norm, params, g)
    near = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(result["train"]["loss"], value, **near)
    np.testing.assert_allclose(result["test"]["loss"], loss(params, "test"), **near)
    np.testing.assert_allclose(result["train"]["one_step"], loss(up) - value, **near)
    assert result["train"]["ascent"] >= result["train"]["one_step"] - 1e-6
    line, plane = result["landscape"]["line"], result["landscape"]["plane"]
    np.testing.assert_allclose([line["train"][20], plane["train"][7][7]], [value, value], **near)
    named, ahead = result["landscape"]["named"], [round(x / 0.2, 6) for x in result["landscape"]["named"]["distance"]]
    np.testing.assert_allclose(named["g"][ahead.index(1.0)], loss(up), **near)
    weights = np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])
    assert result["parameters"] == weights.size == 42634
    np.testing.assert_allclose(result["weight_norm"], np.linalg.norm(weights), rtol=1e-5)


def test_the_top_eigenvalue_is_the_curvature_of_its_own_vector(run_dir, result):
    params, loss = by_hand(run_dir)
    product = jax.jit(lambda v: jax.jvp(jax.grad(loss), (params,), (v,))[1])
    v = jax.tree.map(lambda x: x + 0.1, jax.grad(loss)(params))
    for _ in range(150):  # power iteration
        v = product(v)
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(v)))
        v = jax.tree.map(lambda x, norm=norm: x / norm, v)
    np.testing.assert_allclose(result["hessian"]["eigenvalues"][0], norm, rtol=1e-3)
    assert result["hessian"]["residuals"][0] <= 1e-3 * result["hessian"]["eigenvalues"][0]
    assert 20 <= result["hessian"]["steps"] <= 46


def test_the_rest_of_the_result(run_dir, result):
    scores = evaluate_run(run_dir)
    for name in ("step", "test_accuracy", "test_loss", "run_dir"):
        assert result[name] == scores[name]
    assert (result["images"], result["images_of"], result["test_images"]) == (TRAIN, TRAIN, TEST)
    assert (result["m"], result["rho"]) == (50, 0.2)
    worst = result["train"]["loss"] + result["train"]["ascent"]
    bound = pac_bayes_bound(600, 42634, result["weight_norm"], 0.2, worst_loss=worst)
    assert result["bound"] == {"n": 600, **bound._asdict()}


def test_the_sample_has_the_classes_in_proportion_and_in_random_order(run_dir):
    training = Training(RECIPE)
    images, labels = run_analysis._sample(training.dataset.train, 100, training)
    assert np.bincount(labels).tolist() == [10] * 10 or max(np.bincount(labels)) - min(np.bincount(labels)) <= 2
    assert (np.diff(labels) != 0).sum() > 50 and len(images) == 100
    with pytest.raises(ValueError, match="images=601 is more than the 600 training images"):
        run_analysis._count(601, TRAIN)
    assert (run_analysis._count(None, TRAIN), run_analysis._count("all", TRAIN)) == (200, None)


def test_an_interrupted_analysis_resumes(cli, run_dir, result, tmp_path, monkeypatch):
    words = ("analyze", run_dir, "--images", "all", "--json", "--out", tmp_path)
    update, left = WorkProgress.update, [0]

    def interrupting(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        update(self, *arguments)

    monkeypatch.setattr(WorkProgress, "update", interrupting)
    kept = f"looksam: interrupted; finished parts are kept in {tmp_path}/parts, and the same command resumes"
    for left[0], message in ((1, "looksam: interrupted before the first part was finished"), (60, kept)):
        code, out, err = cli(*words)
        assert (code, out, err.splitlines()[-1]) == (130, "", message)
    code, out, err = cli(*words)
    assert code == 0 and f"parts are kept in {tmp_path}/parts and not measured again" in err
    assert json.loads(out) == result


def test_kept_parts_are_of_the_same_weights_and_images(tmp_path):
    weights, settings = {"w": np.arange(3.0)}, {"model": "mlp"}
    first = digest_of(settings, weights)
    assert first == digest_of(settings, {"w": np.arange(3.0)})
    others = [(settings, {"w": np.arange(3.0) + 1e-12}), (settings, {"v": np.arange(3.0)}), ({"model": "vit"}, weights)]
    assert first not in {digest_of(*other) for other in others}
    kept = KeptParts(tmp_path, first)
    kept.put_state("trace", (2, [np.arange(2), np.float32(1)]))
    done, arrays = KeptParts(tmp_path, first).get_state("trace")
    assert (done, arrays[0].tolist(), arrays[1].dtype) == (2, [0, 1], np.float32)
    assert KeptParts(tmp_path, first).get_state("line") is None
    assert KeptParts(tmp_path, "other").get_state("trace") is None
    kept.put("trace", {"trace": 0.1, "odd": float("nan")})
    again = KeptParts(tmp_path, first)
    assert again.get("trace")["trace"] == 0.1 and again.get_state("trace") is None and again.get("line") is None
    (tmp_path / f"{first}.json").write_text("{")
    with pytest.raises(RunError, match=r"json is damaged: .*; delete it, and its parts are measured again"):
        KeptParts(tmp_path, first)


def test_files_and_json(cli, run_dir, result, stored):
    code, out, err = cli("analyze", run_dir, "--json", "--quiet")
    assert (code, err, json.loads(out), out.count("\n")) == (0, "", result, 1)
    assert json.loads((run_dir / "analysis/analysis.json").read_text()) == result
    stems = ["landscape_line", "landscape_named", "landscape_plane"]
    names = sorted(f"{stem}.{ending}" for stem in stems for ending in ("png", "svg"))
    assert sorted(path.name for path in (run_dir / "analysis").iterdir()) == ["analysis.json", *names]


def test_tables_and_options(cli, run_dir, result, stored, tmp_path):
    words = f"analyze {run_dir} --images 7 --rho 0.3 --eigenvalues 2 --out {tmp_path}/out"
    code, out, err = cli(*words.split())
    assert (code, err) == (0, "on the way\n")
    [(folder, options)] = stored
    assert (folder, options["images"], options["rho"], options["eigenvalues"]) == (run_dir, 7, 0.3, 2)
    assert (tmp_path / "out/analysis.json").exists()
    assert out.splitlines()[-1] == f"{tmp_path}/out"
    for value in (result["train"]["one_step"], result["test"]["ascent"], result["hessian"]["eigenvalues"][2]):
        assert f"{value:.4g}" in out
    assert re.search(rf"^slack +{result['bound']['slack']:.4g}$", out, re.MULTILINE)


def test_figures_leave_gaps_where_the_loss_overflowed(result):
    landscape = json.loads(json.dumps(result["landscape"]))
    landscape["plane"]["train"][0][0] = landscape["line"]["train"][3] = None
    line, _, plane = analysis_report.figures(result | {"landscape": landscape})
    assert np.isnan(line.series[0].y[3])
    assert isinstance(plane, Heatmap) and np.isnan(plane.values[0][0]) and not plane.log
    assert run_analysis._finite({"a": [1.0, float("nan")], "b": float("inf"), "c": 2}) == {
        "a": [1.0, None],
        "b": None,
        "c": 2,
    }


def test_help(cli):
    code, out, _ = cli("analyze", "--help")
    assert code == 0 and out.isascii()
    examples = re.findall(r"^  looksam analyze (.*)$", out, re.MULTILINE)
    for word in re.findall(r"--[a-z-]+", " ".join(examples)):
        assert re.search(rf"^  {word}\b", out, re.MULTILINE), word


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rho 0", "--rho 0.0 is out of range; pass a finite --rho > 0"),
        ("--rho -1", "--rho -1.0 is out of range"),
        ("--rho inf", "--rho inf is out of range"),
        ("--rho nan", "--rho nan is out of range"),
        ("--rho much", "argument --rho: invalid float value: 'much'"),
        ("--images 0", "--images 0 is out of range; pass --images >= 1"),
        ("--images some", "'some' is not a number of images; pass a number or all"),
        ("--images 601", "--images 601 is more than the 600 training images; pass at most 600"),
        ("--eigenvalues 0", "--eigenvalues 0 is out of range"),
        ("--imags 5", "no flag --imags; did you mean --images?"),
    ],
)
def test_bad_usage(cli, run_dir, flags, message):
    code, out, err = cli("analyze", run_dir, *flags.split())
    assert (code, out) == (2, "")
    assert message in err


def test_no_such_folder(cli, run_dir):
    code, _, err = cli("analyze", run_dir.with_name("digits-sed0"))
    assert (code, "did you mean digits-seed0?" in err) == (2, True)


def test_a_folder_without_a_run(cli, tmp_path):
    code, _, err = cli("analyze", tmp_path)
    assert (code, "holds no run: there is no recipe.json" in err) == (1, True)


def test_a_run_without_a_checkpoint(cli, tmp_path):
    write_recipe(tmp_path, RECIPE)
    code, _, err = cli("analyze", tmp_path)
    assert (code, "has no checkpoint yet; train longer" in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


def test_a_recipe_without_a_radius(cli, tmp_path):
    write_recipe(tmp_path, RECIPE.replace(rho=0.0))
    code, _, err = cli("analyze", tmp_path)
    assert (code, "the recipe's rho is 0.0, which leaves nothing to perturb; pass rho" in err) == (2, True)

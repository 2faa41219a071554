"""The rivals, on runs whose accuracies are known: the order of training, tuning, tables and sentences."""

import math

import pytest
from synthetic_runs import SEEDS, filled, lines_of

from looksam.experiments import MEDIUM_EXPERIMENTS, medium_scale
from looksam.experiments.engine.pool import missing
from looksam.experiments.engine.runs import Store
from looksam.experiments.report.text import section_markdown
from looksam.experiments.reproduction import SCALES, sourced_section, summary

RIVALS, LARGE_BATCH = MEDIUM_EXPERIMENTS["rivals"], MEDIUM_EXPERIMENTS["large-batch"]
GAINS = {"sam": 8.0, "sam_k": 2.0, "look_sam": 7.0, "look_layer_sam": 6.0, "msam": 1.0, "asam": 8.5, "gsam": 8.0}
RATES = {"sgdm": 0.4, "adamw": 0.001, "lamb": 0.03}
DECAYS = {"sgdm": 1e-3, "adamw": 0.05, "lamb": 0.1}
JITTER = {0: -0.2, 1: 0.1, 2: 0.1}


class RivalWorld:
    """Rules gain what GAINS says, a quarter of it where they start late; all are best at ρ = 0.8 and α = 0.1."""

    def level(self, recipe):
        late = 0.25 if recipe.start else 1.0
        return 60 - 50 * recipe.label_noise + late * GAINS.get(recipe.method, 0.0) + (recipe.epochs in (48, 60))

    def record(self, run):
        recipe = run.recipe
        peaks = {"learning_rate": RATES[recipe.optimizer], "weight_decay": DECAYS[recipe.optimizer]}
        peaks |= {"rho": 0.8} if recipe.method != "base" else {}
        peaks |= {"alpha": 0.1} if recipe.method in ("look_sam", "look_layer_sam", "gsam") else {}
        end = self.level(recipe) - sum(abs(math.log2(getattr(recipe, name) / best)) for name, best in peaks.items())
        end += JITTER.get(recipe.seed, 0.0)
        record = {"validation_accuracy": [end - 9 + i for i in range(10)], "train_loss": [1.0] * 10, "seconds": 1.0}
        if run.kind == "train":
            record |= {"test_accuracy": end, "test_accuracy_at_best": end + 1, "train_accuracy": 99.0}
        return record


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        rounds = filled(store, [RIVALS, LARGE_BATCH], RivalWorld(), monkeypatch)
    for timing in medium_scale.TIMINGS.values():
        rows = medium_scale.timed_recipes(timing)
        store.write(f"timing-{timing}", {"ratios": {row: [1.0, 1.0 + 0.1 * i, 2.0] for i, row in enumerate(rows)}})
    return store, rounds


def test_what_shows_most_is_trained_first(tmp_path):
    ready, later = missing(Store(tmp_path), [RIVALS.stages], seeds=2)
    assert {(run.kind, run.recipe.method) for run in ready} == {("tune", "base")}
    assert [(run.recipe.model, run.recipe.label_noise) for run in ready[::3]] == [
        (medium_scale.MODELS[place.model].recipe.model, medium_scale.LABEL_NOISE[place.labels])
        for place in medium_scale.studies()
    ]
    first = later[: 2 * 12]  # of the first study
    assert [run.recipe.seed for run in first] == [0] * 12 + [1] * 12
    assert {(run.recipe.model, run.recipe.label_noise) for run in first} == {("resnet8", 0.4)}


def test_every_row_is_tuned_inside_with_about_equal_effort(stored):
    store, _ = stored
    for study in medium_scale.studies().values():
        for row in study.starts:
            (selected, _), *others = study.tried(store, row)
            assert len(others) + 1 <= 14
            for name, value in selected.items():
                tried = [settings[name] for settings, _ in others]
                assert min(tried) < value < max(tried)
    runs = summary(RIVALS, store, SEEDS)["runs"]
    assert sum(key.startswith("train") for key in runs) == 4 * 12


def test_the_table_has_accuracies_and_costs(stored):
    section = RIVALS.section(stored[0], SEEDS)
    table = next(table for table in section.tables if table.title == "ResNet-8, SGD-M, 40 % random labels")
    lines = lines_of(table)
    assert list(lines) == [
        *("SGD-M", "SGD-M, 1.2 × the epochs", "SGD-M, 2 × the epochs", "SAM", "SAM-5", "LookSAM-5"),
        *("Look-LayerSAM-5", "MSAM", "SAM, last 20 %", "LookSAM-5, last 20 %", "ASAM", "GSAM"),
    ]
    assert lines["SAM"]["test %, last epoch"].value == pytest.approx(48.0, abs=0.5)
    assert lines["SAM"]["test %, best epoch"].value == pytest.approx(lines["SAM"]["test %, last epoch"].value + 1)
    gradients = {name: line["gradients"].value for name, line in lines.items()}
    assert gradients["SGD-M, 2 × the epochs"] == gradients["SAM"] == 2.0 and gradients["LookSAM-5"] == 1.2
    assert gradients["SAM, last 20 %"] == pytest.approx(1.2) and gradients["MSAM"] == 1.0
    assert lines["SGD-M, 1.2 × the epochs"]["time"].value == 1.2
    assert lines["LookSAM-5"]["time"].value == pytest.approx(1.3)


def test_the_answers_say_what_is_kept_and_what_is_cheapest(stored):
    answers = [text for text in RIVALS.section(stored[0], SEEDS).answers if text.startswith("ResNet-8, SGD-M, 40")]
    assert any("LookSAM-5 keeps 8" in text and "SAM-5 keeps 2" in text for text in answers)
    assert any(
        "ASAM has the highest mean" in text and "times the training time of the base" in text for text in answers
    )
    assert any("against the base trained 1.2 times as long, LookSAM-5 +7" in text for text in answers)


def test_large_batches(stored):
    section = LARGE_BATCH.section(stored[0], SEEDS)
    lines = lines_of(section.tables[0])
    assert list(lines) == ["LAMB", "LAMB + SAM", "LAMB + LookSAM-5", "LAMB + Look-LayerSAM-5"]
    assert lines["LAMB + Look-LayerSAM-5"]["paper: 32,768"].value == 77.1
    assert lines["LAMB"]["paper: 4,096"].value == 74.6
    assert lines["LAMB + SAM"]["batch 1,024"].value == pytest.approx(48.0, abs=0.5)
    assert all("against LAMB alone, LAMB + SAM +" in text for text in section.answers)


def test_batches_differ_in_steps_alone():
    one, other = (s.recipe for s in medium_scale.lamb_studies().values() if not s.recipe.label_noise)
    assert other.replace(batch_size=one.batch_size, warmup_steps=one.warmup_steps) == one
    assert other.batch_size == 16 * one.batch_size and other.train_limit % other.batch_size == 0
    assert other.warmup_steps * other.batch_size == one.warmup_steps * one.batch_size


def test_a_report_of_what_is_finished_so_far(stored, tmp_path):
    empty = Store(tmp_path)
    section = RIVALS.section(empty, SEEDS)
    assert section.answers[0] == "ResNet-8, SGD-M, 40 % random labels: 0 of 36 runs are finished."
    section_markdown(section)


def test_the_scale_of_a_report(stored):
    assert SCALES["medium"].experiments is MEDIUM_EXPERIMENTS
    assert sourced_section(RIVALS, stored[0], SEEDS, "medium").source["scale"] == "medium"

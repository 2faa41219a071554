"""The rivals, on runs whose accuracies are known: the order of training, tuning, tables and sentences."""

import json
import math

import pytest
from scipy import stats
from synthetic_runs import SEEDS, filled, lines_of

from looksam.experiments import MEDIUM_EXPERIMENTS, medium_scale, table_confirm
from looksam.experiments.engine.pool import missing
from looksam.experiments.engine.runs import Store
from looksam.experiments.overview import overview
from looksam.experiments.report.page import page
from looksam.experiments.report.text import section_markdown
from looksam.experiments.reproduction import SCALES, sourced_section, stored_sections, summary
from looksam.trainer.recipe import Recipe

RIVALS, CONFIRM, LARGE_BATCH = (MEDIUM_EXPERIMENTS[name] for name in ("rivals", "confirm", "large-batch"))
GAINS = {"sam": 8.0, "sam_k": 2.0, "look_sam": 7.2, "look_layer_sam": 6.0, "msam": 1.0, "asam": 8.5, "gsam": 8.0}
RATES = {"sgdm": 0.4, "adamw": 0.001, "lamb": 0.03}
ALPHAS = {"sgdm": 0.1, "adamw": 0.15, "lamb": 0.15}
DECAYS = {"sgdm": 1e-3, "adamw": 0.05, "lamb": 0.1}
JITTER = {0: -0.2, 1: 0.1, 2: 0.1} | {seed: -0.2 if seed % 2 else 0.2 for seed in range(SEEDS, 3 * SEEDS)}


class RivalWorld:
    """Rules gain what GAINS says, a quarter of it where they start late; all are best at ρ = 0.8."""

    def level(self, recipe):
        late = 0.25 if recipe.start else 1.0
        return 60 - 50 * recipe.label_noise + late * GAINS.get(recipe.method, 0.0) + (recipe.epochs in (48, 60))

    def record(self, run):
        recipe = run.recipe
        peaks = {"learning_rate": RATES[recipe.optimizer], "weight_decay": DECAYS[recipe.optimizer]}
        peaks |= {"rho": 0.8} if recipe.method != "base" else {}
        peaks |= {"alpha": ALPHAS[recipe.optimizer]} if recipe.method in ("look_sam", "look_layer_sam", "gsam") else {}
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
        rounds = filled(store, [RIVALS, CONFIRM, LARGE_BATCH], RivalWorld(), monkeypatch)
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
        for row in study.rows():
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
    against = {name: (line["against the base"], line["LookSAM-5 against it"]) for name, line in lines.items()}
    assert against["SGD-M"] == (None, "+7.20 *") and against["LookSAM-5"] == ("+7.20 *", None)
    assert against["SAM"] == ("+8.00 *", "-0.80 *") and against["SGD-M, 1.2 × the epochs"] == ("+0.00", "+7.20 *")


def test_the_answers_say_what_is_kept_and_what_is_cheapest(stored):
    answers = [text for text in RIVALS.section(stored[0], SEEDS).answers if text.startswith("ResNet-8, SGD-M, 40")]
    assert any("LookSAM-5 keeps 90 %" in text and "SAM-5 keeps 2" in text for text in answers)
    assert any(
        "ASAM has the highest mean" in text and "times the training time of the base" in text for text in answers
    )
    assert "significant: the base trained 2 times as long against the base +1.00, SAM against the base" in answers[0]
    assert answers[1] == (
        "ResNet-8, SGD-M, 40 % random labels: with as many gradients, SAM against the base trained 2 times as long "
        "+7.00 and LookSAM-5 against the base trained 1.2 times as long +7.20."
    )


def test_the_headline(stored):
    noisy, clean, cheapest, lost = RIVALS.section(stored[0], SEEDS).headline
    kept = "+8.00 on the {}, of which LookSAM-5 keeps 90 % and SAM-5 25 %"
    assert noisy == (
        "With 40 % random labels SAM gains, over the tuned base, "
        f"{kept.format('ResNet-8, SGD-M')}; {kept.format('Small ViT, AdamW')}."
    )
    assert clean == "With clean labels SAM gains +8.00 on the ResNet-8, SGD-M and +8.00 on the Small ViT, AdamW."
    assert "standard error of the best: ASAM (ResNet-8, SGD-M, 40 % random labels)" in cheapest
    start = "On the 3 seeds of the comparison of all methods, LookSAM-5 is behind"
    assert lost.startswith(f"{start} SAM +0.80 (ResNet-8, SGD-M, 40 % random labels), ASAM +0.98")


def test_the_confirmation_has_seeds_of_its_own(stored):
    store, _ = stored
    *_, runs = CONFIRM.stages(store, SEEDS)
    late, throughout = {("look_sam", 0.8)}, {(method, 0) for method in ("base", "sam", "sam_k", "look_sam")}
    assert {(run.recipe.method, run.recipe.start) for run in runs} == late | throughout
    assert {run.recipe.seed for run in runs} == {*range(SEEDS, 3 * SEEDS)} and len(runs) == 2 * 7 * 2 * SEEDS
    rivals = {run for stage in RIVALS.stages(store, SEEDS) for run in stage}
    assert rivals.isdisjoint(runs)
    others = {run.recipe for run in runs if run.key not in {run.key for run in rivals}}
    at_sam_5 = {recipe.replace(method="sam_k", alpha=Recipe().alpha) for recipe in others}
    assert {(recipe.method, recipe.alpha) for recipe in others} == {("look_sam", 0.1), ("look_sam", 0.3)}
    assert at_sam_5 == {run.recipe for run in runs if run.recipe.method == "sam_k"}


def test_the_confirmation_compares_two_rows_on_two_models(stored):
    section = CONFIRM.section(stored[0], SEEDS)
    line = lines_of(section.tables[0])["ResNet-8, SGD-M"]
    gain = line["LookSAM-5, last 20 %, test %"].value - line["base, test %"].value
    assert gain == pytest.approx(7.2 / 4, abs=0.5)  # the search stops near the best settings
    alternating = [-0.2, 0.2] * SEEDS
    found = stats.ttest_ind([gain + value for value in alternating], alternating, equal_var=False)
    assert (line["difference"], line["p"]) == (f"{gain:+.2f}", f"{found.pvalue:.2g}") and line["time"] is not None
    low, high = found.confidence_interval()
    assert line["95 % interval"] == f"{low:+.2f} to {high:+.2f}"
    assert section.answers[1].startswith(
        f"Small ViT, AdamW, 40 % random labels: LookSAM-5, last 20 % is {gain:.2f} points above the base (significant;"
    )


def test_the_claim_of_the_paper_on_further_seeds(stored):
    section = CONFIRM.section(stored[0], SEEDS)
    columns = section.tables[1].columns
    lines = {row[1]: dict(zip(columns, row, strict=True)) for row in section.tables[1].rows if row[0].startswith("Res")}
    assert list(lines) == ["SAM", "SAM-5", "LookSAM-5"]
    for name, method in (("SAM", "sam"), ("SAM-5", "sam_k"), ("LookSAM-5", "look_sam")):
        assert float(lines[name]["difference"]) == pytest.approx(GAINS[method], abs=0.5)
    share = float(lines["LookSAM-5"]["difference"]) / float(lines["SAM"]["difference"])
    assert lines["LookSAM-5"]["share of SAM's gain"] == f"{100 * share:.0f} %" and lines["SAM"]["time"] is not None
    assert lines["SAM"]["share of SAM's gain"] is None
    text = "ResNet-8, SGD-M, 40 % random labels: LookSAM-5 is 5.20 points above SAM-5 (significant; 95 % interval"
    assert sum(answer.startswith(text) for answer in section.answers) == 1
    assert [(claim.verdict, claim.text) for claim in section.claims] == [
        ("holds", "LookSAM-5 keeps SAM's gain in accuracy"),
        ("holds", "LookSAM-5 is more accurate than SAM-5, at the same cost"),
    ]
    late = lines_of(section.tables[0])["ResNet-8, SGD-M"]["difference"]
    gains = f"SAM +8.00, SAM-5 +2.00, LookSAM-5 +7.20, LookSAM-5, last 20 % {late} on the "
    ahead = ", and LookSAM-5 +5.20 against SAM-5"
    assert section.headline == [
        "On 6 further seeds with 40 % random labels, against the base: "
        f"{gains}ResNet-8, SGD-M{ahead}; {gains}Small ViT, AdamW{ahead}."
    ]


def test_each_family_of_comparisons_is_corrected_alone(stored, monkeypatch):
    families = []
    significant = table_confirm.significant
    monkeypatch.setattr(table_confirm, "significant", lambda found: families.append(set(found)) or significant(found))
    CONFIRM.section(stored[0], SEEDS)
    pairs = {("sam", "base"), ("sam_5", "base"), ("look_sam_5", "base"), ("look_sam_5", "sam_5")}
    assert families == [
        {(model, "look_sam_5@0.8", "base") for model in medium_scale.MODELS},
        {(model, *pair) for model in medium_scale.MODELS for pair in pairs},
        {(model, f"LookSAM-5, α = {alpha}", "sam_5") for model in medium_scale.MODELS for alpha in (0.1, 0.3)},
    ]


def test_what_the_reuse_adds_at_the_settings_of_sam_5(stored):
    section = CONFIRM.section(stored[0], SEEDS)
    _, paper, reuse = section.tables
    (sam_5,) = [row for row in paper.rows if row[:2] == ("ResNet-8, SGD-M", "SAM-5")]
    for row in reuse.rows:
        assert float(row[3]) == pytest.approx(row[2].value - sam_5[2].value, abs=0.01)
    assert [row[1] for row in reuse.rows] == 2 * ["LookSAM-5, α = 0.1", "LookSAM-5, α = 0.3"]
    assert any("LookSAM-5, α = 0.1, at the settings of SAM-5, is" in answer for answer in section.answers)


def test_an_unfinished_confirmation_has_no_numbers(tmp_path):
    section = CONFIRM.section(Store(tmp_path), SEEDS)
    assert section.answers == ["0 of 84 runs are finished."] and not section.tables and not section.headline


def test_without_times_there_is_no_headline(stored, tmp_path):
    store = Store(tmp_path)
    for path in stored[0].folder.glob("t*-*.json"):
        if not path.name.startswith("timing"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert RIVALS.section(store, SEEDS).headline == ()


@pytest.mark.parametrize(
    ("name", "method", "paper"), [("cifar100", "SGD-M", ("ResNet-50", 81.4)), ("vit", "AdamW", ("ViT-S-32", 68.1))]
)
def test_the_rows_of_the_paper_are_runs_of_the_rivals(stored, name, method, paper):
    experiment = MEDIUM_EXPERIMENTS[name]
    rivals = {run for stage in RIVALS.stages(stored[0], SEEDS) for run in stage}
    assert {run for stage in experiment.stages(stored[0], SEEDS) for run in stage} < rivals
    section = experiment.section(stored[0], SEEDS)
    lines = lines_of(section.tables[0])
    assert list(lines) == [method, "SAM", "SAM-5", "LookSAM-5"]
    assert lines[method][f"paper: {paper[0]}"].value == paper[1]
    assert lines["SAM"]["40 % random labels, test %"].value == pytest.approx(48.0, abs=0.5)
    assert [(claim.verdict, claim.evidence) for claim in section.claims] == [
        ("holds", "40 % random labels: 90 % of +8.00; clean labels: 90 % of +8.00"),
        ("holds", "40 % random labels: +5.20; clean labels: +5.20"),
        ("holds", f"{section.tables[0].title}: 1.30×"),
    ]


def test_the_summary_has_the_headline_a_picture_and_links(stored, tmp_path):
    folder = tmp_path / "medium" / "runs"
    folder.parent.mkdir()
    folder.symlink_to(stored[0].folder)
    sections = stored_sections(tmp_path, SEEDS)
    assert [section.name for section in sections] == [f"medium-{name}" for name in MEDIUM_EXPERIMENTS]
    section = overview(sections)
    assert len(section.answers) == 5 and [figure.name for figure in section.figures] == ["rivals-resnet-noise"]
    (table,) = section.tables
    assert [row[1] for row in table.rows] == ["holds"] * 8 + ["does not hold"]
    text = section_markdown(section)
    assert "| [medium-cifar100](#accuracy-on-cifar-100-at-medium-scale) |" in text
    assert '<a href="#medium-vit">medium-vit</a>' in page([section, *sections], "t")


def test_a_finished_setting_is_reported_before_the_others(stored, tmp_path):
    folder = tmp_path / "medium" / "runs"
    folder.mkdir(parents=True)
    for path in stored[0].folder.glob("*.json"):
        recipe = json.loads(path.read_text()).get("recipe")
        if recipe is None or (recipe["model"], recipe.get("label_noise")) == ("resnet8", 0.4):
            (folder / path.name).write_bytes(path.read_bytes())
    (section,) = stored_sections(tmp_path, SEEDS)
    assert section.name == "medium-rivals" and len(section.headline) == 3  # nothing on clean labels
    assert section.answers[-1] == "Small ViT, AdamW, clean labels: 0 of 36 runs are finished."
    columns = lines_of(section.tables[0])["SAM"]
    assert columns["ResNet-8, SGD-M, 40 % random labels"].value == pytest.approx(48.0, abs=0.5)
    assert columns["ResNet-8, SGD-M, clean labels"] is None and columns["time, Small ViT, AdamW"] is not None


def test_large_batches(stored):
    section = LARGE_BATCH.section(stored[0], SEEDS)
    lines = lines_of(section.tables[0])
    assert list(lines) == ["LAMB", "LAMB + SAM", "LAMB + LookSAM-5", "LAMB + Look-LayerSAM-5"]
    assert lines["LAMB + Look-LayerSAM-5"]["paper: 32,768"].value == 77.1
    assert lines["LAMB"]["paper: 4,096"].value == 74.6
    assert lines["LAMB + SAM"]["batch 1,024"].value == pytest.approx(48.0, abs=0.5)
    assert all("against LAMB alone, LAMB + SAM +" in text for text in section.answers)


def test_batches_differ_in_steps_alone():
    one, other = (s.recipe for s in medium_scale.lamb_studies().values())
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

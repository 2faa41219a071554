"""Figure "Accuracy of SAM-5, SAM and vanilla ViT": accuracy over epochs."""

from looksam.experiments import claims, table_vit
from looksam.experiments.engine.reported import accuracies
from looksam.experiments.engine.runner import curve_epochs
from looksam.experiments.engine.runs import Store
from looksam.experiments.engine.statistics import RULE, difference, gain_text, significant
from looksam.experiments.experiment import Experiment, Findings, mean_entry
from looksam.experiments.report.document import Entry, Table
from looksam.experiments.sam_comparison import CURVES, Recipes, curve_figure, held_out_curves, tuned_rows
from looksam.experiments.small_scale import vit_studies
from looksam.methods import label

PLACES = (2, 5, -1)  # the points of a curve at which SAM and SAM-5 are compared


def findings(store: Store, seeds: int) -> Findings:
    recipes = {labels: tuned_rows(study, store) for labels, study in vit_studies().items()}
    return Findings(
        [_answer(labels, rows, store, seeds) for labels, rows in recipes.items()],
        [_table(labels, rows, store, seeds) for labels, rows in recipes.items()],
        [
            curve_figure(f"sam5-gap-{i}", f"Small ViT, AdamW, {labels}", rows, store, seeds)
            for i, (labels, rows) in enumerate(recipes.items())
        ],
        ["Learning curves are on the held-out images; the runs are those of `vit`.", RULE],
        [
            claims.gains(
                "Taking the second gradient every fifth step alone loses a part of SAM's accuracy",
                {
                    labels: {row: accuracies(store, rows[row], seeds) for row in ("sam", "sam_5")}
                    for labels, rows in recipes.items()
                },
                "sam",
                "sam_5",
            )
        ],
    )


def _table(labels: str, recipes: Recipes, store: Store, seeds: int) -> Table:
    epochs = curve_epochs(recipes["base"].epochs)
    header = ("method", *(f"epoch {epoch}" for epoch in epochs), "paper: ViT-B-16 at the end")
    lines: list[tuple[Entry, ...]] = []
    for row in CURVES:
        values = held_out_curves(recipes[row], store, seeds)
        means = [mean_entry(values[:, i].tolist(), 1) for i in range(len(epochs))]
        lines.append((label(row, recipes[row].optimizer), *means, table_vit.paper_accuracy(row, "vit_b16")))
    return Table(f"Accuracy in % on held-out images, {labels}", header, lines)


def _answer(labels: str, recipes: Recipes, store: Store, seeds: int) -> str:
    """SAM minus SAM-5, early, late and at the end."""
    sam, sam_5 = (held_out_curves(recipes[row], store, seeds) for row in ("sam", "sam_5"))
    epochs = curve_epochs(recipes["sam"].epochs)
    gaps = {epochs[i]: difference(sam[:, i].tolist(), sam_5[:, i].tolist()) for i in PLACES}
    clear = significant(gaps)
    parts = [f"{gain_text(gap.mean, clear[at])} at epoch {at}" for at, gap in gaps.items()]
    return f"{labels}: SAM minus SAM-5, in points on held-out images: {', '.join(parts)}."


SAM5_GAP = Experiment(
    name="sam5-gap",
    title="The gap between SAM-5 and SAM",
    question="Taking the second gradient every fifth step alone, how much of SAM is lost, and when in training?",
    stages=table_vit.stages,
    findings=findings,
    full=("vit_b16-base", "vit_b16-sam", "vit_b16-sam_k-5", "vit_b16-look_sam-5"),
)

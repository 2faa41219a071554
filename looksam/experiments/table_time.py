"""Table "Training Time": LAMB, LayerSAM and Look-LayerSAM."""

from collections.abc import Iterator

from looksam.experiments import claims
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.experiment import Experiment, Findings, paper_number, printed, ratio, times_entry
from looksam.experiments.report.document import Entry, Table, Value
from looksam.experiments.small_scale import TIMED, timed_recipes
from looksam.methods import label
from looksam.trainer.recipes.paper_tables import paper_row
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.training import total_steps

BATCHES = (4096, 8192, 16384, 32768)  # the paper's
ROWS = ("base", "layer_sam", "look_layer_sam")


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    """No runs: times are measured apart from training."""
    del store, seeds
    return iter(())


def findings(store: Store, seeds: int) -> Findings:
    del seeds
    measurement = store.measurement("timing-lamb")
    if measurement is None:
        raise ValueError("times are not measured yet; run `looksam reproduce time`.")
    times, flops = measurement["ratios"], measurement["flops"]
    ours = ("relative step time", "interquartile range", "relative FLOPs", "gradients per step")
    header = ("method", *ours, *(f"paper: hours, {b:,}" for b in BATCHES), "paper: relative time")
    lines: list[tuple[Entry, ...]] = []
    for row, recipe in timed_recipes("lamb").items():
        if row not in ROWS:
            continue
        low, median, high = times[row]
        gradients = gradients_per_step(recipe, total_steps(recipe))
        measured = times_entry(median), f"{low:.2f}–{high:.2f}", times_entry(flops[row], digits=3)
        theirs = [*(printed(_hours(row, batch)) for batch in BATCHES), times_entry(_paper_ratio(row))]
        lines.append((label(row, "lamb", k=recipe.k), *measured, Value(gradients, digits=1), *theirs))
    look, layer = times["look_layer_sam"][1], times["layer_sam"][1]
    vit = TIMED["lamb"]
    return Findings(
        [
            f"A step of Look-LayerSAM-5 takes {look:.2f} times as long as one of LAMB, with "
            f"{flops['look_layer_sam']:.2f} times the FLOPs; LayerSAM {layer:.2f} times, with "
            f"{flops['layer_sam']:.2f}. The paper's hours give {_paper_ratio('look_layer_sam'):.2f} and "
            f"{_paper_ratio('layer_sam'):.2f} at batch {BATCHES[0]:,}.",
        ],
        [Table("Step times in one interleaved run, and FLOPs of the compiled programs", header, lines)],
        (),
        [
            "All relative to LAMB. "
            f"A ViT of width {vit.width}, depth {vit.depth} and patch {vit.patch} on 32² images at batch "
            f"{vit.batch_size}: large enough that a step is work and not overhead. Medians over interleaved rounds of "
            "whole cycles. `looksam plan` makes estimates for the full recipes.",
        ],
        [claims.costs_a_fifth_more(times, "look_layer_sam", "Look-LayerSAM-5", "small ViT, LAMB")],
    )


def _hours(row: str, batch: int) -> float | None:
    return paper_number("time_hours", str(batch), method=paper_row(row, "lamb"))


def _paper_ratio(row: str) -> float | None:
    """The paper's hours at the smallest batch, relative to LAMB's."""
    return ratio(_hours(row, BATCHES[0]), _hours("base", BATCHES[0]))


TIME = Experiment(
    name="time",
    title="Training time",
    question="What do LayerSAM and Look-LayerSAM cost, relative to LAMB alone?",
    stages=stages,
    findings=findings,
    timings=("lamb",),
    full=tuple(f"vit_b16-lamb-{batch}-{method}" for batch in BATCHES for method in ROWS),
)

"""Table "Training Time": LAMB, LayerSAM and Look-LayerSAM."""

from collections.abc import Iterator

from looksam.experiments import timing
from looksam.experiments.entries import printed, ratio
from looksam.experiments.naming import display
from looksam.experiments.report.document import Entry, Section, Table, Value
from looksam.experiments.store import Store
from looksam.experiments.task import Task
from looksam.trainer.recipes import paper_tables as paper

NAME = "time"
TITLE = "Training time"
QUESTION = "What do LayerSAM and Look-LayerSAM cost, relative to LAMB alone?"
BATCHES = (4096, 8192, 16384, 32768)
FULL = tuple(f"vit_b16-lamb-{b}-{m}" for b in BATCHES for m in ("base", "layer_sam", "look_layer_sam"))
ROWS = {"base": "lamb", "layer_sam": "lamb+layer_sam", "look_layer_sam": "lamb+look_layer_sam"}


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    del store, seeds  # timing is measured apart from the training runs
    return iter(())


def section(store: Store, seeds: int) -> Section:
    del seeds
    found = store.measurement("timing-lamb")
    if found is None:
        raise ValueError("times are not measured yet; run `looksam reproduce time`.")
    times, flops = found["ratios"], found["flops"]
    measured = ("time of LAMB", "middle half", "FLOPs of LAMB", "gradients of LAMB")
    header = ("method", *measured, *(f"paper: hours, {b:,}" for b in BATCHES), "paper: of LAMB")
    lines: list[tuple[Entry, ...]] = []
    for row in ROWS:
        low, middle, high = times[row]
        gradients = {"base": 1.0, "layer_sam": 2.0, "look_layer_sam": 1.2}[row]
        hours = [paper.number("time_hours", str(batch), method=ROWS[row]) for batch in BATCHES]
        theirs = [printed(h) for h in hours]
        name = {"base": "LAMB", "look_layer_sam": "Look-LayerSAM-5"}.get(row) or display(row)
        ours = Value(middle, digits=2, unit="×"), f"{low:.2f}–{high:.2f}", Value(flops[row], digits=3, unit="×")
        lines.append((name, *ours, Value(gradients, digits=1), *theirs, _ratio(row)))
    look, layer = times["look_layer_sam"][1], times["layer_sam"][1]
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [
            f"A step of Look-LayerSAM-5 takes {look:.2f} times as long as one of LAMB, with "
            f"{flops['look_layer_sam']:.2f} times the FLOPs; LayerSAM {layer:.2f} times, with "
            f"{flops['layer_sam']:.2f}. The paper's hours give 1.17 and 1.75 at batch 4,096.",
        ],
        [Table("Time a step, in one interleaved run, and FLOPs of the compiled programs", header, lines)],
        (),
        [
            "A ViT of width 128, depth 4 and patch 4 on 32² images at batch 16: large enough that a step is work and "
            f"not overhead. Medians over {timing.ROUNDS} rounds of whole cycles. `looksam plan` reckons with the full "
            "recipes.",
        ],
    )


def _ratio(row: str) -> Entry:
    hours, base = (paper.number("time_hours", "4096", method=ROWS[name]) for name in (row, "base"))
    return ratio(hours, base)

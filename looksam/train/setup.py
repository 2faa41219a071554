"""A recipe made real: its data and the programs that work on it."""

from looksam.data import Dataset
from looksam.train.evaluation import make_eval_batches
from looksam.train.feed import Feed, make_feed
from looksam.train.layout import make_layout
from looksam.train.parts import Parts
from looksam.train.programs import Programs
from looksam.train.recipe import Recipe
from looksam.train.source import load
from looksam.train.state import TrainState
from looksam.train.step import Metrics


class Training:
    """What a run needs: ``step`` takes one training step, ``evaluate`` reads the whole test set."""

    def __init__(self, recipe: Recipe, dataset: Dataset | None = None) -> None:
        self.recipe = recipe
        self.layout = make_layout(recipe.mesh_sizes())
        Parts.of(recipe, self.layout.devices)  # before the data is read
        self.dataset = load(recipe) if dataset is None else dataset
        self.feed: Feed = make_feed(self.dataset, recipe, self.layout)
        self.total_steps = self.feed.pace.steps(recipe.epochs)
        self.programs = Programs(recipe, self.dataset, self.total_steps, self.layout, self.feed.select)

    def init(self) -> TrainState:
        return self.programs.init(self.recipe.seed)

    def step(self, state: TrainState, i: int) -> tuple[TrainState, Metrics]:
        """Step i of the run. The host knows i, so each of the two programs holds only the gradients it needs."""
        return self.programs.step(state, self.programs.refreshes(i), *self.feed.arguments(i))

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Mean loss and accuracy in percent over the test set, each image counted once."""
        batches = make_eval_batches(self.dataset, self.recipe, self.layout)
        sums = [self.programs.evaluate(state.params, state.stats, *batch) for batch in batches]
        loss, hits, images = (sum(float(part[name]) for part in sums) for name in ("loss", "hits", "images"))
        return {"loss": loss / images, "accuracy": 100 * hits / images}

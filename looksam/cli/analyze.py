"""``looksam analyze``: how flat the loss is around a run's newest checkpoint."""

import argparse
import json
import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from looksam.cli.errors import UsageError
from looksam.cli.output import add_json, print_json, say
from looksam.cli.parser import Parser
from looksam.cli.run_folder import run_folder

if TYPE_CHECKING:
    from looksam.trainer.training import Training

NAME = "analyze"
HELP = "sharpness, curvature and loss landscape of a run's newest checkpoint"
DESCRIPTION = """\
Measure how flat the loss is around the newest good checkpoint of a run: sharpness in a ball, the Hessian's largest
eigenvalues and trace, g_v beside its second-order prediction, the loss along random directions, and the PAC-Bayes
bound. The loss is the cross-entropy of unaugmented training images, with the labels the run trained on, the model in
evaluation mode. Numbers go to RUN/analysis/analysis.json, figures beside it. The run may still be going on.
"""
EXAMPLES = """\
examples:
  looksam analyze runs/digits-noise30-seed0
  looksam analyze runs/digits-noise30-seed0 --rho 0.05 --eigenvalues 5
  looksam analyze runs/cifar100-small-resnet-seed0 --images 200 --json
"""
DEFAULT_IMAGES = 1000


def add_arguments(parser: Parser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("run_dir", metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--images", type=int, metavar="N", help=f"the first N training and test images (all, at most {DEFAULT_IMAGES})"
    )
    parser.add_argument("--rho", type=float, metavar="R", help="radius of the ball, 2-norm (the recipe's rho)")
    parser.add_argument("--eigenvalues", type=int, default=3, metavar="n", help="how many of the largest (3)")
    parser.add_argument("--out", metavar="DIR", help="where the files go (RUN/analysis)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    directory = run_folder(arguments.run_dir)
    _check(arguments)
    from looksam.experiments.report import text
    from looksam.experiments.report.figures import draw
    from looksam.experiments.report.flatness import figures, tables

    result = analyze_run(
        directory,
        images=arguments.images,
        rho=arguments.rho,
        eigenvalues=arguments.eigenvalues,
        report=(lambda _: None) if arguments.quiet else say,
    )
    out = pathlib.Path(arguments.out) if arguments.out else directory / "analysis"
    out.mkdir(parents=True, exist_ok=True)
    (out / "analysis.json").write_text(json.dumps(result, allow_nan=False) + "\n")
    for picture in figures(result):
        draw(picture, out)
    if arguments.json:
        print_json(result)
    else:
        print("\n\n".join([text.table_text(table) for table in tables(result)] + [str(out)]), flush=True)
    return 0


def analyze_run(
    directory: pathlib.Path,
    *,
    images: int | None = None,
    rho: float | None = None,
    eigenvalues: int = 3,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The numbers of ``looksam.analysis.measure`` at the newest good checkpoint of a run; None where not finite."""
    import jax

    from looksam.analysis import measure
    from looksam.trainer.loop import restored
    from looksam.trainer.run_directory import read_recipe

    radius = read_recipe(directory).rho if rho is None else rho
    if not radius > 0:
        raise UsageError(f"the recipe's rho is {radius}, a ball without inside; pass --rho, e.g. --rho 0.05")
    # in float32: a product with the Hessian is lost in bfloat16's rounding
    with restored(directory, dtype="float32") as (training, step, state):
        count = _count(images, len(training.dataset.train))
        train, test = (_first(part, count, training) for part in (training.dataset.train, training.dataset.test))
        report(f"step {step}: {len(train[1])} training and {len(test[1])} test images")
        numbers = measure(
            _loss(training, state.stats),
            state.params,
            train,
            test,
            rho=radius,
            key=jax.random.key(0),
            eigenvalues=eigenvalues,
            trained_on=len(training.dataset.train),
            report=report,
        )
        scores = training.evaluate(state)
    head = {"run_dir": str(directory), "step": step, "images": len(train[1]), "test_images": len(test[1])}
    whole = {"test_accuracy": scores["accuracy"], "test_loss": scores["loss"]}
    return _finite(head | whole | numbers)


def _check(arguments: argparse.Namespace) -> None:
    """What is wrong on the command line alone, before anything is loaded."""
    for name in ("images", "eigenvalues"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value} is out of range; pass --{name} >= 1")
    if arguments.rho is not None and not 0 < arguments.rho < math.inf:
        raise UsageError(f"--rho {arguments.rho} is out of range; pass a finite --rho > 0")


def _count(images: int | None, there: int) -> int:
    if images is not None and images > there:
        raise UsageError(f"--images {images} is more than the {there} training images; pass at most {there}")
    return min(there, DEFAULT_IMAGES) if images is None else images


def _first(part: Any, count: int, training: "Training") -> tuple[Any, Any]:
    """The first images and their labels, or all where there are fewer; centre-cropped if they are on disk."""
    import jax.numpy as jnp
    import numpy as np

    from looksam.trainer.data import Images, eval_batches

    part = part.take(np.arange(min(count, len(part))))
    if isinstance(part, Images):
        return jnp.asarray(part.images), jnp.asarray(part.labels)
    side = training.dataset.image_shape[0]
    [batch] = eval_batches(part, batch_size=len(part), image_size=side, workers=training.recipe.workers)
    seen = batch["weight"] > 0  # not an unreadable one
    return jnp.asarray(batch["image"][seen]), jnp.asarray(batch["label"][seen])


def _loss(training: "Training", stats: Any) -> Callable[..., Any]:
    """The mean cross-entropy of some images, as evaluation takes it."""
    import optax

    from looksam.trainer.data.transforms.augment import normalize
    from looksam.trainer.step import moments

    def loss(params: Any, images: Any, labels: Any) -> Any:
        inputs = normalize(images, *moments(training.dataset))
        logits, _ = training.programs.model.apply(params, stats, inputs, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def _finite(tree: Any) -> Any:
    """None in place of NaN and infinities, which JSON has no word for."""
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree

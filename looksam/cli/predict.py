"""``looksam predict``: the most probable classes of images, by a trained model."""

import argparse
from typing import Any

from looksam.cli.environment import prepare_jax
from looksam.cli.output import FAILED, UsageError, aligned, existing_folder, print_json, report
from looksam.cli.parser import Command, Parser, add_json, add_run

DESCRIPTION = """\
Predict the classes of images with a trained model: a run, whose data need not be there, or an export. Images are
prepared exactly as in evaluation. Unreadable ones are reported, and the exit code is then 1.
"""
EXAMPLES = """\
examples:
  looksam predict runs/flowers rose.jpg tulip.png
  looksam predict runs/flowers photos/ "more/*.jpg" --top 1 --checkpoint best
  looksam predict exported/flowers photos/ --json
"""


def _add_arguments(parser: Parser) -> None:
    add_run(parser, "the folder of a run, or of an export")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="files, folders of images, or quoted patterns")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of classes per image (5)")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.top < 1:
        raise UsageError(f"--top {arguments.top} is out of range; pass --top >= 1")
    directory = existing_folder(arguments.run_dir)
    prepare_jax()
    from looksam.trainer.trained.prediction import image_files, predict_images
    from looksam.trainer.trained.trained_model import load_model

    files = image_files(arguments.images)
    model = load_model(directory, arguments.checkpoint)
    predictions = list(predict_images(model, files, top=arguments.top))
    if arguments.json:
        print_json({"run_dir": str(directory), "step": model.step, "images": [_as_dict(p) for p in predictions]})
    else:
        rows = [
            (p.image, *(f"{g.name} {100 * g.probability:.1f}%" for g in p.guesses)) for p in predictions if p.guesses
        ]
        for line in aligned(rows, right=False):
            print(line)
    failed = [prediction for prediction in predictions if prediction.error is not None]
    for prediction in failed:
        report(f"looksam: {prediction.image}: unreadable image ({prediction.error})")
    return FAILED if failed else 0


def _as_dict(prediction: Any) -> dict[str, Any]:
    if prediction.error is not None:
        return {"image": prediction.image, "error": prediction.error}
    return {"image": prediction.image, "classes": [guess._asdict() for guess in prediction.guesses]}


COMMANDS = (Command("predict", "predict the classes of images", DESCRIPTION, EXAMPLES, _add_arguments, _run),)

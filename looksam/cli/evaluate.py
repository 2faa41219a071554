"""``looksam eval``: the scores of a run's checkpoint, on its own data or on other data, also per class."""

import argparse
import pathlib
from typing import Any

from looksam.cli.environment import prepare_jax
from looksam.cli.output import aligned, existing_run, print_result
from looksam.cli.parser import Command, Parser, add_json, add_run

DESCRIPTION = """\
Evaluate a checkpoint of a run, on the data that its recipe names, or on other data with the same classes. Images are
normalised with the numbers of the run. The run may still be training.
"""
EXAMPLES = """\
examples:
  looksam eval runs/digits-noise30-seed0
  looksam eval runs/digits-noise30-seed0 --checkpoint best --json
  looksam eval runs/flowers --data-dir /new/place/flowers --per-class
  looksam eval runs/flowers --dataset folder --data-dir other-flowers --split test --confusion --csv confusion.csv
"""
SHORT_NAME = 12  # characters of a class's name, as the head of a column


def _add_arguments(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data, if it is not where the recipe says")
    parser.add_argument("--dataset", metavar="TEXT", help="another dataset, with the same classes; see `looksam train`")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        help="which images; by default test, and validation where there is one",
    )
    parser.add_argument("--per-class", action="store_true", help="also the accuracy of each class")
    parser.add_argument("--confusion", action="store_true", help="also how often each class is taken for another")
    parser.add_argument("--csv", metavar="FILE", help="write both to a CSV file, one row per class")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    directory = existing_run(arguments.run_dir)
    prepare_jax()
    from looksam.trainer import evaluate_run
    from looksam.trainer.trained.evaluation import write_csv

    result = evaluate_run(
        directory,
        checkpoint=arguments.checkpoint,
        data_dir=arguments.data_dir,
        dataset=arguments.dataset,
        split=arguments.split,
        confusion=bool(arguments.per_class or arguments.confusion or arguments.csv),
    )
    if arguments.csv:
        write_csv(pathlib.Path(arguments.csv), result)
    print_result(result, as_json=arguments.json)
    if not arguments.json:
        for line in _tables(result, arguments.per_class, arguments.confusion):
            print(line)
    return 0


def _tables(result: dict[str, Any], per_class: bool, confusion: bool) -> list[str]:
    lines: list[str] = []
    if per_class:
        rows = [
            (row["class"], str(row["images"]), "-" if row["accuracy"] is None else f"{row['accuracy']:.2f}")
            for row in result["per_class"]
        ]
        lines += ["", *aligned([("class", "images", "accuracy"), *rows])]
    if confusion:
        names = result["class_names"]
        head = ("class / predicted", *(name[:SHORT_NAME] for name in names))
        counts = [(name, *map(str, row)) for name, row in zip(names, result["confusion"], strict=True)]
        lines += ["", *aligned([head, *counts])]
    return lines


COMMANDS = (
    Command(
        "eval", "evaluate a checkpoint of a run, on its own or other data", DESCRIPTION, EXAMPLES, _add_arguments, _run
    ),
)

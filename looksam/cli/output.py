"""Results on stdout, for people or as one line of JSON; everything else goes to stderr."""

import argparse
import json
import sys
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")


def print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def print_result(result: dict[str, Any], *, as_json: bool) -> None:
    """Where a run stands."""
    if as_json:
        print_json(result)
        return
    scores = [
        f"{what} {result[name]:{form}}"
        for what, name, form in (("test accuracy", "test_accuracy", ".2f"), ("test loss", "test_loss", ".4f"))
        if result.get(name) is not None
    ]
    print(f"{result.get('status', 'evaluated')} at step {result['step']}: {', '.join(scores) or 'not tested yet'}")
    print(result["run_dir"], flush=True)


def say(line: str) -> None:
    """To stderr, so that stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)

"""The process of a worker: ``python -m looksam.bench.serve MODULE:FUNCTION ARGUMENTS``.

It builds the subject, then answers one line of JSON for each line that it reads: the time per step for a number of
steps, and the subject's facts for ``"facts"``. It ends with its input.
"""

import importlib
import json
import os
import sys

from looksam.bench.harness import Subject, clocked


def main(target: str, arguments: str) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints does not mix with the answers

    def answer(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    module, _, function = target.partition(":")
    subject: Subject = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        answer(subject.facts() if request == "facts" else clocked(subject.run, request))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Subjects for the tests of ``looksam.bench`` that need no framework; workers build them by name."""

import os
import sys


class Fake:
    """Counts its steps, and reports the variable MARK of its process."""

    def __init__(self, dies_at=None):
        self.steps, self.dies_at = 0, dies_at

    def run(self, steps):
        self.steps += steps
        print("a line on stdout, which is not an answer")
        if self.dies_at is not None and self.steps >= self.dies_at:
            print("the disk is on fire", file=sys.stderr, flush=True)
            os._exit(3)

    def facts(self):
        return {"steps": self.steps, "mark": int(os.environ.get("MARK", 0))}


def fails():
    raise ValueError("there is no such model")

"""Fuzz the PyTorch optimizers: random loops, with everything that can go wrong in one, against a model in NumPy.

    python tools/fuzz_torch.py --steps 20000           # about three minutes on one CPU core
    python tools/fuzz_torch.py --rules look_sam --seed 7

Each run of 50 steps has a rule with random settings. The steps are those of tests/support/torch_fuzz.py, of which the
test suite takes a few thousand. The first violation ends the search with the rule, the seed and what differs.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/support"))

from torch_fuzz import Fuzz
from torch_problems import RULES

STEPS = 50  # of a run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="steps in all (20,000)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--seed", type=int, default=1000, help="the first seed; every run takes another one (1000)")
    arguments = parser.parse_args()
    errors = 0
    runs = -(-arguments.steps // STEPS)
    for run in range(runs):
        name, seed = arguments.rules[run % len(arguments.rules)], arguments.seed + run
        fuzz = Fuzz(name, seed)
        try:
            fuzz.run(STEPS)
        except Exception as error:
            error.add_note(f"rule {name}, seed {seed}, settings {fuzz.settings}, count {fuzz.opt.count}")
            raise
        errors += fuzz.errors
    print(f"{runs * STEPS:,} steps of {len(arguments.rules)} rules, {errors:,} of them with an error: no violation")


if __name__ == "__main__":
    main()

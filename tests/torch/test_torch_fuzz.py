"""Random loops against a model in NumPy; ``python tools/fuzz_torch.py`` takes more of them."""

import pytest
from torch_fuzz import Fuzz
from torch_problems import RULES


@pytest.mark.parametrize("name", RULES)
def test_random_loops(name):
    """In all, 2,400 steps."""
    errors = 0
    for seed in range(6):
        fuzz = Fuzz(name, seed)
        fuzz.run(50)
        errors += fuzz.errors
    assert errors > 10  # steps that failed, and were taken back

"""Random loops against a model in NumPy; ``python tools/fuzz_torch.py`` takes more of them."""

import pytest
from torch_fuzz import Fuzz
from torch_problems import RULES


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", RULES)
def test_random_loops(name, seed):
    fuzz = Fuzz(name, seed)
    fuzz.run(50)
    assert fuzz.errors > 0  # and what failed was taken back

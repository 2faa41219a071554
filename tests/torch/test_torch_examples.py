"""The scripts in examples/: they run as they are, and what they train recognises the digits."""

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
NEEDS = {"torch_loop": "torch", "torch_lightning": "lightning", "torch_accelerate": "accelerate"}
NEEDS |= {"torch_transformers": "transformers"}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("torch_*.py")} == set(NEEDS)


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck")
@pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval")
@pytest.mark.parametrize("name", NEEDS)
def test_examples(name):
    pytest.importorskip(NEEDS[name])
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]() > 0.9

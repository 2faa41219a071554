"""The scripts in examples/: they run as they are, and what they train recognises the digits."""

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
NEEDS = {  # the package without which an example is not run
    "jax_equinox": "equinox",
    "jax_flatness": "matplotlib",
    "jax_linen": "flax",
    "jax_loop": "jax",
    "jax_nnx": "flax",
    "jax_optax": "flax",
    "torch_accelerate": "accelerate",
    "torch_lightning": "lightning",
    "torch_loop": "torch",
    "torch_transformers": "transformers",
    "train_fine_tune": "flax",
    "train_own_dataset": "flax",
}


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == list(NEEDS)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck")
@pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval")
@pytest.mark.parametrize("name", NEEDS)
def test_examples(name, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]() > 0.9
    assert [path.name for path in tmp_path.iterdir()] == (["flatness.png"] if name == "jax_flatness" else [])

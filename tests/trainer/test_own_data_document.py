"""docs/own_data.md: its files as printed there, and its commands, with smaller images and fewer steps."""

import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from looksam.cli import main

TEXT = (pathlib.Path(__file__).parents[2] / "docs/own_data.md").read_text()
FILES = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL))
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
QUICK = {
    "train": "--batch-size 8 --steps 2 --image-size 16 --warmup-steps 0 --quiet",
    "compare": "--batch-size 8 --epochs 1 --image-size 8 --model mlp --crop-padding none --rounds 1 --seeds 1",
    "plan": "--batch-size 8 --image-size 16 --quiet",
}
BUILT_IN = "--mesh data=1 --method base"  # models that other tests train, so without the second gradient
OWN = "--mesh data=2 --k 1"


def some_images(folder, count):
    rng = np.random.default_rng(0)
    for split, label in ((split, label) for split in ("train", "val") for label in ("cat", "dog")):
        (folder / split / label).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / split / label / f"{i}.png")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    some_images(folder / "photos", 4)
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (40, 16, 16, 3), np.uint8), np.arange(40) % 3
    (folder / "data").mkdir()
    np.savez(
        folder / "data/arrays.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels
    )
    return folder


def test_the_document_has_its_files():
    assert list(FILES) == ["mine.toml", "net.py", "linen_net.py", "arrays.py", "my_recipe.py"]
    assert all(len(text.splitlines()) <= 25 for text in FILES.values())
    assert len(COMMANDS) == 10


def run_alone(words):
    """Runs a command in a process of its own, which imports the files again."""
    done = subprocess.run([sys.executable, "-m", "looksam.cli", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("as_users_run_it")
def test_the_commands_run(workplace, monkeypatch, capsys):
    def run_here(words):
        code = main(words)
        return code, *capsys.readouterr()

    monkeypatch.chdir(workplace)
    linen = "looksam train my_recipe.py --model linen_net.py:build --width none --run-dir runs/linen"
    for command in (*COMMANDS, linen):
        name, *words = shlex.split(command)[1:]
        more = (OWN if ".py" in command else BUILT_IN) if name == "train" else ""
        run = run_alone if name in ("plan", "eval") else run_here  # plan has threads, which do not see the fixture
        code, out, err = run([name, *words, *QUICK.get(name, "").split(), *more.split()])
        assert (code, bool(out)) == (0, True), f"{command}\n{err}"
    assert {"mine-seed0", "mine-sam", "my_recipe-seed0"} <= {folder.name for folder in pathlib.Path("runs").iterdir()}

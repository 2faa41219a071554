"""docs/using_models.md: its commands and its Python run as printed there, with a smaller network and fewer steps."""

import pathlib
import re
import shlex

import pytest
from flowers import write_flowers
from PIL import Image

from looksam.cli import main

TEXT = (pathlib.Path(__file__).parents[3] / "docs/using_models.md").read_text()
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", TEXT, re.DOTALL)
QUICK = "--mesh data=1 --batch-size 8 --steps 2 --image-size 16 --warmup-steps 0 --model wide_resnet --widen 1 --quiet"


@pytest.mark.usefixtures("as_users_run_it")
def test_the_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_flowers(tmp_path / "flowers", side=16)
    write_flowers(tmp_path / "other-flowers", side=16, seed=1)
    for folder, name in (("photos", "rose"), ("photos", "tulip"), ("more", "rose")):
        (tmp_path / folder).mkdir(exist_ok=True)
        Image.open(tmp_path / f"flowers/test/{name}/0.png").save(tmp_path / folder / f"{name}.jpg")
    assert [kind for kind, _ in BLOCKS] == ["console", "python", "console", "console", "python", "console"]
    for kind, block in BLOCKS:
        if kind == "python":
            exec(block, {})
            continue
        for command in block.splitlines():
            words = shlex.split(command)[1:]
            code = main([*words, *(["--method", "base", *QUICK.split()] if words[0] == "train" else [])])
            captured = capsys.readouterr()
            assert code == 0, f"{command}\n{captured.err}"
    assert (tmp_path / "confusion.csv").read_text().startswith("class,images,accuracy,daisy,rose,tulip")

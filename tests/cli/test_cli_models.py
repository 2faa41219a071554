"""predict, export and eval on the command line: what they print, refuse and return."""

import json
import os

import pytest
from flowers import NAMES, write_flowers

from looksam.cli import main

pytestmark = pytest.mark.usefixtures("as_users_run_it")


@pytest.fixture
def cli(capsys):
    def run(*argv):
        code = main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_predict_prints_a_line_per_image_and_reports_the_unreadable(cli, flowers_run, tmp_path):
    run_dir = flowers_run[0]
    images = run_dir.parent / "data/test/rose"
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    code, out, err = cli("predict", run_dir, images, "--top", 2)
    lines = out.splitlines()
    assert (code, len(lines), err) == (0, 4, "")
    name, *words = lines[0].split()
    assert name == str(images / "0.png") and words[0] in NAMES and words[1].endswith("%") and len(words) == 4

    code, out, err = cli("predict", run_dir, tmp_path / "bad.jpg", images / "0.png", "--json")
    bad, good = json.loads(out)["images"]
    assert code == 1 and bad["image"].endswith("bad.jpg") and bad["error"] in err
    assert sum(guess["probability"] for guess in good["classes"]) == pytest.approx(1)

    code, _, err = cli("predict", run_dir, images, "--top", 0)
    assert (code, "--top 0 is out of range" in err) == (2, True)
    code, _, err = cli("predict", run_dir, tmp_path / "nothing/*.jpg")
    assert (code, "has no images" in err) == (1, True)
    code, _, err = cli("predict", f"{run_dir}s", images)
    assert code == 2 and "did you mean run" in err


def test_export_names_its_files(cli, flowers_run, tmp_path):
    code, out, _ = cli("export", flowers_run[0], "--out", tmp_path / "out", "--no-stablehlo")
    assert code == 0 and out.endswith(f"model.safetensors, config.json, README.txt\n{tmp_path / 'out'}\n")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["class_names"] == list(NAMES) and config["options"]["width"] == 12
    code, out, _ = cli("predict", tmp_path / "out", flowers_run[0].parent / "data/test", "--json")
    assert code == 0 and len(json.loads(out)["images"]) == 12
    code, _, err = cli("export", flowers_run[0], "--out", tmp_path / "out/config.json")
    assert code == 1 and "cannot write to" in err


def test_eval_finds_the_data_of_a_relative_path_elsewhere(cli, flowers_run, tmp_path, monkeypatch):
    """A run that was trained with --data-dir data is evaluated from another folder, with tables and CSV."""
    run_dir = flowers_run[0]
    data = write_flowers(tmp_path / "flowers")
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("eval", run_dir, "--data-dir", "flowers", "--per-class", "--confusion", "--csv", "c.csv")
    assert code == 0, err
    assert out.splitlines()[0].startswith("evaluated at step 6: test accuracy ")
    assert [line.split()[:2] for line in out.splitlines()[3:7]] == [["class", "images"], *([n, "4"] for n in NAMES)]
    assert out.splitlines()[8].split() == ["class", "/", "predicted", *NAMES]
    assert (tmp_path / "c.csv").read_text().count("\n") == 4
    os.rename(data / "test/rose", data / "test/orchid")
    os.rename(data / "train/rose", data / "train/orchid")
    code, _, err = cli("eval", run_dir, "--data-dir", "flowers")
    assert code == 1 and "'orchid' as class 1, and 'rose' in the run" in err
    code, _, err = cli("eval", run_dir, "--split", "tets")
    assert code == 2 and "tets" in err

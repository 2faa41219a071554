"""Messages name the flags of the command that shows them, and nothing else in them changes."""

import pytest

from looksam.cli.flags import spelled

FLAGS = {
    name: "--" + name.replace("_", "-") for name in ("batch_size", "data_dir", "download", "p", "rho", "seed", "stop")
}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("batch_size=9 is larger; pass at most 5.", "--batch-size 9 is larger; pass at most 5."),
        ("rho=nan is out of range; pass rho >= 0.0.", "--rho nan is out of range; pass --rho >= 0.0."),
        ("p=1.0 is out of range; pass 1 < p <= inf.", "--p 1.0 is out of range; pass 1 < --p <= inf."),
        ("needs files; pass data_dir=, or set LOOKSAM_DATA.", "needs files; pass --data-dir, or set LOOKSAM_DATA."),
        ("data_dir='my photos' is not a folder", "--data-dir 'my photos' is not a folder"),
        ("download=True, and it has none", "--download, and it has none"),
        ("download=False", "--no-download"),
        ("stop=None (batch_size: 5 there, 6 here)", "--stop none (--batch-size: 5 there, 6 here)"),
        ("pass a batch_size or microbatch", "pass a --batch-size or microbatch"),
        # paths, quoted words, other commands' names and plain English stay
        ("/data/seed=3/rho=1.png is damaged", "/data/seed=3/rho=1.png is damaged"),
        ("runs/batch_size/a.json, data_dir.txt, 'data_dir'", "runs/batch_size/a.json, data_dir.txt, 'data_dir'"),
        ("pass --batch-size, or a later stop; momentum=2", "pass --batch-size, or a later stop; momentum=2"),
    ],
)
def test_settings_become_flags(message, expected):
    assert spelled(message, FLAGS) == expected


def test_a_command_without_flags_changes_nothing():
    assert spelled("batch_size=9 is larger", {}) == "batch_size=9 is larger"

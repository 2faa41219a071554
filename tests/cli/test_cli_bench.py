"""``looksam bench``: what it refuses, and one whole measurement of a tiny recipe."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from looksam.bench.measure import measure
from looksam.cli import main

TINY = ("bench", "digits", "--rounds", "1", "--batch-size", "8", "--mesh", "data=1")


@pytest.fixture
def cli(capsys):
    def run(*argv):
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_help_and_refusals_load_no_framework():
    code = """if True:
        import sys
        from looksam.cli import main
        assert main(["bench", "--help"]) == 0
        assert main(["bench", "digits", "--forms", "x"]) == main(["bench", "digits", "--methods", "x"]) == 2
        print([name for name in ("jax", "flax", "torch", "numpy", "matplotlib") if name in sys.modules])
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.isascii()  # shows on any terminal
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "base,lok_sam"), "row 'lok_sam' names no method; the methods are base, sam"),
        (("--forms", "static,trace"), "form 'trace' is unknown; did you mean traced"),
        (("--rounds", "0"), "--rounds 0 is out of range; pass --rounds >= 1"),
        (
            ("--methods", "layer_sam", "--forms", "optax"),
            "there is nothing to measure; pass other --forms or --methods",
        ),
    ],
)
def test_bad_usage(cli, words, message):
    code, out, err = cli(*TINY, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_an_unknown_size_is_an_error(cli, monkeypatch):
    monkeypatch.delenv("LOOKSAM_DATA", raising=False)
    code, _, err = cli("bench", "digits", "--dataset", "folder", "--forms", "static")
    assert code == 1
    assert (
        "the size of this dataset is read from its files: dataset 'folder' needs files; pass their folder as --data-dir"
        in err
    )


def test_one_measurement(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(measure.__kwdefaults__, "bases", 1)  # the next two tests start as many as a user's command
    words = ("--methods", "base,look_sam_2", "--forms", "static,torch", "--optimizer", "adamw", "--out", str(tmp_path))
    code, out, err = cli(*TINY, *words, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert [row["name"] for row in result["rows"]] == [
        *("static/base", "static/look_sam_2", "torch/base", "torch/look_sam_2")
    ]
    assert [row["gradients"] for row in result["rows"]] == [1.0, 1.5, 1.0, 1.5]
    for row in result["rows"]:
        assert all(0 < low <= median <= high for low, median, high in (row["wall"], row["cpu"]))
    assert result["recipe"]["optimizer"] == "adamw"
    assert json.loads((tmp_path / "bench.json").read_text()) == [result]
    assert "LookSAM-2, PyTorch" in (tmp_path / "bench.svg").read_text()
    assert "static/look_sam_2 is ready\n" in err and "timing: round 1/1\n" in err


def test_what_is_skipped_is_said_even_when_quiet(cli):
    code, out, err = cli(*TINY, "--optimizer", "lamb", "--methods", "base", "--forms", "static,torch", "--quiet")
    assert (code, err) == (0, "PyTorch is skipped: it has no optimizer=lamb\n")
    assert out.startswith("digits, LAMB, batch size 8\n")


# A shell may start its background jobs, such as this test, with SIGINT ignored; a terminal does not.
AS_FROM_A_TERMINAL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from looksam.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ctrl_c_ends_all_processes():
    words = (*TINY, "--rounds", "1000000", "--methods", "base", "--forms", "static")
    command = [sys.executable, "-c", AS_FROM_A_TERMINAL, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if "round 1/" in line:
                    break
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGINT)
            err = process.stderr.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert len(children) == 3
    assert err.endswith("looksam: interrupted\n") and "Traceback" not in err
    assert not any(is_running(int(child)) for child in children)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

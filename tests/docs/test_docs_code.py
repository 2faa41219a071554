"""Every code block of README.md and docs/ runs here or in the test that is named for its page, or says why not.

A block that cannot run has a comment on the line before it: ``<!-- not run: the reason -->``. The blocks of a page run
in order, in one namespace, which begins with the names that ``SETUP`` has for the page.
"""

import contextlib
import doctest
import io
import os
import re
import shlex

import pages
import pytest

from looksam import cli
from looksam.cli.parser import Parser, recipe_named

JAX = """
import jax, jax.numpy as jnp
params, batch = {"w": jnp.array([1.0, 2.0])}, jnp.array([3.0, 4.0])
loss_fn = lambda params, x: jnp.mean((params["w"] * x - 1) ** 2)
"""
TORCH = """
import torch
from torch import nn
torch.manual_seed(0)
model, criterion = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)), nn.CrossEntropyLoss()
x, y = torch.randn(8, 6), torch.randint(3, (8,))
"""
SETUP = {"README.md": JAX + TORCH}
STEPS = """
for _ in range(6):
    opt.step(closure)
    params, state, opt_state, loss = step(params, state, opt_state, batch)
"""
GRADIENT = """
import jax, jax.numpy as jnp
w = jnp.ones(3)
rule.gradient(jax.value_and_grad(lambda w: jnp.sum(w**2)), w, rule.init(w))
"""
AFTER = {"README.md": STEPS, "docs/maths.md": GRADIENT}  # what a reader would do next
ELSEWHERE = {  # pages whose code is run by a test of their own, which compares it with something or sets up more
    "docs/jax.md": "tests/test_jax_page.py",
    "docs/own_data.md": "tests/trainer/test_own_data_document.py",
    "docs/porting.md": "tests/torch/test_torch_porting.py",
    "docs/pytorch.md": "tests/torch/test_torch_recipes.py",
    "docs/using_models.md": "tests/trainer/test_using_models_document.py",
}
BY_SECTION = ("docs/porting.md", "docs/pytorch.md")
LANGUAGES = {"", "console", "python", "pycon", "toml", "{toctree}", "{eval-rst}"}  # "": shell commands and output


def _documents() -> list[str]:
    return [page for page in pages.documents() if page == "README.md" or page.startswith("docs/")]


def _with(language: str) -> list[str]:
    return [page for page in _documents() if pages.blocks(page, language)]


@pytest.mark.parametrize("page", [page for page in _with("python") if page not in ELSEWHERE])
@pytest.mark.usefixtures("as_users_run_it")
def test_python(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    space = {}
    exec(SETUP.get(page, ""), space)
    for block in pages.blocks(page, "python"):
        if block.not_run is None:
            exec(compile("\n" * block.line + block.code, page, "exec"), space)  # the page's own line numbers
    exec(AFTER.get(page, ""), space)
    for accuracy in re.findall(r"accuracy (\d+)%", capsys.readouterr().out):
        assert int(accuracy) > 90


@pytest.mark.parametrize("page", _with("pycon"))
@pytest.mark.usefixtures("as_users_run_it")
def test_sessions(page):
    for block in pages.blocks(page, "pycon"):
        test = doctest.DocTestParser().get_doctest(block.code, {}, str(block), page, block.line)
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("page", BY_SECTION)
def test_pages_with_a_test_of_their_own_are_run_as_a_whole(page):
    sections = [block.section for block in pages.blocks(page, "python") if block.not_run is None]
    text = (pages.ROOT / ELSEWHERE[page]).read_text()
    assert set(sections) == set(re.findall(r'(?:recipe|blocks)\("([^"]+)"\)', text))
    for section in re.findall(r'recipe\("([^"]+)"\)\[0\]', text):
        assert sections.count(section) == 1, section


@pytest.mark.parametrize("page", _documents())
def test_languages(page):
    assert {block.language for block in pages.blocks(page)} <= LANGUAGES


def _commands(page: str) -> list[tuple[str, list[str]]]:
    """The commands of looksam in the shell blocks of a page, each with its place and without comment or redirection."""
    found = []
    for block in (*pages.blocks(page, ""), *pages.blocks(page, "console")):
        for line in block.code.replace("\\\n", " ").splitlines():
            if block.not_run is None and (match := re.search(r'(?:^|[\s"])(looksam [a-z-][^"#|&>]*)', line)):
                found.append((str(block), shlex.split(match[1])[1:]))
    return found


SHELL = [(f"{place}: {' '.join(words)}", words) for page in _documents() for place, words in _commands(page)]


@pytest.mark.parametrize(("command", "words"), SHELL, ids=[command for command, _ in SHELL])
def test_commands_are_accepted(command, words, monkeypatch):
    """The parser takes them, and recipes that come with the package exist and accept the settings."""

    def check(arguments):
        name = getattr(arguments, "recipe", None)
        if name and not re.search(r"[A-Z./:]", name):  # not RECIPE, a file or a module
            recipe_named(name, arguments)
        return 0

    parse = Parser.parse_args

    def parse_args(self, *args):
        arguments = parse(self, *args)
        arguments.run = check
        return arguments

    monkeypatch.setattr(Parser, "parse_args", parse_args)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = cli.main(words)
        except SystemExit as exit:
            code = exit.code
    assert code == 0, f"{command}\n{said.getvalue()}"


def test_commands_are_found():
    assert len(SHELL) > 20
    assert ["train", "digits-noise30"] in [words for _, words in SHELL]

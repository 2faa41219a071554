"""The layers of the package: imports point down, and no two modules import each other."""

import ast
import importlib.metadata
import pathlib
import re
import sys
import tomllib

import pytest
import structure

ROOT = pathlib.Path(__file__).parent.parent


def test_imports_point_down():
    found = [f"{edge.source}:{edge.line} imports {edge.target}" for edge in structure.upward(structure.imports())]
    assert found == []


def test_no_modules_import_each_other():
    assert structure.cycles(structure.imports()) == []


def test_every_folder_has_its_floor():
    folders = {path.name for path in (ROOT / "looksam").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {folder for floor in structure.FLOORS for folder in floor}


@pytest.mark.parametrize(
    ("statement", "target"),
    [
        ("from looksam.trainer.recipe import Recipe", "looksam.trainer.recipe"),
        ("from looksam.trainer import recipe", "looksam.trainer.recipe"),
        ("import looksam.trainer.recipe", "looksam.trainer.recipe"),
        ("def later():\n    from looksam.trainer import Recipe", "looksam.trainer"),
    ],
)
def test_upward_imports_are_found(tmp_path, statement, target):
    for file in ("rules/__init__", "trainer/__init__", "trainer/recipe"):
        path = tmp_path / "looksam" / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(statement if file.startswith("rules") else "")
    [edge] = structure.upward(structure.imports(tmp_path))
    assert (edge.source, edge.target) == ("looksam.rules", target)


def test_cycles_are_found(tmp_path):
    folder = tmp_path / "looksam"
    folder.mkdir()
    for name, target in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (folder / f"{name}.py").write_text(f"def f():\n    import looksam.{target}")
    assert structure.cycles(structure.imports(tmp_path)) == [["looksam.a", "looksam.b", "looksam.c"]]


def test_files_are_topics():
    lengths = {name: len(path.read_text().splitlines()) for name, path in structure.modules().items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    names = [path.name for path in structure.modules().values() if not path.name.startswith("__")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_direct_dependencies_are_declared():
    """Every package that looksam imports is one of its extras, under the name that the registry has for it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[><=\[]", line)[0] for extra in extras if extra != "dev" for line in extras[extra]}
    declared = {name.lower().replace("_", "-") for name in names}
    owners = importlib.metadata.packages_distributions()
    imported = set()
    for path in structure.modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"looksam"}
    assert others
    for name in others:
        assert {owner.lower().replace("_", "-") for owner in owners[name]} & declared, name


def test_the_oldest_versions_are_the_lower_bounds():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = dict(
        line.lower().split(">=") for extra in extras if extra != "dev" for line in extras[extra] if ">=" in line
    )
    pins = dict(line.split("==") for line in (ROOT / "constraints-oldest.txt").read_text().split())
    assert pins.pop("jaxlib") == pins["jax"]
    for name, pin in pins.items():
        assert re.fullmatch(rf"{re.escape(bounds.pop(name))}(\.0)*", pin), name
    assert bounds == {}

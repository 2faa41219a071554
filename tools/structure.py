"""Measure how the package is organised: its files, its imports, and how many files a task passes through.

    python tools/structure.py                    # this checkout
    python tools/structure.py --root OTHER       # another checkout, for a before-and-after comparison
    python tools/structure.py --json

The paths are traced, not guessed: a file counts if one of its functions runs. "Training step" is the first call of
``Training.step``, which includes tracing; "run of one step" is all of the trainer's ``run``, from reading the data to
the checkpoint; "reproduce vit" writes that experiment's report from the stored runs, and takes one training step.
"""

import argparse
import ast
import collections
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "looksam"
# Floors from the ground up; a module may import from its own floor and from those below. ``looksam`` itself and its
# top-level modules belong to the library.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("rules", "torch", "analysis"),
    ("trainer",),
    ("bench",),
    ("experiments",),
    ("cli",),
)
SHORT = 60


class Import(NamedTuple):
    """One import statement between two modules of the package."""

    source: str
    target: str
    line: int


def modules(root: pathlib.Path = ROOT) -> dict[str, pathlib.Path]:
    """Dotted names of the package's modules and their files."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(root: pathlib.Path = ROOT) -> list[Import]:
    """Every import inside the package, also those inside functions and under ``TYPE_CHECKING``."""
    known = modules(root)
    found = []
    for source, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node, known):
                if target != source:
                    found.append(Import(source, target, node.lineno))  # type: ignore[attr-defined]
    return found


def _targets(node: ast.AST, known: dict[str, pathlib.Path]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in known}
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        names = (f"{node.module}.{alias.name}" for alias in node.names)
        return {name if name in known else node.module for name in names if name in known or node.module in known}
    return set()


def floor(module: str) -> int:
    """The number of a module's floor, 0 for the library."""
    folder = [*module.split("."), ""][1]
    return next((number for number, folders in enumerate(FLOORS) if folder in folders), 0)


def upward(edges: list[Import]) -> list[Import]:
    """Imports from a lower floor into a higher one."""
    return [edge for edge in edges if floor(edge.source) < floor(edge.target)]


def cycles(edges: list[Import]) -> list[list[str]]:
    """Groups of modules that import each other in a circle (strongly connected components of the import graph)."""
    graph = collections.defaultdict(set)
    for edge in edges:
        graph[edge.source].add(edge.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:  # Tarjan's algorithm
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return sorted(found)


_TRACE = """
import json, shutil, sys, tempfile
sys.path.insert(0, {root!r})
package = {root!r} + "/looksam/"
run, inside = set(), [0]
def starts(frame):
    code = frame.f_code
    return code.co_qualname == start and (start != "run" or code.co_filename.endswith("/loop.py"))
def traced(frame, event, argument):
    if event == "call" and starts(frame):
        inside[0] += 1
    if event == "call" and (inside[0] or not start) and frame.f_code.co_filename.startswith(package):
        if not frame.f_code.co_name.startswith("<"):
            run.add(frame.f_code.co_filename)
    if event == "return" and starts(frame):
        inside[0] -= 1
start = {start!r}
from looksam.cli import main
with tempfile.TemporaryDirectory() as folder:
    command = {command!r}
    if not start:
        for copy in ("/first", "/second"):
            shutil.copytree({root!r} + "/results", folder + copy + "/results")
    main([word.replace("FOLDER", folder + "/first") for word in command])  # imports everything
    sys.setprofile(traced)
    code = main([word.replace("FOLDER", folder + "/second") for word in command])
    sys.setprofile(None)
assert code == 0, code
print("\\n" + json.dumps(sorted(path[len(package):] for path in run)))
"""


def path(root: pathlib.Path, command: list[str], start: str = "") -> list[str]:
    """The files whose functions run during a command, or only inside the function named ``start``."""
    code = _TRACE.format(root=str(root.resolve()), command=command, start=start)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(root: pathlib.Path) -> dict[str, Any]:
    files = list((root / PACKAGE).rglob("*.py"))
    lengths = sorted(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    names = collections.Counter(file.name for file in files if file.name not in ("__init__.py", "__main__.py"))
    edges = imports(root)
    train = ["train", "digits", "--steps", "1", "--mesh", "data=1", "--quiet", "--run-dir", "FOLDER/run"]
    step, run = path(root, train, "Training.step"), path(root, train, "run")
    vit = set(path(root, ["reproduce", "vit", "--out", "FOLDER/results"])) | set(step)
    return {
        "files": len(files),
        "lines": sum(lengths),
        "median lines": statistics.median(lengths),
        "longest file": lengths[-1],
        f"share under {SHORT} lines": round(sum(length < SHORT for length in lengths) / len(lengths), 3),
        "files on the path of a training step": len(step),
        "files on the path of a run of one step": len(run),
        "files on the path of reproduce vit": len(vit),
        "base names in two or more folders": sum(count > 1 for count in names.values()),
        "import edges": len({edge[:2] for edge in edges}),
        "upward imports": len({edge[:2] for edge in upward(edges)}),
        "import cycles": len(cycles(edges)),
        "training step": step,
        "duplicated names": sorted(name for name, count in names.items() if count > 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    found = measure(arguments.root)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:40} {value if not isinstance(value, list) else ', '.join(value)}")


if __name__ == "__main__":
    main()

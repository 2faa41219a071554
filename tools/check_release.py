"""Build the sdist and the wheel, and test the wheel in a clean environment, away from the checkout.

    python tools/check_release.py --tag v0.1.0

The wheel is built from the sdist. It is installed with the extra ``train`` into a new virtual environment, in which the
command line and the imports of a user are run from an empty folder.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
IMPORTS = """
import pathlib, sys
import looksam, looksam.analysis, looksam.rules, looksam.trainer, looksam.experiments.report.page
assert pathlib.Path(looksam.__file__).is_relative_to(sys.prefix), looksam.__file__
for package in (looksam, looksam.rules, looksam.analysis, looksam.trainer):
    for name in package.__all__:
        getattr(package, name)
"""
COMMANDS = (
    "looksam --version",
    "looksam recipes",
    "looksam train digits --epochs 1 --quiet",
    "looksam eval runs/digits-seed0",
    "looksam compare digits --methods base,look_sam_5 --epochs 2 --seeds 2 --rounds 2",
)


def versions(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Returns the version that each file states."""
    patterns = {
        "looksam/__init__.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": r"^## (\S+)",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def package_files(root: pathlib.Path = ROOT) -> set[str]:
    """Returns every file of the package, code and data, relative to the checkout."""
    files = (path.relative_to(root) for path in (root / "looksam").rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def check_wheel(wheel: pathlib.Path, expected: set[str]) -> None:
    """Exits unless the wheel holds the package, its metadata and its licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    wrong = sorted((names - metadata) ^ expected)
    if wrong:
        sys.exit(f"{wheel.name}: missing from the wheel or not of the package: {', '.join(wrong)}")
    if not any(name.endswith("/licenses/LICENSE") for name in metadata):
        sys.exit(f"{wheel.name}: the licence is missing")


def check_sdist(sdist: pathlib.Path, expected: set[str]) -> None:
    """Exits unless the sdist holds the package and the files that its metadata refer to."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted((expected | {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"}) - names)
    if missing:
        sys.exit(f"{sdist.name}: missing from the sdist: {', '.join(missing)}")


def check_installed(wheel: pathlib.Path, constraints: pathlib.Path = ROOT / "constraints.txt") -> None:
    """Installs the wheel into a new environment, and runs what a user would run first; exits at the first failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        venv.create(folder / "venv", with_pip=True)
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environ |= {"PATH": f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder)}

        def run(*command: str) -> None:
            print("$", *(word if "\n" not in word else "…" for word in command), flush=True)
            if code := subprocess.run(command, cwd=folder, env=environ, check=False).returncode:
                sys.exit(f"exit code {code}: {' '.join(command)}")

        run("python", "-m", "pip", "install", "--quiet", "-c", str(constraints), f"looksam[train] @ {wheel.as_uri()}")
        run("python", "-m", "pip", "check")
        run("python", "-c", IMPORTS)
        for command in COMMANDS:
            run(*command.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", metavar="vX.Y.Z", help="the tag of the release, which has to be its version")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", metavar="DIR", help="folder of both (dist)")
    arguments = parser.parse_args()
    stated = versions() | ({"the tag": arguments.tag.removeprefix("v")} if arguments.tag else {})
    if len(set(stated.values())) > 1:
        sys.exit("versions differ: " + ", ".join(f"{version} in {place}" for place, version in stated.items()))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder, str(ROOT)], check=True)
        [wheel], [sdist] = pathlib.Path(folder).glob("*.whl"), pathlib.Path(folder).glob("*.tar.gz")
        check_wheel(wheel, package_files())
        check_sdist(sdist, package_files())
        check_installed(wheel)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for path in (wheel, sdist):
            (arguments.out / path.name).write_bytes(path.read_bytes())
            print(arguments.out / path.name)


if __name__ == "__main__":
    main()

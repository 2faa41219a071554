"""What the command line sets for JAX, what it leaves to the user, and that it reports errors without loading JAX."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from looksam.cli import environment
from looksam.cli.environment import CACHE_DIR, CACHE_SWITCH, CACHE_THRESHOLD, YNN_FLAG, YNN_JAXLIB, YNN_VALUE
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import write_recipe

OURS = f"{YNN_FLAG}={YNN_VALUE}"
TESTS_SET = ("XLA_FLAGS", CACHE_DIR, CACHE_SWITCH, CACHE_THRESHOLD)
UNSET = {name: value for name, value in os.environ.items() if name not in TESTS_SET}  # as for a user


def run(code, *arguments, **variables):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=UNSET | variables)


# --- the compiler flag ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, OURS),
        ({"JAX_PLATFORMS": ""}, OURS),
        ({"JAX_PLATFORMS": "cpu"}, OURS),
        ({"JAX_PLATFORMS": "cuda,cpu"}, None),
        ({"XLA_FLAGS": ""}, OURS),
        ({"XLA_FLAGS": " --xla_dump_to=x "}, f"--xla_dump_to=x {OURS}"),
        ({"XLA_FLAGS": f"--xla_dump_to=x {YNN_FLAG}="}, None),
        ({"XLA_FLAGS": "flags.txt"}, None),
    ],
)
def test_the_flag_is_appended_where_the_user_has_not_set_it(environ, expected):
    expected = {} if expected is None else {"XLA_FLAGS": expected}
    assert environment.cpu_flags(environ, YNN_JAXLIB[-1], accelerator_plugin=False) == expected


@pytest.mark.parametrize(("platforms", "expected"), [(None, {}), ("cpu", {"XLA_FLAGS": OURS})])
def test_an_installed_plugin_may_run_the_program_unless_the_user_asks_for_the_cpu(platforms, expected):
    environ = {} if platforms is None else {"JAX_PLATFORMS": platforms}
    assert environment.cpu_flags(environ, YNN_JAXLIB[-1], accelerator_plugin=True) == expected


@pytest.mark.parametrize("jaxlib", [None, "0.9.2", "0.10.3", "0.10.20", "0.11.0"])
def test_no_flag_for_a_jaxlib_that_may_not_know_it(jaxlib):
    assert environment.cpu_flags({}, jaxlib, accelerator_plugin=False) == {}


def test_the_installed_jaxlib_knows_the_flag():
    """A new version of jaxlib has to be tried: this fails until it is entered in YNN_JAXLIB, or refuses the flag."""
    code = "import jax, jaxlib; jax.devices(); print(jaxlib.__version__)"
    result = run(code, XLA_FLAGS=OURS, JAX_PLATFORMS="cpu")
    assert result.stdout.strip() in YNN_JAXLIB, result.stderr


TRAIN = """if True:
    import json, os, sys
    from looksam.cli import main
    code = main(["train", "digits", "--epochs", "1", "--quiet", "--run-dir", sys.argv[1]])
    import jax
    print(json.dumps([code, os.environ["XLA_FLAGS"], jax.config.jax_compilation_cache_dir]))
"""


@pytest.mark.parametrize("theirs", [None, f"{YNN_FLAG}="])
def test_a_run_with_the_flag_of_ours_or_of_the_user(tmp_path, theirs):
    variables = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"} | (
        {} if theirs is None else {"XLA_FLAGS": theirs}
    )
    result = run(TRAIN, tmp_path / "run", **variables)
    cache = tmp_path / "looksam" / "xla"
    assert json.loads(result.stdout.splitlines()[-1]) == [0, theirs or OURS, str(cache)], result.stderr
    assert any(cache.glob("jit_step-*"))
    assert not result.stderr


def test_the_library_sets_nothing():
    code = f"import os, looksam.trainer.loop; print('XLA_FLAGS' in os.environ, {CACHE_DIR!r} in os.environ)"
    assert run(code).stdout == "False False\n"


# --- the cache of compiled programs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, "home/.cache"),
        ("linux", {"XDG_CACHE_HOME": "/somewhere"}, "/somewhere"),
        ("linux", {"XDG_CACHE_HOME": ""}, "home/.cache"),
        ("darwin", {}, "home/Library/Caches"),
        ("win32", {}, "home/AppData/Local"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local"),
        ("linux", {CACHE_SWITCH: "true"}, "home/.cache"),
        ("linux", {CACHE_SWITCH: "False"}, None),
        ("linux", {CACHE_DIR: "/theirs"}, None),
        ("linux", {CACHE_DIR: ""}, None),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(monkeypatch, tmp_path, platform, environ, expected):
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path / "home")
    folder = environment.cache_folder(environ, platform)
    assert folder == (expected and tmp_path / expected / "looksam" / "xla")


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", no_home)
    assert environment.cache_folder({}, "linux") is None


@pytest.fixture
def before_jax(monkeypatch, tmp_path):
    """An environment without JAX and its settings, and a cache folder in ``tmp_path``."""
    monkeypatch.delitem(sys.modules, "jax")
    for name in ("XLA_FLAGS", CACHE_DIR, CACHE_SWITCH, CACHE_THRESHOLD):
        monkeypatch.setenv(name, "")  # so that it is set back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "_has_mallopt", lambda: False)  # it would change the process of the tests
    return tmp_path / "looksam"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other variables and permissions")
def test_a_cache_for_the_user_alone(before_jax):
    environment.prepare_jax()
    assert (os.environ[CACHE_DIR], os.environ[CACHE_THRESHOLD]) == (str(before_jax / "xla"), "0")
    assert (before_jax / "xla").stat().st_mode & 0o777 == 0o700


def test_a_threshold_of_the_user_stays(before_jax, monkeypatch):
    monkeypatch.setenv(CACHE_THRESHOLD, "5")
    environment.prepare_jax()
    assert os.environ[CACHE_THRESHOLD] == "5"


def test_a_folder_that_cannot_be_written_is_left_out(before_jax):
    before_jax.write_text("a file in the place of the folder")
    environment.prepare_jax()
    assert CACHE_DIR not in os.environ


def test_too_late_once_jax_is_loaded(before_jax, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", sys)
    environment.prepare_jax()
    assert not before_jax.exists()
    assert "XLA_FLAGS" not in os.environ


MEMORY = """if True:
    import os, resource
    from looksam.cli import environment
    environment.prepare_jax()
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        b"x" * 2**27  # 128 MiB
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(faults, os.environ.get("MALLOC_ARENA_MAX"))
"""


@pytest.mark.skipif(not environment._has_mallopt(), reason="the allocator is not glibc's")
@pytest.mark.parametrize(("variables", "kept"), [({}, True), ({"GLIBC_TUNABLES": "glibc.malloc.check=0"}, False)])
def test_freed_memory_is_used_again(variables, kept):
    faults, arenas = run(MEMORY, **variables).stdout.split()
    assert (int(faults) < 100) == kept  # of 32,768 pages
    assert arenas == ("1" if kept else "None")


@pytest.mark.parametrize("theirs", [*environment.MALLOC, *environment.OTHER_MALLOC])
def test_the_users_allocator_is_left_alone(theirs):
    assert environment.memory({theirs: "x"}) == {}
    assert environment.memory({}).keys() == environment.MALLOC.keys()


def test_programs_unused_for_longest_go_first(tmp_path):
    for age, name in enumerate(["new", "read", "old", "older"]):
        (tmp_path / f"{name}-cache").write_bytes(b"x" * 10)
        os.utime(tmp_path / f"{name}-cache", (1000 - age, 1000 - age))
    os.utime(tmp_path / "read-cache", (2000, 0))  # written long ago, and read since
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    environment.prune(tmp_path, 40)
    assert len(list(tmp_path.iterdir())) == 5
    environment.prune(tmp_path, 29)
    assert {path.name for path in tmp_path.iterdir()} == {"new-cache", "read-cache", "notes.txt"}


# --- nothing heavy before it is needed --------------------------------------------------------------------------

HEAVY = (
    *("flax", "grain", "jax", "jaxlib", "matplotlib", "numpy", "optax", "orbax", "PIL", "pyarrow", "rich", "scipy"),
    *("sklearn", "tensorboard", "torch"),
)
COMMANDS = ("train", "eval", "analyze", "compare", "reproduce", "plan", "recipes")
EARLY = {
    0: ("--help", "--version", *(f"{command} --help" for command in COMMANDS), "recipes", "recipes --json digits"),
    1: (
        "train digits --run-dir OTHER_RECIPE",
        "eval EMPTY",
        "analyze EMPTY",
        "compare digits --out FILE/inside",
    ),
    2: (
        *("", "trian digits", "train", "train digitz", "train digits --rh 1", "train digits --rho -1"),
        *("train digits --epochs ten", "train digits --process-count 2", "recipes zz"),
        *("eval no/such/run", "eval EMPTY --checkpoint newest", "analyze no/such/run", "analyze EMPTY --images 0"),
        *("compare digitz", "compare digits --seeds 0", "compare digits --methods magic"),
        *("reproduce", "reproduce magic", "reproduce vit --seeds 1", "reproduce vit --mesh magic"),
        *("plan digitz", "plan digits --chip magic", "plan digits --utilisation 2"),
    ),
}


def test_help_and_early_errors_load_nothing_heavy(tmp_path):
    """All commands in one process: whatever is loaded by one of them is reported for it."""
    code = f"""if True:
        import json, sys
        from looksam.cli import main
        outcomes = []
        for command in json.loads(sys.argv[1]):
            exit_code = main(command.split())
            outcomes.append([command, exit_code, [name for name in {HEAVY!r} if name in sys.modules]])
        print("\\n" + json.dumps(outcomes))
    """
    places = {name: tmp_path / name for name in ("OTHER_RECIPE", "EMPTY", "FILE")}
    for name in ("OTHER_RECIPE", "EMPTY"):
        places[name].mkdir()
    places["FILE"].touch()
    write_recipe(places["OTHER_RECIPE"], Recipe(seed=5))
    expected = []
    for exit_code, commands in EARLY.items():
        for command in commands:
            for name, place in places.items():
                command = command.replace(name, str(place))
            expected.append([command, exit_code, []])
    result = run(code, json.dumps([command for command, *_ in expected]))
    assert json.loads(result.stdout.splitlines()[-1]) == expected, result.stderr

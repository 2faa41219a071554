"""Tests run in float64 with strict dtype promotion; docstring examples with JAX's defaults, as a user's would."""

import gc
import os
import shutil
import tempfile

# Before JAX starts: eight virtual devices, of which most tests use the first, and quick rather than fast programs.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
    " --xla_force_host_platform_device_count=8"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# Compiled programs are kept until the end of the session, for tests and processes that need them again. Each worker of
# pytest-xdist has a folder of its own: JAX writes a program in place, and whoever reads half of one gets a warning,
# which is an error here.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="looksam-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Two workers on two cores: further threads would wait for each other, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import pytest
from _pytest.doctest import DoctestItem

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
# This process has the small programs in memory; processes that tests start read them, too.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)

# Traced programs are millions of objects that live on; the collector would look at them all every few seconds.
gc.freeze()
gc.set_threshold(50_000, 20, 50)

PROGRAMS = os.environ["JAX_COMPILATION_CACHE_DIR"]


def pytest_unconfigure():
    shutil.rmtree(PROGRAMS, ignore_errors=True)


@pytest.fixture
def as_users_run_it():
    """JAX's own defaults, for tests of the trainer."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def in_float64():
    """Float64 without strict promotion, which neither Optax nor a float32 image under float64 weights can do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(autouse=True)
def examples_run_as_a_user_would(request):
    if isinstance(request.node, DoctestItem):
        request.getfixturevalue("as_users_run_it")


@pytest.fixture(scope="session")
def flowers_run(tmp_path_factory):
    """The folder and the result of a small run on class folders, next to its data; tests leave it as it is."""
    from flowers import train_flowers

    return train_flowers(tmp_path_factory.mktemp("flowers"))

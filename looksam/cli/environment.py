"""The process settings of the command line: an XLA flag, memory reuse and the compilation cache.

All are environment variables, which worker processes inherit. Only what the user has left unset is set. The library
itself sets nothing: whoever imports it decides.
"""

import contextlib
import ctypes
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping

from looksam.trainer.recipe import Recipe

CACHE_DIR = "JAX_COMPILATION_CACHE_DIR"
CACHE_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
CACHE_THRESHOLD = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
CACHE_BYTES = 2**30
OFF = ("0", "false", "off", "n", "no", "f")  # as JAX reads a switch

YNN_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
YNN_VALUE = "-individual_convolution"  # its convolutions alone: small matrix products need the rest of it
# XLA aborts the process at a flag that it does not know, and an experimental one may go at any release.
YNN_JAXLIB = ("0.10.1", "0.10.2")

MALLOC = {  # variable: (number of the parameter in mallopt, value)
    "MALLOC_ARENA_MAX": (-8, 1),
    "MALLOC_MMAP_THRESHOLD_": (-3, 2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
}
OTHER_MALLOC = ("GLIBC_TUNABLES", "LD_PRELOAD")  # where the user may have set another allocator, or this one otherwise


def prepare_jax() -> None:
    """Sets what the user has left unset. Does nothing once JAX is imported, since it has read its settings by then."""
    if "jax" in sys.modules:
        return
    chosen = variables()
    os.environ.update(chosen)
    for name, (parameter, value) in MALLOC.items():
        if name in chosen:
            ctypes.CDLL(None).mallopt(parameter, value)  # this process has read its variables already


def enable_float64(recipes: Iterable[Recipe]) -> None:
    """Enables float64 in JAX if one of the recipes computes in it."""
    if any(recipe.dtype == "float64" for recipe in recipes):
        import jax

        jax.config.update("jax_enable_x64", True)


def variables() -> dict[str, str]:
    """The environment variables that the user has left unset, with values for JAX on this machine.

    Creates the cache folder, and deletes from it what is beyond its size.
    """
    chosen = cpu_flags(os.environ, _jaxlib_version(), _has_accelerator_plugin())
    malloc = memory(os.environ)
    if malloc and _has_mallopt():
        chosen |= malloc
    folder = cache_folder(os.environ, sys.platform)
    if folder is not None and _is_writable(folder):
        prune(folder, CACHE_BYTES)
        chosen[CACHE_DIR] = str(folder)
        if CACHE_THRESHOLD not in os.environ:
            chosen[CACHE_THRESHOLD] = "0"  # loading takes a tenth of the time even of the smallest programs
    return chosen


# --- the compiler flag --------------------------------------------------------------------------------------------


def cpu_flags(environ: Mapping[str, str], jaxlib: str | None, accelerator_plugin: bool) -> dict[str, str]:
    """Returns the variables that make XLA compile convolutions itself, which is faster in training than YNNPACK.

    Empty where JAX may run on an accelerator, where this jaxlib is not known to have the flag, and where the user has
    set the flag or keeps all flags in a file, whose name is then the value of XLA_FLAGS.
    """
    flags = environ.get("XLA_FLAGS", "").strip()
    platforms = environ.get("JAX_PLATFORMS", "")
    on_cpu = platforms == "cpu" if platforms else not accelerator_plugin
    if not on_cpu or jaxlib not in YNN_JAXLIB or YNN_FLAG in flags or (flags and not flags.startswith("-")):
        return {}
    return {"XLA_FLAGS": f"{flags} {YNN_FLAG}={YNN_VALUE}".strip()}


def _jaxlib_version() -> str | None:
    from importlib import metadata  # takes longer to import than the help of a command

    try:
        return metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return None  # the import of JAX will say so


def _has_accelerator_plugin() -> bool:
    """Returns whether JAX would find a plugin, in the places where it looks for them."""
    from importlib import metadata

    packages = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    return packages or bool(metadata.entry_points(group="jax_plugins"))


# --- memory -------------------------------------------------------------------------------------------------------


def memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make glibc keep the memory that a step frees, for the next step.

    XLA allocates the temporaries of a step in one piece. By default glibc returns a piece of more than 32 MiB to the
    operating system at once, which then clears every page of it for the next step: a fifth of the time of a small ViT.
    """
    if any(name in environ for name in (*MALLOC, *OTHER_MALLOC)):
        return {}
    return {name: str(value) for name, (_, value) in MALLOC.items()}


def _has_mallopt() -> bool:
    """Returns whether the allocator is glibc's, in a version that takes a high threshold. Older ones stop at 32 MiB."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(*MALLOC["MALLOC_MMAP_THRESHOLD_"]) == 1  # sets it, too


# --- the cache of compiled programs -------------------------------------------------------------------------------


def cache_folder(environ: Mapping[str, str], platform: str) -> pathlib.Path | None:
    """Returns the folder of compiled programs, where the platform keeps caches.

    None where the user has chosen a folder or turned the cache off, and for a user without a home.
    """
    if CACHE_DIR in environ or environ.get(CACHE_SWITCH, "true").lower() in OFF:
        return None
    try:
        home = pathlib.Path.home()
    except RuntimeError:
        return None
    variable, default = {
        "win32": ("LOCALAPPDATA", home / "AppData" / "Local"),
        "darwin": ("XDG_CACHE_HOME", home / "Library" / "Caches"),
    }.get(platform, ("XDG_CACHE_HOME", home / ".cache"))
    return pathlib.Path(environ.get(variable) or default).absolute() / "looksam" / "xla"


def _is_writable(folder: pathlib.Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # programs in it are run: nobody else may write there
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def prune(folder: pathlib.Path, limit: int) -> None:
    """Deletes the programs that have been unused for longest, until the rest is below ``limit`` bytes.

    JAX's own limit (jax_compilation_cache_max_size) needs filelock, which is not among our dependencies, and one entry
    that a killed process left incomplete would make it stop storing programs.
    """
    entries = []
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process may prune too
            stat = path.stat()
            entries.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > limit:
            with contextlib.suppress(OSError):
                path.unlink()

"""Virtual devices for the compiler, asked for before JAX starts."""

import os
import sys
from collections.abc import MutableMapping

COUNT = "--xla_force_host_platform_device_count"


def prepare(devices: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let JAX start on CPU with this many devices. What the user has set already stays as it is."""
    if "jax" in sys.modules and environ is os.environ:
        return  # too late to ask; whoever started JAX has chosen its devices
    flags = environ.get("XLA_FLAGS", "")
    if COUNT not in flags:
        environ["XLA_FLAGS"] = f"{flags} {COUNT}={devices}".strip()
    environ.setdefault("JAX_PLATFORMS", "cpu")


def check(devices: int, there: int) -> None:
    """Raises ValueError if JAX has started with too few devices."""
    if there < devices:
        raise ValueError(
            f"the mesh has {devices:,} devices, and JAX has started with {there:,}; "
            f"leave {COUNT} out of XLA_FLAGS and JAX_PLATFORMS unset, or pass {COUNT}={devices}."
        )

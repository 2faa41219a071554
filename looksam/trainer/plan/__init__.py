"""What a run would cost on a mesh of accelerators, from its programs and without the accelerators.

Read ``build`` first: it traces and compiles a recipe's programs. ``flops`` counts what they compute and send,
``program`` holds the result, ``chips`` turns it into hours, ``fit`` finds what the memory of a chip has room for,
``notes`` compares the hours with the paper's, and ``terminal`` prints it all. The names below load on first use:
virtual devices must be asked for before JAX starts.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looksam.trainer.plan.build import make_plan, relative_flops
    from looksam.trainer.plan.chips import (
        CHIPS,
        DEFAULT_UTILISATION,
        check_utilisation,
        find_chip,
        use_virtual_devices,
    )
    from looksam.trainer.plan.terminal import as_text

__all__ = [
    "CHIPS",
    "DEFAULT_UTILISATION",
    "as_text",
    "check_utilisation",
    "find_chip",
    "make_plan",
    "relative_flops",
    "use_virtual_devices",
]

_MODULES = {"make_plan": "build", "relative_flops": "build", "as_text": "terminal"}  # all others are in chips


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'chips')}"), name)

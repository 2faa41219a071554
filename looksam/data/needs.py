"""Optional packages, imported where they are first needed, so that looksam itself stays light."""

import importlib
from typing import Any


def require(module: str) -> Any:
    """The module, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"looksam.data needs {module}, which cannot be imported ({error}): pip install 'looksam[train]'",
            name=module,
        ) from error

"""Watches the operations of PyTorch while a test runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoSync(TorchDispatchMode):
    """Fails if Python reads a tensor's value, which on an accelerator waits for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            pytest.fail(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))

"""Flax layers for users' own models."""

from typing import Any

from flax import nnx

from looksam.convolution import conv_general_dilated


class Conv(nnx.Conv):
    """Flax's convolution with the gradients of ``looksam.conv_general_dilated``, which are fast on a CPU.

    It takes the arguments of ``flax.nnx.Conv``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, conv_general_dilated=conv_general_dilated, **kwargs)

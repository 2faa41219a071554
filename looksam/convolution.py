"""A convolution whose gradients are as fast as the convolution itself on XLA's CPU back end.

XLA:CPU has a fast kernel for convolutions of channels-last arrays. The gradients that JAX derives permute the axes
instead. In the main computation XLA puts them in order again, but it merges the copies that this takes with whatever
computes their input (normalization, activation, residual connections), in an access pattern that costs more than the
convolution; inside ``lax.cond``, ``lax.scan`` or ``lax.while_loop`` it runs a naive loop. Here both gradients are
channels-last convolutions of transposed arrays, equal to JAX's up to the order of the sums.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

SPATIAL = "HWD"  # the letters of the spatial axes
Pairs = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """How the kernel moves over the input, one entry per spatial axis."""

    strides: tuple[int, ...]
    padding: Pairs
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    groups: int  # of channels; an output depends on the input channels of its own group


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **options: Any,
) -> jax.Array:
    """Returns ``jax.lax.conv_general_dilated`` of the same arguments, with gradients that are fast on a CPU.

    Layers take it as their convolution: ``nnx.Conv(..., conv_general_dilated=looksam.conv_general_dilated)`` in Flax.

    Its own gradients are used on the CPU back end, for channels-last arrays (such as NHWC with HWIO kernels, Flax's
    layout). In all other cases, and with any further option such as ``precision``, this is JAX's function. Gradients
    may be differentiated again, forward (``jax.jvp`` of ``jax.grad``, as for Hessian-vector products) or backward;
    ``jax.jvp`` of the convolution itself raises, as for any ``jax.custom_vjp``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> image, kernel = jnp.arange(16.0).reshape(1, 4, 4, 1), jnp.ones((3, 3, 1, 1))
      >>> layout = ("NHWC", "HWIO", "NHWC")
      >>> conv = lambda k: looksam.conv_general_dilated(image, k, (1, 1), "VALID", dimension_numbers=layout)
      >>> print(conv(kernel)[0, :, :, 0])
      [[45. 54.]
       [81. 90.]]
      >>> print(jax.grad(lambda k: conv(k).sum())(kernel)[:, :, 0, 0])
      [[10. 14. 18.]
       [26. 30. 34.]
       [42. 46. 50.]]
    """
    spatial = len(window_strides)
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    last = spatial + 1
    channels_last = (0, last, *range(1, last)), (last, spatial, *range(spatial)), (0, last, *range(1, last))
    ones = (1,) * spatial
    input_dilation = tuple(lhs_dilation or ones)
    plain = tuple(numbers) == channels_last and all(value in (None, 1) for value in options.values())
    known = 1 <= spatial <= len(SPATIAL) and not (isinstance(padding, str) and input_dilation != ones)
    if not (plain and known) or jax.default_backend() != "cpu":
        return lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            dimension_numbers,
            feature_group_count,
            **options,
        )
    kernel_dilation = tuple(rhs_dilation or ones)
    if isinstance(padding, str):
        extents = [(size - 1) * dilation + 1 for size, dilation in zip(rhs.shape, kernel_dilation, strict=False)]
        padding = lax.padtype_to_pads(lhs.shape[1:-1], extents, window_strides, padding)
    pairs = tuple((int(before), int(after)) for before, after in padding)
    window = Window(tuple(window_strides), pairs, input_dilation, kernel_dilation, feature_group_count)
    return _matrix_product(lhs, rhs, window) if _is_matrix_product(rhs, window) else _convolution(lhs, rhs, window)


# --- a 1×1 convolution --------------------------------------------------------------------------------------------


def _is_matrix_product(kernel: jax.Array, window: Window) -> bool:
    ones = (1,) * len(window.strides)
    padded = any(sum(map(abs, pair)) for pair in window.padding)
    return kernel.shape[:-2] == window.input_dilation == ones and not padded and window.groups == 1


def _matrix_product(x: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    """Returns x at every stride-th position, times the kernel; its gradients are matrix products as well."""
    x = x[(slice(None), *(slice(None, None, stride) for stride in window.strides))]
    # One row per position: the kernel's gradient then contracts a single axis.
    return (x.reshape(-1, x.shape[-1]) @ kernel.reshape(kernel.shape[-2:])).reshape(*x.shape[:-1], kernel.shape[-1])


# --- any other convolution ----------------------------------------------------------------------------------------


def _jax_convolution(x: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    strides, padding, input_dilation, kernel_dilation, groups = window
    return _channels_last(x, kernel, strides, padding, input_dilation, kernel_dilation, feature_group_count=groups)


def _channels_last(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    **groups: Any,
) -> jax.Array:
    letters = SPATIAL[: len(strides)]
    layout = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    return lax.conv_general_dilated(x, kernel, strides, padding, input_dilation, kernel_dilation, layout, **groups)


def _forward(x: jax.Array, kernel: jax.Array, window: Window) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _jax_convolution(x, kernel, window), (x, kernel)  # JAX's, which a second derivative may go through


def _backward(window: Window, residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    if dy.size == 0:
        return jnp.zeros_like(x), jnp.zeros_like(kernel)
    kernel_gradient = functools.partial(_kernel_gradient, kernel.shape[:-2], window)
    return _input_gradient(dy, kernel, x.shape[1:-1], window), _compiled_apart(kernel_gradient, x, dy)


_convolution = jax.custom_vjp(_jax_convolution, nondiff_argnums=(2,))
_convolution.defvjp(_forward, _backward)


def _input_gradient(dy: jax.Array, kernel: jax.Array, sizes: tuple[int, ...], window: Window) -> jax.Array:
    """Returns the convolution of dy, with zeros between its strides, and the mirrored kernel of swapped channels."""
    extents, groups = kernel.shape[:-2], window.groups
    if max(window.strides) > 1 and max(*window.input_dilation, *window.kernel_dilation, groups) == 1:
        return _strided_input_gradient(dy, kernel, sizes, window)
    padding = []
    for i, (before, _) in enumerate(window.padding):
        reach = (extents[i] - 1) * window.kernel_dilation[i]
        total = _extent(sizes[i], window.input_dilation[i]) + reach - _extent(dy.shape[i + 1], window.strides[i])
        padding.append((reach - before, total - (reach - before)))
    return _channels_last(
        dy,
        _mirrored(kernel, groups),
        window.input_dilation,
        padding,
        window.strides,
        window.kernel_dilation,
        feature_group_count=groups,
    )


def _mirrored(kernel: jax.Array, groups: int = 1) -> jax.Array:
    """Returns the kernel mirrored along its spatial axes, with input and output channels swapped within each group."""
    *extents, n_in, n_out = kernel.shape
    grouped = jnp.flip(kernel, range(len(extents))).reshape(*extents, n_in, groups, n_out // groups)
    return _ordered(jnp.swapaxes(grouped, -1, -3).reshape(*extents, n_out // groups, groups * n_in))


def _strided_input_gradient(dy: jax.Array, kernel: jax.Array, sizes: tuple[int, ...], window: Window) -> jax.Array:
    """Returns the input gradient without zeros: one small convolution for each position within a stride, interleaved.

    Along an axis of stride s, position s q + r of the input meets the taps t with t = r + before (mod s) only: every
    s-th weight.
    """
    spatial, ones = len(sizes), (1,) * len(sizes)
    lengths = [-(-size // stride) for size, stride in zip(sizes, window.strides, strict=True)]
    parts = []
    for remainders in itertools.product(*map(range, window.strides)):
        taps, padding = [], []
        for i, remainder in enumerate(remainders):
            shift, first = divmod(remainder + window.padding[i][0], window.strides[i])
            taps.append(slice(first, None, window.strides[i]))
            count = len(range(kernel.shape[i])[taps[-1]])
            padding.append((count - 1 - shift, lengths[i] + shift - dy.shape[i + 1]))
        own = kernel[tuple(taps)]
        if own.size == 0:
            parts.append(jnp.zeros((dy.shape[0], *lengths, kernel.shape[-2]), dy.dtype))
        else:
            parts.append(_channels_last(dy, _mirrored(own), ones, padding, ones, ones))
    # (remainders, images, quotients, channels) -> (images, (quotient, remainder) of each axis, channels)
    grid = jnp.stack(parts).reshape(*window.strides, *parts[0].shape)
    axes = [spatial, *itertools.chain(*((spatial + 1 + i, i) for i in range(spatial))), 2 * spatial + 1]
    whole = [length * stride for length, stride in zip(lengths, window.strides, strict=True)]
    interleaved = grid.transpose(axes).reshape(dy.shape[0], *whole, kernel.shape[-2])
    return interleaved[(slice(None), *map(slice, sizes))]


def _kernel_gradient(extents: tuple[int, ...], window: Window, x: jax.Array, dy: jax.Array) -> jax.Array:
    """Returns the convolution of x and dy with the images as channels, one "image" per input channel of x."""
    padding = []
    for i, (before, _) in enumerate(window.padding):
        total = (extents[i] - 1) * window.kernel_dilation[i] + _extent(dy.shape[i + 1], window.strides[i])
        padding.append((before, total - _extent(x.shape[i + 1], window.input_dilation[i]) - before))
    gradient = _channels_last(
        _ordered(jnp.swapaxes(x, 0, -1)),
        _ordered(jnp.moveaxis(dy, 0, -2)),
        window.kernel_dilation,
        padding,
        window.input_dilation,
        window.strides,
        batch_group_count=window.groups,
    )
    return jnp.moveaxis(_ordered(gradient), 0, -2)


def _extent(size: int, dilation: int) -> int:
    """The length of an axis after zeros are put between its entries."""
    return (size - 1) * dilation + 1


def _ordered(x: jax.Array) -> jax.Array:
    """Returns x; keeps XLA from merging a transposition with a convolution, whose axes would be permuted again."""
    ordered: jax.Array = lax.optimization_barrier(x)
    return ordered


def _compiled_apart(function: Callable[..., jax.Array], *args: jax.Array) -> jax.Array:
    """Returns ``function(*args)``, in a branch of its own that XLA does not merge with what computes ``args``.

    Otherwise it computes ``args`` a second time, in the order of the transposed array: on a CPU each element is then
    in another page of memory, and that takes longer than the convolution.
    """
    result = jax.eval_shape(function, *args)
    always = lax.optimization_barrier(jnp.ones((), bool))  # or XLA would remove the branch
    # Made like the last argument, the zeros may differ from device to device inside shard_map, as the result does.
    zeros = lambda *args: lax.full_like(args[-1], 0, shape=result.shape, dtype=result.dtype)
    chosen: jax.Array = lax.cond(always, function, zeros, *args)
    return chosen

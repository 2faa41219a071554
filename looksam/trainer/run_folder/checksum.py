"""A checksum of arrays that are sharded over devices and processes, of which none need hold the whole.

Each device sums hashes of its own numbers, modulo 2³², so that neither order nor sharding matters: an array has the
same checksum on every mesh, in the host's memory, and after a checkpoint of it was written and read. A change of any
one number always shows; the odds that several changes cancel are 2⁻⁶⁴.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def checksum(array: Any) -> jax.Array:
    """Returns 64 bits, as two words, that depend on dtype, shape and every bit of an array."""
    seed = np.uint32(zlib.crc32(f"{array.dtype}{tuple(array.shape)}".encode()))
    if not isinstance(array, jax.Array):
        return _summed_hashes(None)(_bits_on_host(np.asarray(array)), seed)
    mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
    return _summed_hashes(mesh)(array, seed)


def as_text(value: jax.Array) -> str:
    """Returns a checksum as 16 hexadecimal digits."""
    return "".join(f"{int(word):08x}" for word in np.asarray(value))


@functools.cache  # so that each shape compiles once
def _summed_hashes(mesh: Mesh | None) -> Callable[[Any, np.uint32], jax.Array]:
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())

    def summed(array: jax.Array, seed: jax.Array) -> jax.Array:
        words = _bits(array)
        index = jnp.zeros(words.shape, jnp.uint32)
        for axis, size in enumerate(words.shape):
            index = index * np.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        place = _mixed(index * np.uint32(0x9E3779B9) + seed)
        hashes = _mixed(words ^ place), _mixed(words + _mixed(place))
        return jnp.stack([jnp.sum(part, dtype=jnp.uint32) for part in hashes])

    return jax.jit(summed, out_shardings=everywhere)


def _mixed(x: jax.Array) -> jax.Array:
    """Returns a one-to-one map of the words in which each bit depends on all of them (MurmurHash3's last step)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _bits(array: jax.Array) -> jax.Array:
    """Returns the bits of an array as uint32, with one more axis for numbers of more than one word."""
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], axis=-1)
    word = jnp.dtype(f"uint{8 * min(array.dtype.itemsize, 4)}")
    bits = jax.lax.bitcast_convert_type(array, word).astype(jnp.uint32)
    return bits.reshape(*bits.shape, 1) if array.dtype.itemsize <= 4 else bits


def _bits_on_host(array: np.ndarray) -> np.ndarray:
    """Returns the same words of a NumPy array, whose dtype JAX may not have."""
    word = np.dtype(f"uint{8 * min(array.dtype.itemsize, 4)}")
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(word)

"""The generator behind every random number: Philox4x32-10, in NumPy.

It is counter-based: word ``j`` of a stream is a function of (key, tag, j) alone, so numbers can be
drawn in any order, in parallel, and equal on all devices. Source: Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011; the known-answer vectors of their
Random123 library are in the tests.

How a draw uses it. The state of a stream is a uint64 vector (key, counter). Element ``i`` of a
draw is number ``e = counter + i`` of the stream, and the next state is (key, counter + size).
A draw of ``k`` words per element reads the words ``k e .. k e + k - 1``, where word ``j`` is word
``j % 4`` of the block with the 128-bit counter (low 32 bits of j // 4, high 32 bits, tag, 0) under
the 64-bit key. The tag is ``k``: draws of different widths from one state never share a word.

Draws by rejection have blocks of their own for each element, with a tag of their own and the number
of the proposal as the last word of the counter (:func:`block_words`).

Keys. The key of stream ``i`` of a seed is made of the first two words of the block with counter
(low i, high i, 0, ``KEY_TAG``) under the key ``seed``, low word first; a seed of more than 64 bits,
or a list of them, is folded first (:func:`fold_seed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.typing import Array, DtypeLike

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MASK = 0xFFFFFFFFFFFFFFFF
_CHUNK_BLOCKS = 1 << 13  # so many blocks have intermediate arrays that fit in the cache
KEY_TAG = 0x5EED
ROUNDS = 10


def philox4x32(counter: tuple[Any, Any, Any, Any], key: int) -> tuple[Any, Any, Any, Any]:
    """Ten rounds on four 32-bit counter words (uint64 arrays or numbers) under a 64-bit key.

    Returns the four words as uint64 arrays that hold 32 bits each.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> _32) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _32) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(state: Array, size: int, per_element: int) -> Array:
    """The 32-bit words of a draw of ``size`` elements: a uint32 array (size, per_element)."""
    key, counter = int(state[0]), int(state[1])
    start = counter * per_element
    first, skip = divmod(start, 4)
    count = -(-(skip + size * per_element) // 4)
    out = np.empty((count, 4), np.uint32)
    for at in range(0, count, _CHUNK_BLOCKS):
        part = out[at : at + _CHUNK_BLOCKS]
        blocks = np.uint64(first + at & _MASK) + np.arange(len(part), dtype=np.uint64)
        lanes = philox4x32((blocks & _LOW, blocks >> _32, per_element, 0), key)
        for lane, values in enumerate(lanes):
            part[:, lane] = values
    return out.reshape(-1)[skip : skip + size * per_element].reshape(size, per_element)


def block_words(state: Array, elements: Array, tag: int, number: int) -> tuple[Array, ...]:
    """The four words of a block for each of these elements of a draw, as uint64 arrays.

    Its counter is (low and high half of the element's number in the stream, tag, number). The tags
    of :func:`words`, 1 to 4, are refused.
    """
    if tag <= 4:
        raise ValueError(f"tag {tag} is that of a width")
    at = np.uint64(int(state[1])) + elements.astype(np.uint64)
    return philox4x32((at & _LOW, at >> _32, tag, number), int(state[0]))


def open_of_two(low: Array, high: Array) -> Any:
    """The 52-bit uniform of (0, 1) of the 64-bit number of two words (uint64 arrays)."""
    cells = (low | high << _32) >> np.uint64(12)
    return (cells.astype(np.float64) * 2.0 + 1.0) * 2.0**-53


def words64(state: Array, size: int) -> Array:
    """One 64-bit word (two 32-bit words, low one first) for each of ``size`` elements."""
    pair = words(state, size, 2).astype(np.uint64)
    return pair[:, 0] | pair[:, 1] << _32


def mulhi64(a: Any, b: Array) -> Any:
    """The high 64 bits of the 128-bit product of uint64 arrays."""
    a0, a1, b0, b1 = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a1 * b0 + (a0 * b0 >> _32)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _32) + (other >> _32)


def open_uniform(state: Array, size: int, dtype: DtypeLike) -> Array:
    """Uniform values of the open interval (0, 1): the midpoints of 2**n equal cells.

    n is 23 for float32, 52 for float64, 10 for float16, 7 for bfloat16: every value is exact, and
    neither 0 nor 1 occurs, so logarithms are finite.
    """
    kind = np.dtype(dtype)
    if kind == np.float64:
        w = words64(state, size)
        wide: Array = open_of_two(w & _LOW, w >> _32)
        return wide
    bits = {"float32": 23, "float16": 10, "bfloat16": 7}[kind.name]
    cells = (words(state, size, 1)[:, 0] >> np.uint32(32 - bits)).astype(np.float32)
    return ((cells * np.float32(2) + np.float32(1)) * np.float32(2.0 ** -(bits + 1))).astype(kind)


def stream_key(seed: int, index: int) -> int:
    """The 64-bit key of stream ``index`` of a 64-bit seed."""
    low, high, *_ = philox4x32((index & 0xFFFFFFFF, index >> 32 & 0xFFFFFFFF, 0, KEY_TAG), seed)
    return int(low) | int(high) << 32


def fold_seed(parts: Sequence[int]) -> int:
    """One 64-bit seed from several (or from one that is wider): each part keys the next."""
    limbs = [limb for part in parts for limb in _limbs(part)]
    seed = limbs[0]
    for limb in limbs[1:]:
        seed = stream_key(seed, limb)
    return seed


def _limbs(number: int) -> list[int]:
    limbs = [number & _MASK]
    while number := number >> 64:
        limbs.append(number & _MASK)
    return limbs

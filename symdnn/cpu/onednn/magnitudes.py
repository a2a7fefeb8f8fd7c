"""How large the elements of an operand are, and whether one is NaN."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from symdnn.cpu.ir.fault_check_ir import ARRAY, CHUNK_ELEMENTS, ELEMENTS, FLAG, fault_check_ir
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.threads import threads
from symdnn.graph.typing import Array

#: What compiled code compares magnitudes with: 2 to the power of 32.
_POWER = 32
_ELEMENTS_PER_THREAD = 1 << 16


def bound(x: Array) -> float:
    """A number that no magnitude exceeds: 2**32, or :func:`largest` if one reaches that.

    Compiled code looks at the elements once, in half the time of NumPy's two reductions.
    """
    run = _reaches(8 * x.dtype.itemsize) if x.flags.c_contiguous else None
    if run is None:
        return largest(x)
    words = [threads.threads(x.size, _ELEMENTS_PER_THREAD), -(-x.size // CHUNK_ELEMENTS), 1]
    block = (ctypes.c_int64 * (ARRAY + 1))(*words)
    block[ELEMENTS], block[ARRAY] = x.size, id(x)
    run(block)
    return largest(x) if block[FLAG] else 2.0**_POWER


@cache
def _reaches(bits: int) -> Any:
    """Code that sets a flag where a float32 or bfloat16 is 2**32 or more, or NaN."""
    if compiler_refusal() is not None:
        return None
    first = (127 + _POWER) << (bits - 9)
    return threads.kernel(fault_check_ir, bits, ((first, (1 << (bits - 1)) - first),))


def largest(x: Any) -> float:
    """The largest magnitude of an element, NaN if there is one.

    Bits of bfloat16 are in the order of magnitudes, with and without the sign.
    """
    if x.dtype.itemsize > 2:
        with np.errstate(all="ignore"):
            high, low = (f.reduce(x, axis=None, initial=0) for f in (np.maximum, np.minimum))
            return float(np.maximum(high, -low))
    bits = x.reshape(-1)
    positive, negative = (np.maximum.reduce(bits.view(k), initial=0) for k in (np.int16, np.uint16))
    most = max(int(positive), int(negative) & 0x7FFF)
    return float(np.uint32(most << 16).view(np.float32))

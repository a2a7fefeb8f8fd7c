"""Helpers for tests of compiled CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call
from symdnn.graph.op import Op
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.rnn import RESERVE

needs_compiler = pytest.mark.skipif(
    bool(jit.problem() or threads.problem()), reason="llvmlite or libgomp is missing"
)
#: A file's ``pytestmark``: all that can be is compiled, however small it is.
compiled = [needs_compiler, pytest.mark.usefixtures("always")]
#: Rooms whose kernels are compiled, in parts that take as long as each other.
ROOMS = ("gemm rnn conv reduce", "elementwise pool ir")
#: Bytes before and behind a result: as many as keep it as aligned as memory is without them.
MARGIN_BYTES = 64


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(array.dtype.name, array.shape)


def call_of(op: Op, arrays: Sequence[Any], *results: TensorType) -> Call:
    """The call of a kernel on ``arrays``; without ``results``, the result has the type of the
    first.
    """
    types = tuple(type_of(np.asarray(a)) for a in arrays)
    return Call(op, types, results or types[:1], NO_HINTS)


def called(op: Op, arrays: Sequence[Any]) -> Call:
    """What a kernel is asked for ``arrays``, its results as the op says.

    Numbers are host inputs; what is neither is what a recurrent network kept.
    """
    plain = [isinstance(a, int | np.ndarray | np.generic) for a in arrays]
    types = [type_of(np.asarray(a)) if p else RESERVE for a, p in zip(arrays, plain)]
    host = {i: int(a) for i, a in enumerate(arrays) if plain[i] and np.ndim(a) == 0}
    shapes = op.shapes(types, [getattr(t, "shape", ()) for t in types], host)
    outs = zip(op.output_types(types), shapes, strict=True)
    outputs = tuple(t if t == RESERVE else t.with_shape(s) for t, s in outs)
    return Call(op, tuple(types), outputs, NO_HINTS)


def launched(kernel: Any, call: Call, arrays: Sequence[Any], taken: Any = (None,)) -> list[Any]:
    """The kernel's results, in memory that held other values; memory around them, and around its
    scratch memory, must not change. What it may refuse is in ``taken`` (None: anything)."""
    assert taken is None or kernel.refuses(call) in taken
    outs, margins = [], []
    for t in call.outputs:
        if t == RESERVE:
            outs.append(None)
            continue
        count = MARGIN_BYTES // t.numpy.itemsize
        memory = np.full(int(np.prod(t.shape)) + 2 * count, 7, t.numpy)
        outs.append(memory[count : memory.size - count].reshape(t.shape))
        margins += [memory[:count], memory[memory.size - count :]]
    size = kernel.workspace_bytes(call)
    memory = np.full(size + 128, 7, np.uint8)
    start = -memory.ctypes.data % 64
    scratch = (memory[start : start + size],) if size else ()
    margins += [memory[:start], memory[start + size :]]
    found = kernel.bind(call)(list(arrays), outs, *scratch) or outs
    assert all((m == m.dtype.type(7)).all() for m in margins), "it writes beside its result"
    return found

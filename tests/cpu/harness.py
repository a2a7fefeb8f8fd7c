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

needs_compiler = pytest.mark.skipif(
    bool(jit.problem() or threads.problem()), reason="llvmlite or libgomp is missing"
)
#: A file's ``pytestmark``: all that can be is compiled, however small it is.
compiled = [needs_compiler, pytest.mark.usefixtures("always")]
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


def launched(kernel: Any, call: Call, arrays: Sequence[Any], taken: Any = (None,)) -> list[Any]:
    """The kernel's results, in memory that held other values; memory around them must not
    change.
    """
    assert kernel.refuses(call) in taken
    outs, margins = [], []
    for t in call.outputs:
        count = MARGIN_BYTES // t.numpy.itemsize
        memory = np.full(int(np.prod(t.shape)) + 2 * count, 7, t.numpy)
        outs.append(memory[count : memory.size - count].reshape(t.shape))
        margins += [memory[:count], memory[memory.size - count :]]
    kernel.bind(call)(list(arrays), outs)
    assert all((m == m.dtype.type(7)).all() for m in margins), "it writes beside its result"
    return outs

"""The checks of a guarded run: after each step those of its results, first those of the inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.cpu.execution.step_codegen import PlanStep
from symdnn.cpu.ir.fault_check_ir import ARRAY, CHUNK_ELEMENTS, ELEMENTS, FLAG, fault_check_ir
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.threads import threads
from symdnn.errors import NanDetected
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.guard import FAULT, ValueGuard, part_dtype
from symdnn.graph.variable import Variable

#: Elements for which waking up another thread pays.
_ELEMENTS_PER_THREAD = 1 << 16


def with_checks(
    steps: Sequence[PlanStep], entering: Sequence[Variable], index: Mapping[Variable, int],
    guard: ValueGuard,
) -> list[PlanStep]:  # fmt: skip
    """The steps of a plan, with checks of the values ``entering`` and of each step's results."""
    found = [_step(v, index, guard) for v in entering if v in index and guard.watches(v.type)]
    for step in steps:
        found.append(step)
        if not step.by_view:
            found += [_step(v, index, guard) for v in guard.checked(step.node)]
    return found


def _step(v: Variable, index: Mapping[Variable, int], guard: ValueGuard) -> PlanStep:
    launch = FaultCheckLaunch(guard.of(v), v.type.numpy)
    return PlanStep(guard.node(v), launch, (index[v],), (), False)


class FaultCheckLaunch(CpuLaunch):
    """``launch([array], [])``: raises :class:`~symdnn.errors.NanDetected` if there is a fault."""

    def __init__(self, guard: ValueGuard, dtype: Any) -> None:
        part = numpy_dtype(part_dtype(dtype.name))
        self._guard, self._parts = guard, dtype.itemsize // part.itemsize
        compiled = compiler_refusal() is None
        ranges = guard.ranges(dtype.name)
        self._run = threads.kernel(fault_check_ir, 8 * part.itemsize, ranges) if compiled else None

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Check the array."""
        (a,) = inputs
        if self._run is None:
            faulty = self._guard.is_faulty(a)
        else:
            a = np.asarray(a) if _is_dense(a) else np.ascontiguousarray(a)
            words = self._words(a)
            words[ARRAY] = id(a)
            self._run(words)
            faulty = bool(words[FLAG])
        if faulty:
            raise NanDetected(FAULT)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> FastCall | None:
        """The call without Python, for a dense array; a fault stops it."""
        (a,) = inputs
        if self._run is None or not _is_dense(a):
            return None
        return FastCall.of(self._run, self._words(a), (ARRAY,), status=FLAG)

    def _words(self, a: Any) -> Any:
        count = a.size * self._parts
        shared = threads.threads(count, _ELEMENTS_PER_THREAD)
        words = [0] * (ARRAY + 1)
        words[:3] = [shared, -(-count // CHUNK_ELEMENTS), 1]
        words[ELEMENTS] = count
        return (ctypes.c_int64 * len(words))(*words)


def _is_dense(a: Any) -> bool:
    """Whether the elements fill their memory, in any order of the dimensions."""
    if a.flags.c_contiguous:
        return True
    order = sorted(range(a.ndim), key=lambda d: -a.strides[d])
    return bool(a.transpose(order).flags.c_contiguous)

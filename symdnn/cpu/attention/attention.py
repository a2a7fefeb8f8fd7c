"""Attention and its gradient by compiled kernels that never store the scores.

Flash attention (Dao et al. 2022) on a processor; :mod:`symdnn.cpu.attention.tasks_ir` has the
loops.
"""

from __future__ import annotations

import ctypes
import struct
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.attention.attention_ir import attention_ir
from symdnn.cpu.attention.plan import (
    GRADIENT,
    RESULT,
    STRIDED,
    AttentionPlan,
    Blocks,
    words,
)
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import GrowingScratch, aligned
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.random.random import next_state

#: With fewer multiplications NumPy is faster than compiling.
_MIN_WORK_TO_COMPILE = 1 << 16
#: Least number of multiplications of a thread.
_MULTIPLICATIONS_PER_THREAD = 1 << 17
#: A window without an end.
_NO_END = 1 << 40
#: Each thread's scratch memory is aligned to pages.
_PAGE_BYTES = 4096
_DTYPES, _MASKS = ("float32", "bfloat16"), ("bool", "float32", "bfloat16")
_WORDS = words()


class AttentionKernel(Kernel[Attention | AttentionGrad]):
    """Attention and its gradient, in tiles of queries and keys."""

    name = "llvm.attention"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Attention | AttentionGrad]) -> str | None:
        """Needs float32 or bfloat16, and no gradient of a mask."""
        op, types = call.op, call.inputs
        if types[0].dtype not in _DTYPES:
            return "it computes in float32"
        if isinstance(op, AttentionGrad):
            out, lse, *cotangents = (t.dtype for t in types[3 : op.first_extra])
            own = types[0].dtype
            if (out, lse, *cotangents) != (own, "float32", own, "float32")[: 2 + len(cotangents)]:
                return "it reads results of the queries' dtype, log-sum-exps of float32"
        extras = op.how.named(types[_first_extra(op) :])
        mask = extras.get("mask")
        if mask is not None:
            if isinstance(op, AttentionGrad) and op.of_mask and mask.is_float:
                return "it has no gradient of a mask"
            if mask.dtype not in _MASKS:
                return f"a mask is one of {', '.join(_MASKS)}"
            if mask.shape[3] == 1:
                return "a mask has an entry for each key"
        if jit.problem() == "" and jit.vector_width() < 8:
            return "it is for processors with AVX"
        return compile_refusal((*types, *call.outputs), lambda: _work(call), _MIN_WORK_TO_COMPILE)

    def workspace_bytes(self, call: Call[Attention | AttentionGrad]) -> int:
        """Tiles of every thread."""
        return _Sizes(call).scratch_bytes

    def bind(self, call: Call[Attention | AttentionGrad]) -> CpuLaunch:
        """A launch for operands with any strides."""
        return _AttentionLaunch(call)

    def begin(self, call: Call[Attention | AttentionGrad]) -> None:
        """Queue the compilation of the module, which is the same for all sizes."""
        threads.kernel(attention_ir, _plan_of(call))

    def details(self, call: Call[Attention | AttentionGrad]) -> str:
        """The number of threads and the size of a tile."""
        found = _Sizes(call)
        return f"{found.threads} threads, tiles of {found.blocks.block_q} x {found.blocks.block_k}"


def _first_extra(op: Attention | AttentionGrad) -> int:
    return op.first_extra if isinstance(op, AttentionGrad) else 3


def _plan_of(call: Call[Attention | AttentionGrad]) -> AttentionPlan:
    op, how = call.op, call.op.how
    extras = how.named(call.inputs[_first_extra(op) :])
    dtypes = {n: t.dtype for n, t in extras.items() if n not in ("state", "rate")}
    return AttentionPlan(
        jit.vector_width(), call.inputs[0].dtype, isinstance(op, AttentionGrad), how.banded,
        bool(how.softcap), drops="state" in extras,
        of_lse=isinstance(op, AttentionGrad) and op.of_lse, **dtypes,
    )  # fmt: skip


def _work(call: Call[Attention | AttentionGrad]) -> int:
    """Multiplications of a pass over all scores; 0 where an operand or a result is empty."""
    (b, h, t, d), s, e = call.inputs[0].shape, call.inputs[1].shape[2], call.inputs[2].shape[3]
    return prod((b, h, t, s)) * (d + e) if min(d, e) > 0 else 0


class _Sizes:
    """Sizes of a call: its tiles, tasks, threads and scratch memory."""

    def __init__(self, call: Call[Attention | AttentionGrad]) -> None:
        (b, h, t, d), (_, g, s, _) = call.inputs[0].shape, call.inputs[1].shape
        e = call.inputs[2].shape[3]
        self.plan = _plan_of(call)
        self.blocks = blocks = Blocks(self.plan, t, s, (d, e))
        blocks_q = -(-t // blocks.block_q)
        parts = blocks.parts(b * g, h // g) if self.plan.backward else 1
        self.tasks = b * g * parts if self.plan.backward else b * h * blocks_q
        self.threads = min(threads.threads(_work(call), _MULTIPLICATIONS_PER_THREAD), self.tasks)
        self.places, at = {}, 0
        for name, count in blocks.floats().items():
            self.places[name] = at
            at += aligned(4 * count)
        self.own = -(-at // _PAGE_BYTES) * _PAGE_BYTES
        partial = aligned(4 * s * (d + e)) if parts > 1 else 0
        self.scratch_bytes = self.own * self.threads + self.tasks * partial
        how = call.op.how
        scale = 1 / np.sqrt(max(d, 1)) if how.scale is None else how.scale
        self.words: dict[str, int] = {
            **self.places, "threads": self.threads, "tasks": self.tasks, "own": self.own,
            "heads": h, "groups": g, "share": h // g, "queries": t, "keys": s, "features": d,
            "values": e, "block_q": blocks.block_q, "block_k": blocks.block_k,
            "blocks_q": blocks_q, "line": blocks.line,
            "left": _NO_END if how.left is None else min(how.left, _NO_END),
            "right": _NO_END if how.right is None else min(how.right, _NO_END),
            "parts": parts, "partial": partial,
            "gathers": b * g * -(-s // blocks.block_k) if parts > 1 else 0,
            "from_last": int(how.bottom_right), "scale": _bits(scale), "cap": _bits(how.softcap),
        }  # fmt: skip


def _bits(number: float) -> int:
    """A float32's bits."""
    (found,) = struct.unpack("<i", struct.pack("<f", number))
    return int(found)


class _AttentionLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)`` with a cache of blocks by the operands' strides."""

    def __init__(self, call: Call[Attention | AttentionGrad]) -> None:
        self._sizes = _Sizes(call)
        plan, op = self._sizes.plan, call.op
        self._draws = plan.drops and not plan.backward
        self._scores = prod((*call.inputs[0].shape[:3], call.inputs[1].shape[2]))
        names = [n for n in (GRADIENT if plan.backward else RESULT) if n != "dlse" or plan.of_lse]
        results = 3 if plan.backward else 2
        self._names = [*names[:-results], *op.how.extras, *names[-results:]]
        self._at = [_WORDS.index(n) for n in self._names]
        self._run = threads.kernel(attention_ir, plan)
        self._blocks: dict[Any, Any] = {}
        self._memory = GrowingScratch()

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Compute every result."""
        results = list(outputs[: len(self._names) - len(inputs)])
        arrays = [*inputs, *results]
        dense = [self._fitting(n, x) for n, x in zip(self._names, arrays)]
        words = self._words(dense)
        for at, array in zip(self._at, dense):
            words[at] = id(array)
        words[_SCRATCH] = id(self._scratch(workspace))
        self._run(words)
        for whole, out in zip(dense[len(inputs) :], results):
            if whole is not out:
                np.copyto(out, whole)
        if self._draws:
            np.copyto(outputs[2], next_state(inputs[self._names.index("state")], self._scores))

    def native(
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCall | None:
        """For operands with these strides; none where a random state follows."""
        arrays = [*inputs, *outputs]
        if self._draws or any(self._fitting(n, x) is not x for n, x in zip(self._names, arrays)):
            return None
        words = self._words(arrays)
        scratch = self._scratch(workspace)
        at = [] if workspace is None else [-1 if scratch is not workspace else _SCRATCH]
        words[_SCRATCH] = id(scratch)
        return FastCall.of(self._run, words, [*self._at, *at], keep=scratch)

    def _fitting(self, name: str, array: Array) -> Any:
        """The array, or a contiguous copy where its last dimension is strided."""
        if name in STRIDED:
            fits = array.shape[-1] == 1 or array.strides[-1] == array.itemsize
        else:
            fits = array.flags.c_contiguous
        return array if fits else np.ascontiguousarray(array)

    def _scratch(self, workspace: Array | None) -> Any:
        return self._memory.of(workspace, self._sizes.scratch_bytes)

    def _words(self, arrays: Arrays) -> Any:
        """The block for operands of these strides."""
        key = tuple([x.strides for x in arrays])
        if key not in self._blocks:
            values = dict(self._sizes.words)
            for name, x in zip(self._names, arrays):
                if name in STRIDED:
                    steps = (0 if n == 1 else step for n, step in zip(x.shape, x.strides))
                    values |= dict(zip((f"{name}_{axis}" for axis in "bht"), steps))
            self._blocks[key] = (ctypes.c_int64 * len(_WORDS))(*(values.get(n, 0) for n in _WORDS))
        return self._blocks[key]


_SCRATCH = _WORDS.index("scratch")

KERNELS: tuple[Row, ...] = (((Attention, AttentionGrad), (AttentionKernel(),)),)

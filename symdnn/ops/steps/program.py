"""The program of a scan's loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.graph.type import TensorType, dtype_name, numpy_dtype
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.block import Rules
from symdnn.ops.steps.code import MAX_BYTES, Code, Given, NotLowered, same
from symdnn.ops.steps.statements import LoopProgram, Repeat, Statement, View, dense
from symdnn.ops.steps.step import Step, bytes_of, collected_shapes, dtype_of, entry

#: The index of the program's own loop.
_STEP = "step0"


def lowered_loop(
    op: Scan, inputs: Sequence[Any], rules: Rules, most_bytes: int = MAX_BYTES
) -> tuple[LoopProgram, Code]:
    """The program of a scan of these arrays; raises :class:`NotLowered` where there is none.

    It is for all arrays of these shapes and strides, and for the values in ``Code.values``. Values
    inside of it have ``most_bytes``.
    """
    try:
        return _lowered(op, inputs, rules, Code(most_bytes))
    except SymdnnError as error:  # the loop itself raises it again
        raise NotLowered(str(error)) from error


def _lowered(op: Scan, inputs: Sequence[Any], rules: Rules, code: Code) -> tuple[LoopProgram, Code]:
    if op.inner.unmergeable or op.inner.host_callback or op.inner.ordered:
        raise NotLowered("a step has effects")
    if any(not isinstance(t, TensorType) for t in (*op.inner.input_types, *op.inner.output_types)):
        raise NotLowered("a step has values that are no tensors")
    given = op.split(inputs)
    if any(0 in a.shape for a in inputs):
        raise NotLowered("an array has no elements")
    views = [code.array("input", i, _dtype(a), a.shape, a.strides) for i, a in enumerate(inputs)]
    places = op.split(views)
    entries = [entry(v, 0).moved(_STEP, v.steps[0]) for v in places.sequences]
    first_other = len(inputs) - len(given.others)
    others: list[Any] = [
        Given(v, int(a), first_other + i) if isinstance(a, np.ndarray) and _is_count(a) else v
        for i, (v, a) in enumerate(zip(places.others, given.others, strict=True))
    ]
    states: list[View] = []
    histories: list[View | None] = []
    begin: list[Statement] = []
    resume: list[Statement] = []
    after: list[Statement] = []
    for k, (carry, v) in enumerate(zip(op.states, places.initials, strict=True)):
        if carry.history:
            h = code.array("history", k, v.dtype, v.shape[1:], dense(v.shape[1:], v.itemsize))
            row = bytes_of(v.dtype, v.shape[1:])
            whole = replace(h, shape=v.shape, steps=dense(v.shape, v.itemsize))
            begin += same(whole, v)
            h = replace(h, offset=carry.depth * row).moved(_STEP, row)
            histories.append(h)
            states.append(h)
            continue
        now = code.array("now", k, v.dtype, v.shape, dense(v.shape, v.itemsize))
        state = code.buffer(v.dtype, v.shape)
        begin += same(state, v)
        resume += same(state, now)
        after += same(now, state)
        states.append(state)
        histories.append(None)
    step = Step(code, rules, op, _STEP, entries, states, histories, others)
    host = {i: int(inputs[i]) for i in op.host_inputs}
    code.values.update({i: v for i, v in host.items() if i})
    shapes = collected_shapes(op, [a.shape for a in inputs], host)

    def collected(k: int, shape: tuple[int, ...]) -> View:
        dtype = dtype_of(op, k)
        if 0 in shape:
            raise NotLowered("an array has no elements")
        steps = dense(shape, int(numpy_dtype(dtype).itemsize))
        view = code.array("collected", k, dtype, shape, steps, shape)
        return view.moved(_STEP, bytes_of(dtype, shape))

    body, moves, until = step.statements(collected, shapes)
    loop = Repeat(_STEP, None, tuple(body), tuple(moves), until)
    before, *rest = (tuple(block) for block in (code.before, begin, resume, after))
    sizes = len(code.roles), tuple(code.buffers)
    return LoopProgram(*sizes, before, rest[0], rest[1], loop, rest[2]), code


def _dtype(array: Any) -> str:
    """The name of an array's dtype; arrays on a device have names already."""
    return array.dtype if isinstance(array.dtype, str) else dtype_name(array.dtype)


def _is_count(array: Any) -> bool:
    """Whether it is a number on the host that may be a size."""
    return not array.shape and array.dtype.kind in "iu"

"""The memory of a segment's values: parts of buffers, and the views of them that view ops make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from symdnn.compile.plan.packing import Buffer
from symdnn.compile.plan.specialise import Specialised
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.values.strides import reshaped
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.control.checkpoint import After
from symdnn.ops.core.shape import DimShuffle, Reshape


@dataclass(frozen=True)
class View:
    """The part of a buffer that a value has: shape, strides and offset, in bytes.

    If not ``static``, its address is known only at the call. :meth:`Kernel.accepts` reads it as an
    array: ``ptr`` is then the distance to aligned memory. If not ``placed``, its offset and strides
    within the buffer are known only at the call, too: it depends on an index.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    static: bool = True
    is_copy: bool = False
    placed: bool = True
    owner: ClassVar[None] = None

    @property
    def ptr(self) -> int:
        """The address, if the buffer's is 0."""
        return self.offset

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The name of the elements' dtype."""
        return str(self._type.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self._type.numpy.itemsize)

    @property
    def _type(self) -> TensorType:
        v = self.buffer.variable
        assert v is not None, "a workspace has no elements"
        assert isinstance(v.type, TensorType), "a value of an opaque type has no elements"
        return v.type

    @property
    def contiguous(self) -> bool:
        """Whether it is C-contiguous."""
        v = self.buffer.variable
        if v is None or not isinstance(v.type, TensorType):
            return True
        plain = plain_strides(v, self.shape)
        return all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, plain))


def is_known(spec: Specialised, v: Variable) -> bool:
    """Whether the value of ``v`` is the same in every run of the plan."""
    return isinstance(v, Constant) or v in spec.sizes


def shape_of(spec: Specialised, v: Variable) -> tuple[int, ...] | None:
    """The shape of a value; None if it depends on data."""
    return tuple(v.data.shape) if isinstance(v, Constant) else spec.shapes.get(v)


def must_run(node: Apply) -> bool:
    """Whether a view op also has an effect (it prints) or reads other data (a check)."""
    if isinstance(node.op, After):
        return False
    seen = {node.op.views.get(0, 0), *node.op.host_inputs, *node.op.shape_inputs}
    return node.op.unmergeable or any(i not in seen for i in range(len(node.inputs)))


def bounds_known(spec: Specialised, node: Apply) -> bool:
    """Whether the numbers that a view op reads are the same in every run of the plan."""
    return all(is_known(spec, node.inputs[i]) for i in node.op.run_time_inputs)


def derived_view(
    spec: Specialised, node: Apply, source: View, shape: tuple[int, ...]
) -> View | None:
    """The view that the op takes of ``source``, by its reference on a dummy of equal layout."""
    viewed = node.op.views[0]
    type_ = node.inputs[viewed].type
    if 0 in shape or 0 in source.shape or any(s == -1 for s in source.strides):
        return None
    if isinstance(type_, OpaqueType):
        return None
    if isinstance(node.op, After) or node.op.shape_inputs:
        return source
    if isinstance(node.op, Reshape):
        strides = reshaped(source.shape, source.strides, shape)
        return None if strides is None else replace(source, shape=shape, strides=strides)
    if isinstance(node.op, DimShuffle):
        turned = tuple([0 if d == "x" else source.strides[int(d)] for d in node.op.pattern])
        return replace(source, shape=shape, strides=turned)
    # With the real buffer's strides, so that an op that reads the data reads valid memory.
    memory = np.empty(source.buffer.nbytes, np.uint8)
    dummy: Any = np.ndarray(source.shape, type_.numpy, memory, source.offset, source.strides)
    inputs = [
        dummy if k == viewed else _host_input(spec, v, shape, k - 1)
        for k, v in enumerate(node.inputs)
    ]
    if isinstance(node.op, Subtensor):
        inputs[1:] = node.op.with_ends(inputs[1:], source.shape, shape)
    seen = np.asarray(node.op.compute(*inputs)[0])
    if not np.may_share_memory(seen, memory):
        return None
    start = seen.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return replace(source, shape=tuple(seen.shape), strides=seen.strides, offset=start)


def _host_input(spec: Specialised, v: Variable, shape: tuple[int, ...], k: int) -> object:
    if isinstance(v, Constant):
        return v.data
    if v in spec.sizes:
        return spec.sizes[v]
    return np.int64(shape[k]) if k < len(shape) else None  # a dimension that was read from data


def byte_count(v: Variable, shape: Sequence[int]) -> int:
    """Bytes of a contiguous tensor of this shape."""
    if isinstance(v.type, OpaqueType):
        return 0
    return int(prod(shape)) * v.type.numpy.itemsize


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Bytes from the first element to the end of the outermost axis, with its padding."""
    return max(n * step for n, step in zip(shape, strides))


def plain_strides(v: Variable, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in bytes of a contiguous tensor of this shape."""
    if isinstance(v.type, OpaqueType):
        return ()
    strides: list[int] = []
    step = v.type.numpy.itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))

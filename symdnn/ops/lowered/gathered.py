"""Gather and add as one op: a graph's messages along its edges, the gradient of padding with
elements of the other side, and that of slices, which adds parts to zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.slices import IndexPattern, as_python, pattern_text
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise

__all__ = ["AddGathered", "FusedPlacedSums", "ListedSums", "PlacedSums"]


@dataclass(frozen=True)
class AddGathered(Op):
    """``x`` with elements of ``source`` added: those that ``get`` selects, where ``add`` says.

    Inputs: ``x``, ``source``, the index arrays of ``get``, then those of ``add``. The gathered
    array has the shape of the part that it is added to, and is never stored.
    ``opt/fuse/gathers.py`` makes it if a target has a kernel for it, after gradients were taken.
    """

    get: AdvancedSubtensor
    add: AdvancedIncSubtensor

    def apart(self, inputs: Sequence[Any]) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
        """``x``, ``source``, the index arrays of ``get`` and those of ``add``."""
        x, source, *rest = inputs
        count = len(self.get.arrays)
        return x, source, rest[:count], rest[count:]

    def infer(self, *inputs: TensorType) -> TensorType:
        x, source, gets, adds = self.apart(inputs)
        return self.add.infer(x, self.get.infer(source, *gets), *adds)

    def reference(self, *inputs: Array) -> Array:
        x, source, gets, adds = self.apart(inputs)
        return self.add.reference(x, self.get.reference(source, *gets), *adds)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, source, gets, adds = self.apart(shapes)
        _, source_type, get_types, add_types = self.apart(types)
        read = self.get.shapes([source_type, *get_types], [source, *gets], {})
        if read is None:
            return [x]
        value = self.get.infer(source_type, *get_types)
        return self.add.shapes([types[0], value, *add_types], [x, *read, *adds], {})

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (0,)}

    def __str__(self) -> str:
        return f"AddGathered{{{self.get}, {self.add}}}"


@dataclass(frozen=True)
class ListedSums(Op):
    """Each element is the sum of the elements of ``x`` that index lists along ``axes`` name.

    Inputs: ``x``, then for each axis an int32 matrix. Its row i has the places in ``x`` that are
    added to place i of the result, then -1. It is a scatter with known places, written as a gather:
    no atomic additions, and no array to fill with zeros. 16-bit floats are added in float32.
    ``opt/lower/increments.py`` makes it after gradients were taken.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType, *lists: TensorType) -> TensorType:
        fits = len(lists) == len(self.axes) and all(
            t.dtype == "int32" and t.ndim == 2 for t in lists
        )
        if not fits or x.ndim <= max(self.axes):
            raise TypeMismatch(self, "an array, and an int32 matrix for each axis", [x, *lists])
        sizes = dict(zip(self.axes, (t.shape[0] for t in lists), strict=True))
        return x.with_shape(tuple(sizes.get(d, n) for d, n in enumerate(x.shape)))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        sizes = dict(zip(self.axes, (s[0] for s in shapes[1:]), strict=True))
        return [tuple(sizes.get(d, n) for d, n in enumerate(shapes[0]))]

    def reference(self, x: Array, *lists: Array) -> Array:
        shape = [*x.shape]
        for axis, rows in zip(self.axes, lists, strict=True):
            shape[axis] = len(rows)
        wide = np.float32 if is_narrow_float(x.dtype.name) else x.dtype
        out = np.zeros(shape, wide)
        for terms in product(*(range(rows.shape[1]) for rows in lists)):
            part, there = x.astype(wide, copy=False), np.ones([1] * x.ndim, bool)
            for axis, rows, k in zip(self.axes, lists, terms, strict=True):
                part = part.take(rows[:, k], axis)
                along = [-1 if d == axis else 1 for d in range(x.ndim)]
                there = there & (rows[:, k] >= 0).reshape(along)
            out += np.where(there, part, 0).astype(wide, copy=False)
        return out.astype(x.dtype, copy=False)

    def __str__(self) -> str:
        return f"ListedSums{{axes={self.axes}}}"


@dataclass(frozen=True)
class PlacedSums(Op):
    """Zeros, with each ``y`` times its factor added to a part of them in turn.

    Inputs: the ``y``, which broadcast to their parts, then the sizes of the result, integer
    scalars. A part is a pattern of slices whose bounds are known; on a CPU steps are positive.
    ``opt/lower/increments.py`` makes it after gradients were taken.
    """

    static: tuple[int | None, ...]
    parts: tuple[IndexPattern, ...]
    factors: tuple[float, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(len(self.parts), len(self.parts) + len(self.static)))

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        return ()

    def infer(self, *inputs: TensorType) -> TensorType:
        ys = inputs[: len(self.parts)]
        alike = all(t.dtype == ys[0].dtype and t.ndim == len(self.static) for t in ys)
        if not alike or len(inputs) != len(self.parts) + len(self.static):
            raise TypeMismatch(self, f"{len(self.parts)} arrays of one dtype, then sizes", inputs)
        return ys[0].with_shape(self.static)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        pairs = zip(self.host_inputs, self.static, strict=True)
        whole = tuple(host[i] if s is None else s for i, s in pairs)
        for part, t, shape in zip(self.parts, types, shapes):
            IncSubtensor(part).shapes([t.with_shape(self.static), t], [whole, shape], {})
        return [whole]

    def places(self) -> Sequence[tuple[Any, ...]]:
        """The parts as NumPy's indices."""
        return [as_python(p) for p in self.parts]

    def programs(self, dtype: str) -> list[ScalarProgram]:
        """What is added for an element of each ``y``: the number times the factor."""
        found = list[ScalarProgram]()
        for factor in self.factors:
            b = Builder([dtype])
            work = "float32" if is_narrow_float(dtype) else dtype
            y = b.input(0)
            product = y if factor == 1 else (y.cast(work) * b.const(factor, work)).cast(dtype)
            found.append(b.program([product]))
        return found

    def reference(self, *inputs: Array) -> Array:
        ys, sizes = inputs[: len(self.parts)], inputs[len(self.parts) :]
        out = np.zeros([int(n) for n in sizes], ys[0].dtype)
        for place, y, factor in zip(self.places(), ys, self.factors, strict=True):
            out[place] += y if factor == 1 else y * y.dtype.type(factor)
        return out

    def __str__(self) -> str:
        texts = [
            pattern_text(part) if factor == 1 else f"{factor:g} * {pattern_text(part)}"
            for part, factor in zip(self.parts, self.factors, strict=True)
        ]
        return f"PlacedSums{{{'; '.join(texts)}}}"


@dataclass(frozen=True)
class FusedPlacedSums(Op):
    """Zeros, with the result of each scalar program added to a part of them in turn.

    Inputs: the operands of each program in turn, which broadcast to its part, then the sizes of the
    result, integer scalars. Parts are those of :class:`PlacedSums`. What is added is never stored.
    ``opt/fuse/placed.py`` makes it after gradients were taken.
    """

    static: tuple[int | None, ...]
    parts: tuple[IndexPattern, ...]
    programs: tuple[ScalarProgram, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        count = sum(len(p.inputs) for p in self.programs)
        return tuple(range(count, count + len(self.static)))

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        return ()

    def apart(self, inputs: Sequence[Any]) -> list[Sequence[Any]]:
        """The operands of each program, then the sizes."""
        found, rest = list[Sequence[Any]](), inputs
        for program in self.programs:
            found.append(rest[: len(program.inputs)])
            rest = rest[len(program.inputs) :]
        return [*found, rest]

    def sums(self) -> PlacedSums:
        """The op that adds results which are stored."""
        return PlacedSums(self.static, self.parts, (1.0,) * len(self.parts))

    def infer(self, *inputs: TensorType) -> TensorType:
        *operands, sizes = self.apart(inputs)
        fused = [FusedElemwise(p).infer(*own) for p, own in zip(self.programs, operands)]
        return self.sums().infer(*(t for ts in fused for t in ts), *sizes)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        *own_types, sizes = self.apart(types)
        *own_shapes, size_shapes = self.apart(shapes)
        made, made_shapes = list[Any](), list[Any]()
        for program, its, dims in zip(self.programs, own_types, own_shapes, strict=True):
            op = FusedElemwise(program)
            made += op.infer(*its)
            made_shapes += op.shapes(its, dims, {}) or []
        shift = len(made) - self.host_inputs[0]
        known = {i + shift: n for i, n in host.items()}
        return self.sums().shapes([*made, *sizes], [*made_shapes, *size_shapes], known)

    def reference(self, *inputs: Array) -> Array:
        *operands, sizes = self.apart(inputs)
        ys = [FusedElemwise(p).reference(*own) for p, own in zip(self.programs, operands)]
        return self.sums().reference(*(y for (y,) in ys), *sizes)

    def __str__(self) -> str:
        texts = [f"{pattern_text(part)} of {p}" for part, p in zip(self.parts, self.programs)]
        return f"FusedPlacedSums{{{'; '.join(texts)}}}"

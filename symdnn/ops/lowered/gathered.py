"""What reads elements that are selected, or adds to them: a graph's messages along its edges, the
gradient of padding with elements of the other side, that of slices, which adds parts to zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.reduce import Reduce, Sum
from symdnn.ops.array.slices import IndexPattern, as_python, pattern_text
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce

__all__ = ["FusedIndexed", "FusedPlacedSums", "ListedSums", "PlacedSums", "Selection"]


@dataclass(frozen=True)
class Selection:
    """How a program's operand is read: elements that index arrays select, their axes permuted.

    The ``pattern`` is that of a :class:`~symdnn.ops.core.shape.DimShuffle`.
    """

    get: AdvancedSubtensor
    pattern: tuple[int | str, ...]

    @property
    def arrays(self) -> int:
        """How many index arrays there are."""
        return len(self.get.arrays)

    def infer(self, source: TensorType, *arrays: TensorType) -> TensorType:
        """The type of what is read."""
        return DimShuffle(self.pattern).infer(self.get.infer(source, *arrays))

    def reference(self, source: Array, *arrays: Array) -> Array:
        """What is read."""
        return DimShuffle(self.pattern).reference(self.get.reference(source, *arrays))

    def shapes(self, types: Types, shapes: Shapes) -> Shapes:
        """The shape of what is read."""
        own = self.get.shapes(types, shapes, {})
        assert own is not None
        return DimShuffle(self.pattern).shapes([], own, {}) or []

    def __str__(self) -> str:
        return pattern_text(self.get.index)


@dataclass(frozen=True)
class FusedIndexed(MultiOp):
    """A scalar program of operands that index arrays select, which are never stored.

    Inputs: with ``adds`` the array that is added to; then what each operand of the program is read
    from, as it is or by one of the ``reads``; then the index arrays of the reads in turn, and those
    of ``adds``. With ``reductions`` each of them has a result of the program; with ``adds`` each
    result is added where one of them says, and is not stored either. ``opt/fuse/gathers.py`` makes
    it if a target has a kernel for it, after gradients were taken.
    """

    program: ScalarProgram
    reads: tuple[Selection | None, ...]
    reductions: tuple[Reduce, ...] = ()
    adds: tuple[AdvancedIncSubtensor, ...] = ()

    @property
    def never_fails(self) -> bool:
        added = all(add.in_bounds for add in self.adds)
        return added and all(r is None or r.get.in_bounds for r in self.reads)

    @property
    def body(self) -> FusedElemwise | FusedReduce:
        """The op of operands that are stored."""
        if self.reductions:
            return FusedReduce(self.program, self.reductions)
        return FusedElemwise(self.program)

    def apart(self, inputs: Sequence[Any]) -> tuple[Any, list[list[Any]], list[list[Any]]]:
        """What is added to, each operand with its index arrays, those of each of ``adds``."""
        first = int(bool(self.adds))
        count = first + len(self.reads)
        rest, found = list(inputs[count:]), list[list[Any]]()
        for source, read in zip(inputs[first:count], self.reads, strict=True):
            own = 0 if read is None else read.arrays
            found.append([source, *rest[:own]])
            del rest[:own]
        places = list[list[Any]]()
        for add in self.adds:
            own = len(add.getter().arrays)
            places.append(rest[:own])
            del rest[:own]
        return inputs[0] if first else None, found, places

    def _added(self, x: Any, made: Sequence[Any], places: Sequence[Sequence[Any]], how: Any) -> Any:
        """``x`` after all additions; ``how`` says what one of them gives."""
        for add, y, arrays in zip(self.adds, made, places, strict=True):
            x = how(add)(x, y, *arrays)
        return x

    def infer(self, *inputs: TensorType) -> Any:
        x, operands, places = self.apart(inputs)
        read = [
            own[0] if r is None else r.infer(*own)
            for r, own in zip(self.reads, operands, strict=True)
        ]
        made = self.body.infer(*read)
        return (self._added(x, made, places, lambda add: add.infer),) if self.adds else made

    def reference(self, *inputs: Array) -> Any:
        x, operands, places = self.apart(inputs)
        read = [
            own[0] if r is None else r.reference(*own)
            for r, own in zip(self.reads, operands, strict=True)
        ]
        made = self.body.reference(*read)
        return (self._added(x, made, places, lambda add: add.reference),) if self.adds else made

    def written_out(self, *inputs: Variable) -> list[Variable]:
        """The results by the ops of which it is made: what is read and added is stored."""
        x, operands, places = self.apart(inputs)
        read = [
            own[0] if r is None else DimShuffle(r.pattern)(r.get(*own))
            for r, own in zip(self.reads, operands, strict=True)
        ]
        made = self.body.make_node(*read).outputs
        return [self._added(x, made, places, lambda add: add)] if self.adds else list(made)

    def read(self, types: Types, shapes: Shapes) -> tuple[list[Any], list[Any]]:
        """Types and shapes of what the program reads."""
        _, operands, _ = self.apart(list(zip(types, shapes, strict=True)))
        found_types, found = list[Any](), list[Any]()
        for r, own in zip(self.reads, operands, strict=True):
            own_types, own_shapes = zip(*own)
            found_types.append(own_types[0] if r is None else r.infer(*own_types))
            found += own_shapes if r is None else r.shapes(own_types, own_shapes)
        return found_types, found

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        read_types, read = self.read(types, shapes)
        made = self.body.shapes(read_types, read, {})
        if not self.adds or made is None:
            return made
        values, found = self.body.infer(*read_types), shapes[0]
        places, (_, _, its) = self.apart(types)[2], self.apart(shapes)
        for add, value, dims, own, sizes in zip(self.adds, values, made, places, its, strict=True):
            (found,) = add.shapes([types[0], value, *own], [found, dims, *sizes], {}) or [found]
        return [found]

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        if self.adds:
            return {0: (0,)}
        if self.reductions:
            return {}
        own = tuple(i for i, r in enumerate(self.reads) if r is None)
        return dict.fromkeys(range(len(self.program.outputs)), own)

    def __str__(self) -> str:
        reads = ", ".join("whole" if r is None else str(r) for r in self.reads)
        places = "; ".join(pattern_text(add.index) for add in self.adds)
        return f"FusedIndexed{{{self.body} of {reads}{f' added to {places}' * bool(places)}}}"


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
class FusedPlacedSums(MultiOp):
    """Zeros, with the result of each scalar program added to a part of them in turn.

    Inputs: the operands of each program in turn, which broadcast to its part, then the sizes of the
    result, integer scalars. Parts are those of :class:`PlacedSums`. What is added is never stored.
    Further results are ``totals`` over all elements of a part: each has the number of the part, a
    program of its operands, and the sum. ``opt/fuse/placed.py`` makes it after gradients.
    """

    static: tuple[int | None, ...]
    parts: tuple[IndexPattern, ...]
    programs: tuple[ScalarProgram, ...]
    totals: tuple[tuple[int, ScalarProgram, Sum], ...] = ()

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

    def infer(self, *inputs: TensorType) -> Any:
        *operands, sizes = self.apart(inputs)
        fused = [FusedElemwise(p).infer(*own) for p, own in zip(self.programs, operands)]
        whole = self.sums().infer(*(t for ts in fused for t in ts), *sizes)
        folds = [FusedReduce(p, (r,)).infer(*operands[k]) for k, p, r in self.totals]
        return (whole, *(t for (t,) in folds))

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
        found = self.sums().shapes([*made, *sizes], [*made_shapes, *size_shapes], known) or []
        for k, p, r in self.totals:
            found = [*found, *(FusedReduce(p, (r,)).shapes(own_types[k], own_shapes[k], {}) or ())]
        return found

    def reference(self, *inputs: Array) -> Any:
        *operands, sizes = self.apart(inputs)
        ys = [FusedElemwise(p).reference(*own) for p, own in zip(self.programs, operands)]
        whole = self.sums().reference(*(y for (y,) in ys), *sizes)
        folds = [FusedReduce(p, (r,)).reference(*operands[k]) for k, p, r in self.totals]
        return (whole, *(total for (total,) in folds))

    def __str__(self) -> str:
        texts = [f"{pattern_text(part)} of {p}" for part, p in zip(self.parts, self.programs)]
        texts += [f"sum of {p}" for _, p, _ in self.totals]
        return f"FusedPlacedSums{{{'; '.join(texts)}}}"

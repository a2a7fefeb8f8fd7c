"""A row as a compiled program: arrays of its size, the function, and the expected results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import symdnn
from benchmarks.ops.rows import SIZES, Row, drawn
from symdnn.autodiff import Lop
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable

__all__ = ["NotThere", "Operands", "Program", "build", "operands", "outputs", "seen"]

#: Longest time that a reference may take to check a result, in seconds.
_REFERENCE_SECONDS = 2.0

#: The most elements of all results, as a multiple of the row's size.
_RESULT_RATIO = 4.0

#: So many numbers are drawn, and then repeated.
_MOST_DRAWN = 1 << 20

#: A result may be wrong by this many times the error of the reference in the row's own dtype.
_NOISE_RATIO = 8.0


class NotThere(Exception):
    """The row does not exist: no such dtype, or the record's sizes cannot grow."""


@dataclass
class Program:
    """A compiled row. ``wanted`` are the references' results, None where they take too long."""

    function: Any
    arrays: list[Any]
    wanted: list[Any] | None
    compile_s: float
    outs: list[Variable]
    values: dict[Variable, Any]

    def error(self, found: list[Any]) -> float | None:
        """Largest difference from the references, relative to the largest value of an output."""
        if self.wanted is None:
            return None
        return max((_difference(a, b) for a, b in zip(found, self.wanted, strict=True)), default=0)

    def noise(self) -> float:
        """By how much one unit of rounding in the operands changes the references' results."""
        rng = np.random.default_rng(2)
        nudged = {v: _nudged(rng, a) for v, a in self.values.items()}
        with np.errstate(all="ignore"):
            found = [np.asarray(v) for v in evaluate(self.outs, nudged)]
        pairs = zip(found, self.wanted or [], strict=True)
        return _NOISE_RATIO * max((_difference(a, b) for a, b in pairs), default=0)


def _nudged(rng: np.random.Generator, array: Any) -> Any:
    if np.asarray(array).dtype.kind not in "fcV":
        return array
    step = rng.choice([-1.0, 1.0], np.shape(array)) * float(ml_dtypes.finfo(array.dtype).eps)
    return np.asarray(array * (1 + step)).astype(array.dtype)


@dataclass
class Operands:
    """Arrays of a row: those of the record, and as they are passed, then gradients of results."""

    record: list[Any]
    arrays: list[Any]
    #: For each of the record's, which view of what is passed it is (:func:`seen`).
    views: list[str]
    inputs: list[Variable]
    variables: list[Variable]


def operands(row: Row, shapes_of: Callable[[list[Any]], Any] = lambda arrays: None) -> Operands:
    """The row's arrays and variables; raises :class:`NotThere`.

    ``shapes_of`` the record's operands may know the shapes of the results, or give None: then the
    references compute the results.
    """
    grown = _grown(row, [_of_dtype(a, row.dtype) for a in drawn(row.case)])
    views = [_view(row, a) for a in grown]
    inputs, variables = _inputs(row, grown)
    passed = [_behind(a, how) for a, how in zip(grown, views)]
    if row.direction == "gradient":
        results = outputs(row, variables)
        dys = [o.type(f"dy{i}") for i, o in enumerate(results)]
        shapes = shapes_of(grown)
        if shapes is None or len(shapes) != len(dys):
            shapes = [v.shape for v in evaluate(results, dict(zip(variables, grown)))]
        rng = np.random.default_rng(1)
        passed += [_drawn_like(rng, dy, s) for dy, s in zip(dys, shapes, strict=True)]
        inputs, variables = [*inputs, *dys], [*variables, *dys]
    return Operands(grown, passed, views, inputs, variables)


def build(row: Row) -> Program:
    """Compile ``row`` for the flag ``device``; raises :class:`NotThere`."""
    given = operands(row)
    count = len(given.record)
    outs = outputs(row, given.variables[:count])
    if row.direction == "gradient":
        outs = _gradients(outs, given.variables[:count], given.variables[count:])
    values = dict(zip(given.variables, [*given.record, *given.arrays[count:]]))
    wanted = _references(outs, values)
    began = time.perf_counter()
    f = symdnn.function(
        given.inputs, [symdnn.Out(o, borrow=True) for o in outs], on_unused_input="ignore"
    )
    return Program(f, given.arrays, wanted, time.perf_counter() - began, outs, values)


def seen(x: Any, how: str) -> Any:
    """An operand of a program, of what is passed: its transpose, or every second column."""
    if how == "transposed":
        return x.permute(*reversed(range(x.ndim))) if hasattr(x, "permute") else x.T
    return x[..., ::2] if how == "strided" else x


def _behind(array: Any, how: str) -> Any:
    """The array of which an operand is such a view."""
    if how == "transposed":
        return np.ascontiguousarray(array.T)
    return np.repeat(array, 2, -1) if how == "strided" else array


def _view(row: Row, array: Any) -> str:
    least = {"transposed": 2, "strided": 1}.get(row.order)
    return row.order if least and array.ndim >= least else ""


def _of_dtype(array: Any, dtype: str) -> Any:
    """Drawn numbers in another dtype: whole ones of ten times the size, signs, or those numbers."""
    if array.dtype.kind != "f" or dtype == "as drawn":
        return array
    wanted = TensorType(dtype).numpy
    if wanted.kind in "iu":
        array = np.clip(np.rint(array * 10), *(0, 255) if wanted.kind == "u" else (-127, 127))
    return (array > 0) if wanted.kind == "b" else array.astype(wanted)


def _inputs(row: Row, arrays: list[Any]) -> tuple[list[Variable], list[Variable]]:
    """The function's inputs, and the record's operands: transposes of the inputs if the row wants
    them.
    """
    inputs, variables = [], []
    for i, array in enumerate(arrays):
        static = row.case.static[i] if row.case.static else None
        shape = tuple(1 if n == 1 else None for n in array.shape)
        if static is not None:
            shape = tuple(n if s is not None else None for s, n in zip(static, array.shape))
        how = _view(row, array)
        if how == "strided":
            shape = *shape[:-1], shape[-1] and 2 * shape[-1]
        x = TensorType(array.dtype.name, shape[::-1] if how == "transposed" else shape)(f"x{i}")
        inputs.append(x)
        variables.append(seen(x, how))
    return inputs, variables


def outputs(row: Row, variables: list[Variable]) -> list[Variable]:
    """The results that the row computes, or has gradients of; :class:`NotThere` without any."""
    out = row.case.build(*variables)
    outs = list(out) if isinstance(out, list | tuple) else [out]
    outs = [o for o in outs if isinstance(o.type, TensorType)]
    if row.direction == "gradient":
        outs = [o for o in outs if o.type.is_differentiable and not o.type.is_complex]
    if not outs:
        raise NotThere("no output with a dtype")
    return outs


def _gradients(
    outs: list[Variable], variables: list[Variable], dys: list[Variable]
) -> list[Variable]:
    wrt = [v for v in variables if v.type.is_differentiable]
    try:
        return list(Lop(outs, wrt, dys, disconnected_inputs="ignore"))
    except Exception as error:
        raise NotThere(f"no gradient: {error}") from error


def _drawn_like(rng: np.random.Generator, dy: Variable, shape: tuple[int, ...]) -> Any:
    drawn_ones = rng.standard_normal(min(math.prod(shape), _MOST_DRAWN))
    return np.resize(drawn_ones.astype(dy.type.numpy), shape)


# -- sizes ----------------------------------------------------------------------------------------


def _grown(row: Row, arrays: list[Any]) -> list[Any]:
    """The arrays at the row's size: dimensions that are equal stay equal.

    All sizes grow if the record can still be built, else only those of one size.
    """
    largest = max(arrays, key=lambda a: a.size, default=None)
    if row.size == "small" or largest is None or largest.size == 0:
        return arrays
    if largest.ndim == 0:
        raise NotThere("only scalars")
    target = SIZES[row.size] / largest.size
    sizes = sorted({n for a in arrays for n in a.shape if n > 1}, reverse=True)
    before = _result_elements(row, arrays)
    for chosen in (sizes, *([n] for n in sizes)):
        count = sum(n in chosen for n in largest.shape)
        after = _result_elements(row, _resized(arrays, chosen, 2.0)) if count else 0
        if before and after:
            factor = target ** (1 / count)
            if after > before:  # as a power of the factor
                most = _RESULT_RATIO * SIZES[row.size] / before
                factor = min(factor, most ** (1 / math.log2(after / before)))
            return _resized(arrays, chosen, max(factor, 1.0))
    raise NotThere("the record's sizes cannot grow")


def _resized(arrays: list[Any], sizes: list[int], factor: float) -> list[Any]:
    """Arrays whose dimensions of ``sizes`` are longer, their values repeated."""
    grown = {n: max(n, math.ceil(n * factor)) for n in sizes}
    return [np.resize(a, [grown.get(n, n) for n in a.shape]).astype(a.dtype) for a in arrays]


def _result_elements(row: Row, arrays: list[Any]) -> int:
    """Elements of the results for these arrays; 0 if the record cannot be built from them."""
    _, variables = _inputs(row, arrays)
    try:
        outs = outputs(row, variables)
        found = evaluate(outs, dict(zip(variables, arrays)))
    except NotThere:
        raise
    except Exception:
        return 0
    return sum(f.size for f in found)


# -- right results --------------------------------------------------------------------------------


def _references(outs: list[Variable], values: dict[Variable, Any]) -> list[Any] | None:
    """The results of the ops' references; None for large arrays and slow references."""
    largest = max((np.size(v) for v in values.values()), default=0)
    if largest > SIZES["middle"] * 4 and _seconds_at(outs, values, largest) > _REFERENCE_SECONDS:
        return None
    with np.errstate(all="ignore"):
        return [np.asarray(v) for v in evaluate(outs, values)]


def _seconds_at(outs: list[Variable], values: dict[Variable, Any], largest: int) -> float:
    """Seconds that references of this many elements take, guessed by the ops' names."""
    from symdnn.graph.traverse import toposort

    slow = ("Conv", "Pool", "RNN", "Lrn", "Neib", "Ctc", "Scan", "Transformer", "Sampler", "Random")
    names = {type(n.op).__name__ for n in toposort(outs)}
    return math.inf if any(s in n for s in slow for n in names) else largest * 1e-7


def _difference(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = found.astype(kind), wanted.astype(kind)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return math.inf
    scale = float(np.abs(b[finite]).max(initial=1e-30))
    return float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale

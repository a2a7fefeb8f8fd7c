"""Kernels of leaves whose task is a line: top-k and sorts; searches in a sorted line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.ir import chosen_ir
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.ir.turn_ir import TURN_BLOCK
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.scratch import address, aligned
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS, LLVM_QUIET
from symdnn.cpu.nest import numpy_sort
from symdnn.cpu.nest.network_ir import (
    LINES,
    MAX_IN_COLUMNS,
    MAX_IN_LINES,
    NETWORK_WORDS,
    NetworkPlan,
    network_ir,
)
from symdnn.cpu.nest.search_ir import (
    BLOCK,
    MOST_COUNTED,
    SEARCH_WORDS,
    TOGETHER,
    SearchPlan,
    search_ir,
)
from symdnn.cpu.nest.select_ir import SelectPlan, select_ir, select_words
from symdnn.cpu.nest.sort_ir import SortPlan, sort_ir, sort_words
from symdnn.cpu.nest.top_k_ir import MAX_KEPT, TopKPlan, top_k_ir, top_k_words
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.values.strides import merged
from symdnn.ops.array.order_statistics import (
    MOST_SELECTED,
    ArgPartition,
    OrderStatistics,
    Partition,
)
from symdnn.ops.array.sort import ArgSort, SearchSorted, Sort, TopK

#: With fewer elements NumPy is as fast.
_MIN_ELEMENTS_TO_COMPILE = 1 << 12
#: Work for which waking up another thread pays, and that of an element of a sort, in additions.
_ADDITIONS_PER_THREAD, _SORT_ADDITIONS = 1 << 15, 8
#: The work of an element of a selection; the most elements of a sample, and by how many times the
#: root of their number a window reaches further than the place, 2.6 times the deviation.
_SELECT_ADDITIONS, _MOST_DRAWN, _REACH = 4, 1 << 14, 1.3
#: Elements of a line for each place that is looked for; shorter ones are sorted.
_PLACE_ELEMENTS = 256
#: Lengths of lines of numbers of 32 and 64 bits that are sorted by digits, where NumPy is slow:
#: shorter ones it sorts as fast, and longer ones would need much memory.
_RADIX_LENGTHS = range(1 << 10, 1 << 24)
#: Lines that are turned together before they are sorted, by the bytes of their scratch.
_MAX_BAND, _TURNED_BYTES = 16, 1 << 18


def _line_words(cost: int, axis: int, operands: Mapping[str, Array]) -> tuple[dict[str, int], int]:
    """The words that all leaves have, and the number of axes that count the lines.

    ``cost`` is the work in all, ``axis`` that of the operands' lines.
    """
    arrays = list(operands.values())
    x = arrays[0]
    others = [d for d in range(x.ndim) if d != axis]
    sizes, steps = merged(
        [x.shape[d] for d in others], [[a.strides[d] for d in others] for a in arrays]
    )
    words = {"threads": threads.threads(cost, _ADDITIONS_PER_THREAD), "tasks": prod(sizes)}
    words |= {"one": 1, "n": x.shape[axis]} | {f"kn{d}": n for d, n in enumerate(sizes) if d}
    for (name, a), own in zip(operands.items(), steps, strict=True):
        words |= {name: 0, f"{name}.i": a.strides[axis]}
        words |= {f"{name}.k{d}": s for d, s in enumerate(own)}
    return words, len(sizes)


def _block(
    run: Any, names: Sequence[str], words: Mapping[str, int], keep: Any = None
) -> StridedBlock:
    at = [names.index(n) for n in ("x0", "y0", "y1") if n in names]
    return StridedBlock(run, [words[n] for n in names], at, keep)


class TopKKernel(Kernel[TopK]):
    """The few best elements of each line, in one pass over it."""

    name = "llvm.nest"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[TopK]) -> str | None:
        """Needs code for the dtype, and a number of elements that is static and small."""
        x, op = call.inputs[0], call.op
        if x.dtype not in VALUES:
            return "there is no code for these dtypes"
        if op.static is None or abs(op.static) > MAX_KEPT:
            return f"it takes at most {MAX_KEPT} elements, a number known when the graph is built"
        return compile_refusal([x], lambda: prod(x.shape), _MIN_ELEMENTS_TO_COMPILE)

    def never_fails(self, call: Call[TopK]) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True

    def bind(self, call: Call[TopK]) -> Launch[Array]:
        """A launch for any strides."""
        return StridedLaunch(partial(_top_k_block, call.op), reads=1)


def _top_k_block(op: TopK, inputs: Arrays, outputs: Arrays) -> StridedBlock:
    assert op.static is not None
    x, operands = inputs[0], (inputs[0], *outputs)
    dtype = x.dtype.name
    work = "float32" if dtype in ("float16", "bfloat16") else dtype
    dense = x.strides[op.axis] == x.itemsize
    named = dict(zip(("x0", "y0", "y1"), operands, strict=True))
    words, kept = _line_words(x.size, op.axis, named)
    plan = TopKPlan(dtype, work, outputs[1].dtype.name, op.static > 0, kept, dense)
    words["k"] = abs(op.static)
    return _block(threads.kernel(top_k_ir, plan), top_k_words(plan), words)


class SortKernel(Kernel[Sort | ArgSort]):
    """Sorts of lines and their indices, by NumPy's vectorised sort; of short lines by networks."""

    name = "llvm.sort"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Sort | ArgSort]) -> str | None:
        """Needs code for the dtype, and NumPy's functions."""
        x = call.inputs[0]
        if x.dtype not in VALUES:
            return "there is no code for these dtypes"
        refusal = compile_refusal([x], lambda: prod(x.shape), _MIN_ELEMENTS_TO_COMPILE)
        return refusal or numpy_sort.problem()

    def never_fails(self, call: Call[Sort | ArgSort]) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True

    def bind(self, call: Call[Sort | ArgSort]) -> Launch[Array]:
        """A launch for any strides."""
        return StridedLaunch(partial(_sort_block, call.op))


def _sort_block(op: Sort | ArgSort, inputs: Arrays, outputs: Arrays) -> StridedBlock:
    (x,), (y,) = inputs, outputs
    words, kept = _line_words(x.size * _SORT_ADDITIONS, op.axis, {"x0": x, "y0": y})
    dtype, how = x.dtype.name, "values" if isinstance(op, Sort) else "indices"
    if how == "values" and (network := _network(dtype, x.itemsize, words, kept)) is not None:
        return network
    work = _sorted_as(dtype, x.shape[op.axis], how)
    if how != "values" and numpy_sort.counts(work, words["n"]):
        how = "stable"
    if how == "values" and x.dtype.itemsize >= 4 and words["n"] in _RADIX_LENGTHS:
        how = "radix" if numpy_sort.sorts_slowly() else how
    dense = x.strides[op.axis] == x.itemsize, y.strides[op.axis] == y.itemsize
    digits = how == "indices" and numpy_sort.counts("uint16", words["n"])
    plan = SortPlan(how, dtype, work, kept, dense, digits=digits)
    part = aligned((8 if how != "radix" else x.dtype.itemsize) * words["n"])
    if (band := _band(plan, words, part)) > 1:
        plan = replace(plan, dense=(True, True), band=band)
    part = part if plan.uses_scratch or plan.band else 0
    scratch = np.empty((2 + 2 * plan.band) * part * words["threads"], np.uint8)
    number = work if how in ("values", "radix") else "uint64"
    words |= {"sort": numpy_sort.sort_address(number, words["n"]), "part": part}
    argsort = numpy_sort.argsort_address("uint16" if digits else work, words["n"])
    words |= {"counted": numpy_sort.span_by_digits(words["n"])}
    words |= {"argsort": argsort, "scratch": address(scratch)}
    return _block(threads.kernel(sort_ir, plan), sort_words(plan), words, scratch)


def _network(dtype: str, size: int, words: dict[str, int], kept: int) -> StridedBlock | None:
    """The block of a sort of short lines, which are neighbours in memory or follow one another."""
    n, lines = words["n"], words["tasks"]
    steps = words["x0.k0"], words["y0.k0"]
    beside = [step == size for step in steps]
    behind = [words[f"{name}.i"] == size and s == n * size for name, s in zip(("x0", "y0"), steps)]
    most = MAX_IN_COLUMNS if all(beside) else MAX_IN_LINES
    if kept > 1 or not 2 <= n <= most or not all(map(max, beside, behind)):
        return None
    words |= {"lines": lines, "tasks": -(-lines // LINES)}
    plan = NetworkPlan(dtype, n, steps)
    return _block(threads.kernel(network_ir, plan), NETWORK_WORDS, words)


def _band(plan: SortPlan, words: dict[str, int], part: int) -> int:
    """Lines that are turned together, where they are neighbours in memory; 0 elsewhere.

    Their band becomes a step along the last axis of lines.
    """
    last, room = plan.kept - 1, _TURNED_BYTES // part
    steps = tuple(words[f"{name}.k{last}"] for name in ("x0", "y0"))
    lines = words[f"kn{last}"] if last else words["tasks"]
    words |= {"m": lines, "JB": 1}
    if any(plan.dense) or steps != plan.sizes or min(lines, words["n"], room) < TURN_BLOCK:
        return 0
    band = min(_MAX_BAND, room // TURN_BLOCK * TURN_BLOCK)
    bands = -(-lines // band)
    words |= {"tasks": words["tasks"] // lines * bands, "JB": bands}
    words |= {f"kn{last}": bands} if last else {}
    words |= {f"{name}.k{last}": band * s for name, s in zip(("x0", "y0"), steps, strict=True)}
    return band


def _sorted_as(dtype: str, length: int, how: str) -> str:
    """The dtype in which elements are compared: it has all of their values."""
    if numpy_dtype(dtype).itemsize >= 4 or numpy_sort.counts(dtype, length):
        return dtype
    if TensorType(dtype).is_float:
        return "float32"
    in_vectors = dtype != "bool" and numpy_dtype(dtype).itemsize == 2 and numpy_sort.sorts_16_bits()
    return dtype if how == "values" and in_vectors else "int32"


class SelectKernel(Kernel[OrderStatistics | Partition | ArgPartition]):
    """Elements at places of the order, and partitions."""

    name = "llvm.select"
    traits = LLVM_QUIET

    def refuses(self, call: Call[OrderStatistics | Partition | ArgPartition]) -> str | None:
        """What a sort refuses."""
        x = call.inputs[0]
        return SortKernel().refuses(Call(Sort(call.op.axis), (x,), (x,), call.hints))

    def bind(self, call: Call[OrderStatistics | Partition | ArgPartition]) -> Launch[Array]:
        """A launch for any strides, which looks at the places first."""
        op = call.op
        places, to = (np.empty(call.inputs[1].shape, np.int64) for _ in range(2))
        launch = StridedLaunch(partial(_select_block, op, places, to), reads=1)
        last: list[bytes | None] = [None]  # the places of the call before

        def select(inputs: Arrays, outputs: Arrays) -> None:
            x, wanted = inputs
            if last[0] != (given := wanted.tobytes()):
                last[0] = None
                op.check_places(x, wanted)
                if not x.size or not outputs[0].size:
                    np.copyto(outputs[0], op.reference(x, wanted))
                    return
                to[:] = wanted.argsort(kind="stable")
                np.take(wanted, to, out=places)
                last[0] = given
            launch([x], outputs)

        return select


def _select_block(
    op: OrderStatistics | Partition | ArgPartition, places: Array, to: Array, inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    """The block for operands with these strides; both vectors are filled before each call."""
    (x,), (y,) = inputs, outputs
    ways = {OrderStatistics: "elements", Partition: "parted", ArgPartition: "places"}
    words, kept = _line_words(x.size * _SELECT_ADDITIONS, op.axis, {"x0": x, "y0": y})
    dtype, n = x.dtype.name, words["n"]
    work = _sorted_as(dtype, n, "indices")
    dense = x.strides[op.axis] == x.itemsize, y.strides[op.axis] == y.itemsize
    vectors = chosen_ir.in_vectors(8 * int(numpy_dtype(work).itemsize))
    plan = SelectPlan(ways[type(op)], dtype, work, kept, dense, vectors=vectors)
    part = aligned(n * max(numpy_dtype(work).itemsize, plan.sizes[1]))
    if (band := _band(plan, words, part)) > 1:
        plan = replace(plan, dense=(True, type(op) is not OrderStatistics), band=band)
    scratch = np.empty((2 + 2 * plan.band) * part * words["threads"], np.uint8)
    selects = len(places) <= min(n // _PLACE_ELEMENTS, MOST_SELECTED)
    sample = min(int((1.5 * n) ** (2 / 3)), _MOST_DRAWN) if selects else 0
    words |= {"sort": numpy_sort.sort_address(work), "argsort": 0, "counted": 0, "part": part}
    words |= {"scratch": address(scratch), "places": address(places), "to": address(to)}
    words |= {"count": len(places), "sample": sample, "reach": int(_REACH * sample**0.5)}
    return _block(threads.kernel(select_ir, plan), select_words(plan), words, scratch)


class SearchKernel(Kernel[SearchSorted]):
    """Searches in a sorted vector, in vectors of values."""

    name = "llvm.search"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[SearchSorted]) -> str | None:
        """Needs code for the dtype."""
        x, v = call.inputs
        if x.dtype not in VALUES or x.dtype in ("bool", "float16", "bfloat16"):
            return "there is no code for these dtypes"
        return compile_refusal([v], lambda: prod(v.shape), _MIN_ELEMENTS_TO_COMPILE)

    def never_fails(self, call: Call[SearchSorted]) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True

    def bind(self, call: Call[SearchSorted]) -> Launch[Array]:
        """A launch of contiguous operands."""
        (n,), m = call.inputs[0].shape, prod(call.inputs[1].shape)
        levels, left = 0, n
        while left > 1:
            levels, left = levels + 1, left - left // 2
        words = {"threads": threads.threads(m * (levels + 1), _ADDITIONS_PER_THREAD)}
        words |= {"tasks": -(-m // BLOCK), "one": 1, "n": n, "m": m, "levels": levels}
        short = 0 < n <= MOST_COUNTED
        plan = SearchPlan(
            call.inputs[0].dtype, call.op.side == "right", short, n % TOGETHER * short
        )
        head = [words[w] for w in SEARCH_WORDS if w in words]
        return ContiguousLaunch(threads.kernel(search_ir, plan), head, reads=2)


KERNELS: tuple[Row, ...] = (
    ((TopK,), (TopKKernel(),)),
    ((Sort, ArgSort), (SortKernel(),)),
    ((SearchSorted,), (SearchKernel(),)),
    ((OrderStatistics, Partition, ArgPartition), (SelectKernel(),)),
)

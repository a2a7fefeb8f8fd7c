"""A network's summary: a row for each module, with shapes, parameters and operations."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.html import html_table
from symdnn.nn.modules.module import Module, ModuleCall, watched
from symdnn.ops.attention.attention import Attention
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.conv import Conv, ConvGradInput
from symdnn.ops.nn.rnn import RNNForward


@dataclass(frozen=True)
class Row:
    """One call of a module: its name in the network, its depth, and its output.

    ``parameters`` and ``flops`` are those of all modules inside as well.
    """

    name: str
    depth: int
    title: str
    output: str
    parameters: int
    flops: int


_HEADINGS = ("module", "output", "parameters", "FLOPs")


@dataclass(frozen=True)
class Summary:
    """Rows in the order of the network; the first is the network. ``print`` shows a table.

    ``flops`` are 2 x the multiply-adds of convolutions, GEMMs, attention and recurrent networks,
    for one forward pass in evaluation. ``parameter_bytes`` is the memory of parameters.
    """

    rows: tuple[Row, ...]
    inputs: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    buffers: int
    flops: int

    def table(self, width: int = 100) -> str:
        """The rows as a table of this many columns."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(title=f"input {', '.join(self.inputs)}", title_justify="left")
        for heading in _HEADINGS:
            right = heading in ("parameters", "FLOPs")
            shown.add_column(heading, justify="right" if right else "left", no_wrap=right)
        for row, (label, *cells) in zip(self.rows, self._cells()):
            shown.add_row(Text("  " * row.depth + label), *map(Text, cells))
        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(shown)
        return out.getvalue() + "\n".join(self._totals())

    def _cells(self) -> Iterator[tuple[str, str, str, str]]:
        """The cells of each row: the label, with a path from the row around it, and the numbers."""
        around: list[str] = []
        for row in self.rows:
            del around[row.depth :]
            inside = "".join(f"{name}." for name in around[-1:] if name)
            label = f"({row.name.removeprefix(inside)}) {row.title}" if row.name else row.title
            around.append(row.name)
            yield label, row.output, f"{row.parameters:,}", f"{row.flops:,}"

    def _totals(self) -> list[str]:
        size = self.parameter_bytes / 2**20
        return [
            f"parameters: {self.parameters:,} ({size:.2f} MiB), statistics: {self.buffers:,}",
            f"FLOPs: {self.flops:,} (2 x multiply-adds, one pass forward)",
        ]

    def _repr_html_(self) -> str:
        """The summary in a notebook: an HTML table."""
        caption = f"input {', '.join(self.inputs)}; {'; '.join(self._totals())}"
        return html_table(_HEADINGS, self._cells(), caption, [row.depth for row in self.rows])

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


def summary(module: Module, *inputs: object, dtype: str | None = None) -> Summary:
    """A :class:`Summary` of a network for inputs of these shapes.

    ``inputs`` are tuples of ints, the batch first, or symbolic variables; ``dtype`` is that of the
    inputs given as tuples, by default floatX. Nothing is compiled or computed. If a shape does not
    fit, calling the module raises its error.

    >>> from symdnn import nn
    >>> nn.summary(nn.Linear(20, 10), (4, 20)).flops
    1600
    """
    if not hasattr(type(module), "named_modules"):
        raise InputError(f"summary: wanted a module, got {module!r:.60}")
    if not inputs:
        raise InputError("summary: wanted an input's shape, such as (1, 3, 224, 224); got none")
    given = [_input(v, dtype) for v in inputs]
    calls: list[ModuleCall] = []
    modes = [(m, m.training) for _, m in module.named_modules()]
    try:
        module.evaluate()
        with watched(calls.append):
            module(*given)
    finally:
        for inner, training in modes:
            inner.training = training
    parameters, rows = module.parameters(), tuple(_rows(module, calls))
    return Summary(
        rows,
        tuple(_shape(v) for v in given),
        _count(parameters),
        sum(p.get_value(borrow=True).nbytes for p in parameters),
        _count(module.named_buffers().values()),
        rows[0].flops,
    )


def _input(value: Any, dtype: str | None) -> Variable:
    if isinstance(value, Variable):
        return value
    try:
        shape = tuple(int(n) for n in value)
    except (TypeError, ValueError):
        raise TypeMismatch("summary", "the shape of an input, a tuple of ints", value) from None
    made: Variable = TensorType(dtype or str(config.floatX), shape)("input")
    return made


def _rows(root: Module, calls: Sequence[ModuleCall]) -> Iterator[Row]:
    """Calls in the order in which they began; they were recorded when they ended."""
    names = {id(m): name for name, m in root.named_modules()}
    for call in sorted(calls, key=lambda c: c.index):
        yield Row(
            names.get(id(call.module), ""),
            call.depth,
            f"{call.module.title}{call.module.describe()}",
            _shape(call.output),
            _count(call.module.parameters()),
            flops(_flat(call.output), _flat(call.inputs)),
        )


def _count(variables: Iterable[Any]) -> int:
    return sum(int(np.size(v.get_value(borrow=True))) for v in variables)


def _flat(value: object) -> list[Variable]:
    if isinstance(value, list | tuple):
        return [v for entry in value for v in _flat(entry)]
    return [value] if isinstance(value, Variable) else []


def _shape(value: object) -> str:
    """``(1, 64, 56, 56)``; a table as its entries."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shape, value))}]"
    shape = getattr(getattr(value, "type", None), "shape", None)
    if shape is None:
        return str(getattr(value, "type", value))
    return f"({', '.join('?' if n is None else str(n) for n in shape)})"


# -- operations -----------------------------------------------------------------------------------


@checked
def flops(outputs: Sequence[Variable], inputs: Sequence[Variable] = ()) -> int:
    """2 x the multiply-adds of convolutions, GEMMs, attention and recurrent networks
    between the two.

    The graph before ``inputs`` does not count. Raises
    :class:`~symdnn.errors.InputError` for an unknown size.
    """
    seen: set[Apply] = set()
    known = set(inputs)
    pending = [v for v in outputs if v not in known]
    total = 0
    while pending:
        node = pending.pop().owner
        if node is None or node in seen:
            continue
        seen.add(node)
        counter = next((COUNTERS[k] for k in type(node.op).__mro__ if k in COUNTERS), None)
        total += 2 * counter(node) if counter is not None else 0
        pending += [v for v in node.inputs if v not in known]
    return total


def _size(node: Apply, shape: Sequence[int | None]) -> int:
    if any(n is None for n in shape):
        raise InputError(f"flops: wanted static sizes, but {node.op} has operands of unknown size")
    return math.prod(n for n in shape if n is not None)


def _convolution(node: Apply) -> int:
    """For each element of the output, a window of the weight."""
    weight = node.inputs[1].type.shape[1:]
    return _size(node, node.outputs[0].type.shape) * _size(node, weight)


def _transposed(node: Apply) -> int:
    weight, dy = (v.type.shape for v in node.inputs[:2])
    return _size(node, dy) * _size(node, weight[1:])


def _product(node: Apply) -> int:
    return _size(node, node.outputs[0].type.shape) * _size(node, node.inputs[0].type.shape[-1:])


def _attention(node: Apply) -> int:
    """For each query and key a product of their features, and one of the value's."""
    key, value = (v.type.shape for v in node.inputs[1:3])
    queries = _size(node, node.inputs[0].type.shape[:3])
    return queries * _size(node, key[2:3]) * (_size(node, key[3:]) + _size(node, value[3:]))


def _recurrent(node: Apply) -> int:
    """At every step of every sequence, all matrices."""
    op: Any = node.op
    steps, batch, features = node.inputs[1].type.shape
    parts = op.layout.parts(_size(node, [features]))
    matrices = sum(p.size for p in parts if p.kind in ("W", "R"))
    return _size(node, [steps, batch]) * int(matrices)


COUNTERS: Mapping[type[Op], Callable[[Apply], int]] = {
    Attention: _attention,
    Conv: _convolution,
    ConvGradInput: _transposed,
    Dot: _product,
    BatchedDot: _product,
    RNNForward: _recurrent,
}

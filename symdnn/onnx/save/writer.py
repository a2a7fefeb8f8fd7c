"""A writer of nodes: names for variables, constants, and shapes as chains of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from symdnn.errors import ModelError
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.onnx.model.kinds import code_of

#: The ends of a slice that mean no bound.
FAR = (1 << 63) - 1


class Writer:
    """Nodes and initialisers of a graph. An inner writer (of a loop's body) sees its parent's."""

    def __init__(self, opset: int, parent: Writer | None = None) -> None:
        self.opset, self.parent = opset, parent
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {} if parent is None else parent.initializers
        self.names: dict[Variable, str] = {}
        #: Variables with the sizes of parameters' values -> the parameters.
        self.stand_ins: dict[Variable, Shared] = {} if parent is None else parent.stand_ins
        self._kept: dict[Any, str] = {}
        self._taken: set[str] = set() if parent is None else parent._taken

    # -- names --------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet."""
        name, k = wanted, 1
        while name in self._taken:
            name, k = f"{wanted}_{k}", k + 1
        self._taken.add(name)
        return name

    def name(self, v: Variable) -> str:
        """The name of a variable that is written already, of a constant or of a parameter."""
        writer: Writer | None = self
        while writer is not None:
            if v in writer.names:
                return writer.names[v]
            writer = writer.parent
        if isinstance(v, Constant):
            return self.constant(np.asarray(v.data))
        if v in self.stand_ins:
            return self.parameter(v, self.stand_ins[v])
        raise ModelError(f"onnx.save: {v} is neither an input nor computed from inputs")

    def parameter(self, v: Variable, of: Shared) -> str:
        """A shared variable as an initialiser of its name."""
        root = self
        while root.parent is not None:
            root = root.parent
        name = root.fresh(of.name or "parameter")
        root.names[v] = name
        value = np.asarray(of.get_value(borrow=True))
        self.initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        """The name of an initialiser with this value."""
        array: Array = np.asarray(value, dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        writer: Writer | None = self
        while writer is not None:
            if key in writer._kept:
                return writer._kept[key]
            root, writer = writer, writer.parent
        name = self.fresh("constant")
        root._kept[key] = name
        shaped = np.ascontiguousarray(array).reshape(array.shape)
        self.initializers[name] = numpy_helper.from_array(shaped, name)
        return name

    # -- nodes --------------------------------------------------------------------------------

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output; its name."""
        return self.add_several(op, 1, *inputs, **attributes)[0]

    def add_several(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node; the names of its outputs."""
        names = [self.fresh(op.lower()) for _ in range(outputs)]
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), names, **given))
        return names

    def cast(self, name: str, dtype: str) -> str:
        """A cast; the caller knows that the dtype is another one."""
        return self.add("Cast", name, to=code_of(dtype))

    def like(self, v: Variable, value: Any) -> str:
        """A scalar of the dtype of ``v``."""
        return self.constant(np.asarray(value, v.type.numpy))

    # -- shapes -------------------------------------------------------------------------------

    def shape(self, name: str) -> str:
        """The shape of a value, once."""
        key = ("shape", name)
        if key not in self._kept:
            self._kept[key] = self.add("Shape", name)
        return self._kept[key]

    def size(self, name: str, axis: int) -> str:
        """One size of a value, an int64 scalar."""
        key = ("size", name, axis)
        if key not in self._kept:
            index = self.constant(axis, np.int64)
            self._kept[key] = self.add("Gather", self.shape(name), index, axis=0)
        return self._kept[key]

    def vector(self, scalars: Sequence[Variable]) -> str:
        """Integer scalars as an int64 vector; neighbouring constants are one."""
        parts: list[str] = []
        numbers: list[int] = []
        for v in scalars:
            if isinstance(v, Constant):
                numbers.append(int(v.data))
                continue
            if numbers:
                parts.append(self.constant(numbers, np.int64))
                numbers = []
            parts.append(self.unsqueezed(self.as_int64(v), [0]))
        if numbers or not parts:
            parts.append(self.constant(np.array(numbers, np.int64)))
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def as_int64(self, v: Variable) -> str:
        """The name of an integer as int64."""
        name = self.name(v)
        return name if v.type.dtype == "int64" else self.cast(name, "int64")

    def unsqueezed(self, name: str, axes: Sequence[int]) -> str:
        """A value with new dimensions."""
        return self.add("Unsqueeze", name, self.constant(list(axes), np.int64))

    def squeezed(self, name: str, axes: Sequence[int]) -> str:
        """A value without dimensions of size 1."""
        return self.add("Squeeze", name, self.constant(list(axes), np.int64))

    def reshaped(self, name: str, sizes: Sequence[int]) -> str:
        """A value in another, static shape (-1: what is left)."""
        return self.add("Reshape", name, self.constant(list(sizes), np.int64))

    def sliced(
        self, name: str, starts: Sequence[Any], ends: Sequence[Any], axes: Sequence[int],
        steps: Sequence[int],
    ) -> str:  # fmt: skip
        """A slice; bounds are ints or integer scalars."""
        as_vars = [[_scalar(b) for b in bounds] for bounds in (starts, ends)]
        return self.add(
            "Slice", name, self.vector(as_vars[0]), self.vector(as_vars[1]),
            self.constant(list(axes), np.int64), self.constant(list(steps), np.int64),
        )  # fmt: skip

    def refuse(self, node: Apply, why: str = "it has no counterpart in ONNX") -> ModelError:
        """The error about a node that can't be written."""
        where = node.origin.text()
        made = f"\nIt was made here:\n{where}" if where else ""
        types = ", ".join(str(v.type) for v in node.inputs)
        return ModelError(f"onnx.save: {node.op} of ({types}): {why}.{made}")


def _scalar(bound: Any) -> Variable:
    return bound if isinstance(bound, Variable) else Constant(np.asarray(bound, np.int64))


def dtype_of(v: Variable) -> str:
    """The dtype of a tensor; raises :class:`ModelError` for an opaque value."""
    if not isinstance(v.type, TensorType):
        raise ModelError(f"onnx.save: {v} is opaque, it belongs to a kernel")
    return v.type.dtype

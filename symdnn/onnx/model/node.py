"""A node while its builder runs: inputs, attributes, and what it asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.errors import ModelError
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.onnx.model.kinds import carrier, kind_of
from symdnn.onnx.model.values import Optional, Unsettled, Value, depends_on, known_array
from symdnn.onnx.model.values import Sequence as Tensors

#: What builds a node: one value for each output, or the only one. ``NotImplemented`` stands for the
#: function of other ops that defines the node.
Builder = Callable[["Node"], Any]


@dataclass
class Node:
    """A node of a file. ``version`` is the opset in which its op got the meaning that it has here.

    ``scope`` builds the graphs among its attributes; ``wanted`` says of each output whether it has
    a name.
    """

    op: str
    domain: str
    version: int
    inputs: Sequence[Any]
    attributes: dict[str, Any]
    wanted: Sequence[bool] = (True,)
    name: str = ""
    scope: Any = None
    #: Input variables of the graph by name, which calls may settle by value.
    roots: dict[Variable, str] = field(default_factory=dict)

    def __str__(self) -> str:
        domain = f"{self.domain}." if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op}, opset {self.version})"

    def error(self, what: str) -> ModelError:
        """An error that names the node."""
        return ModelError(f"{self}: {what}")

    # -- inputs -------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        """Whether input ``i`` is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> Any:
        """Input ``i`` as it is: a tensor, a sequence or an optional value."""
        if not self.has(i):
            raise self.error(f"input {i} is missing")
        return self.inputs[i]

    def value(self, i: int) -> Value:
        """Input ``i``, a tensor."""
        found = self.input(i)
        if isinstance(found, Optional) and isinstance(found.value, Value):
            found = found.value
        if not isinstance(found, Value):
            raise self.error(f"input {i} is no tensor but {_what(found)}")
        return found

    def x(self, i: int = 0) -> Variable:
        """Input ``i`` as a variable."""
        return self.value(i).variable

    def optional(self, i: int) -> Variable | None:
        """Input ``i`` as a variable, None if it is not there."""
        return self.x(i) if self.has(i) else None

    def variables(self) -> list[Variable]:
        """All inputs as variables."""
        return [self.x(i) for i in range(len(self.inputs))]

    def sequence(self, i: int) -> Tensors:
        """Input ``i``, a sequence."""
        found = self.input(i)
        if isinstance(found, Optional):
            found = found.value
        if not isinstance(found, Tensors):
            raise self.error(f"input {i} is no sequence but {_what(found)}")
        return found

    # -- attributes ---------------------------------------------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or ``default``."""
        found = self.attributes.get(name)
        return default if found is None else found

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if self.attributes.get(name) is None:
            raise self.error(f"the attribute {name} is missing")
        return self.attributes[name]

    def kind_attribute(self, name: str, default: str | None = None) -> str | None:
        """An attribute that is the number of an element type."""
        code = self.attributes.get(name)
        if not code:
            return default
        kind = kind_of(int(code), f"{self}: {name}")
        return kind if self.scope is None else str(self.scope.world.kind(kind))

    def axis(self, ndim: int, default: int | None = 0, name: str = "axis") -> int:
        """An attribute that is an axis, as a number from 0."""
        axis = self.attribute(name, default)
        if axis is None:
            raise self.error(f"the attribute {name} is missing")
        return self.normal(int(axis), ndim)

    def normal(self, axis: int, ndim: int) -> int:
        """``axis`` as a number from 0."""
        if not -ndim <= axis < max(ndim, 1):
            raise self.error(f"axis {axis} of a tensor of {ndim} dimension(s)")
        return axis % ndim if ndim else 0

    # -- inputs that are read while the graph is built ----------------------------------------

    def known(self, i: int, what: str) -> Array:
        """The value of input ``i``, which decides what the graph is."""
        value = self.value(i)
        if value.array is not None:
            return value.array
        return self.settled(value.variable, what)

    def settled(self, v: Variable, what: str) -> Array:
        """The value of ``v``; raises :class:`Unsettled` if only a call has it."""
        found = known_array(v)
        if found is not None:
            return found
        ends, sizes = depends_on(v)
        names = [self.roots[u] for u in ends if u in self.roots]
        if len(names) < len(ends) or not (sizes or names):
            raise self.error(f"{what} is computed from data, and must be known before it runs")
        raise Unsettled(f"{self}: {what} must be known before it runs", names, sizes)

    def size(self, d: Any, what: str) -> Any:
        """A size or a factor as a number where it is known or a call settles it, else as it is."""
        if not isinstance(d, Variable):
            return d
        known = known_array(d)
        if known is not None:
            return known.item()
        ends, _ = depends_on(d)
        if not self.roots or any(u not in self.roots for u in ends):
            return d  # of a graph without a call, or computed from data
        return self.settled(d, what).item()

    def ints(self, i: int, what: str) -> list[int]:
        """The value of input ``i`` as a list of ints."""
        return [int(n) for n in np.atleast_1d(self.known(i, what)).ravel()]

    def setting(self, name: str, i: int, default: Any = None) -> Any:
        """A list of ints that is input ``i`` or, in earlier opsets, an attribute."""
        if self.has(i):
            return self.ints(i, name)
        return self.attribute(name, default)

    def sizes(self, i: int, what: str = "the shape") -> list[Any]:
        """Entries of an integer vector as ints and integer scalars; its length must be known."""
        value = self.value(i)
        if value.data is not None:
            return [_entry(e) for e in value.data.ravel()]
        v = value.variable
        found = known_array(v)
        if found is not None:
            return [int(n) for n in found.ravel()]
        if v.ndim == 0:
            return [v.astype("int64")]
        if v.type.shape[0] is None:
            return [int(n) for n in self.settled(v, f"the length of {what}").ravel()]
        return [v[k].astype("int64") for k in range(v.type.shape[0])]

    def number(self, i: int, default: Any = None) -> Any:
        """A scalar input (or a vector of one) as a number or a scalar variable."""
        if not self.has(i):
            return default
        value = self.value(i)
        if value.data is not None:
            entry = value.data.ravel()[0]
            return entry if isinstance(entry, Variable) else entry.item()
        return value.variable.reshape(())

    @property
    def carrier(self) -> str:
        """The dtype of the first input."""
        return carrier(self.value(0).kind)


def _entry(e: Any) -> Any:
    return e if isinstance(e, Variable) else int(e)


def _what(found: Any) -> str:
    if isinstance(found, Tensors):
        return "a sequence"
    return "an optional value" if isinstance(found, Optional) else type(found).__name__

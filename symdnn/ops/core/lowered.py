"""Ops of one target that mean what a device-neutral op means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, cast

from symdnn.errors import ArgumentError
from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, MultiOp, Op, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable

__all__ = ["DnnBase", "Lowered", "constant_number"]


class Lowered(Op):
    """Base of ops that a target's library runs: plain data, no driver needed.

    A subclass gives :meth:`neutral`; types, shapes, reference and derivatives are that op's. Where
    the inputs or the result differ from the neutral op's, it overrides what is different, and
    :meth:`expanded`, the same computation in neutral ops.
    """

    abstract: ClassVar[bool] = True

    def neutral(self) -> Op:
        """The op of the same meaning that belongs to no target."""
        raise NotImplementedError(f"{type(self).__name__}.neutral")

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        """The outputs in neutral ops; None where there is no such expression."""
        out = self.neutral()(*inputs)
        return [out] if isinstance(out, Variable) else list(out)

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        return self.neutral().output_types(inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.neutral().compute(*inputs)

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        return self.neutral().shapes(types, shapes, host)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return self.neutral().vjp(inputs, outputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return self.neutral().jvp(inputs, outputs, tangents)

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return self.neutral().host_inputs

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        return self.neutral().run_time_inputs

    @property
    def host_values(self) -> tuple[int, ...]:
        """Inputs that the library reads on the host: the host inputs, and arrays such as an RNN's
        lengths. They are never moved to the device."""
        return self.host_inputs

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {}

    def results(self, node: Any) -> Any:
        return node.outputs if isinstance(self, MultiOp) else self.neutral().results(node)

    def _words(self) -> list[str]:
        """For printing: the fields that are not at their default."""
        return [
            f"{f.name}={value}"
            for f in fields(cast(Any, self))
            if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        ]

    def __str__(self) -> str:
        words = self._words()
        return f"{type(self).__name__}{{{', '.join(words)}}}" if words else type(self).__name__


class DnnBase(Lowered):
    """Base of the ops that cuDNN runs (Theano's name)."""

    abstract: ClassVar[bool] = True


def constant_number(what: str, value: TensorLike) -> float:
    """``value`` as a Python float; raises TypeError for a symbolic one."""
    v = value if isinstance(value, Variable) else as_variable(value)
    if not isinstance(v, Constant) or v.data.size != 1:
        raise ArgumentError(f"{what}: wanted a number known when the graph is built, got {value!r}")
    return float(v.data.reshape(()))

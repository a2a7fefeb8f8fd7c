"""The one form of what a library runs: a neutral op, a layout, an epilogue, and settings.

Rewrites of :mod:`symdnn.opt` see this form alone. A library's ops are plain data in
:mod:`symdnn.ops.vendor`; what they are called and how they are written by hand is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, Self, cast

from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, MultiOp, Op, Vars
from symdnn.graph.variable import Variable
from symdnn.ops.nn.channels_last import in_layout

__all__ = ["Lowered", "neutral_of"]


class Lowered(Op):
    """Base of ops that a target's library runs: plain data, no driver needed.

    A subclass gives :attr:`unlowered`; types, shapes, reference and derivatives are that op's.
    Where the inputs or the result differ from the neutral op's, it overrides what is different, and
    :meth:`expanded`, the same computation in neutral ops. What the library takes (layouts, dtypes,
    epilogues) is data of the class.
    """

    abstract: ClassVar[bool] = True
    #: The layouts in which the library has the op: NCHW is (N, C, \\*sizes), NHWC channels last.
    layouts: ClassVar[tuple[str, ...]] = ("NCHW",)
    #: Which input is (K, C, \\*sizes) in every layout, since the library packs filters itself; -1:
    #: the result. None: filters have the layout of the activations.
    packed_filter: ClassVar[int | None] = None
    #: Float dtypes that the library has it for; empty: nothing is known.
    dtypes: ClassVar[tuple[str, ...]] = ()
    #: Of this op; a field where there are several.
    layout: str = "NCHW"

    @property
    def unlowered(self) -> Op:
        """The op of the same meaning that belongs to no target, in the layout NCHW."""
        raise NotImplementedError(f"{type(self).__name__}.unlowered")

    def neutral(self) -> Op:
        """:attr:`unlowered` on activations in this op's layout."""
        return in_layout(self.unlowered, self.layout)

    def channels_last(self, ndim: int) -> Self | None:
        """The same for activations of ``ndim`` dimensions in NHWC; None where there is none."""
        if self.layout != "NCHW" or "NHWC" not in self.layouts:
            return None
        return cast(Self, replace(cast(Any, self), layout="NHWC"))

    def along(self, axis: int) -> Self | None:
        """The same along another axis, of an op that has one; None of any other."""
        return None

    @property
    def reduced_axes(self) -> tuple[int, ...] | None:
        """The dimensions that a reduction takes away; None of any other op."""
        return None

    def over(self, axes: Sequence[int]) -> Self:
        """The reduction over other dimensions."""
        raise NotImplementedError(f"{type(self).__name__}.over")

    def neutral_inputs(self, inputs: Sequence[Variable]) -> Sequence[Variable]:
        """The neutral op's inputs: those of the op, unless a setting stands for one."""
        return inputs

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        """The outputs in neutral ops; None where there is no such expression."""
        out = self.neutral()(*inputs)
        return [out] if isinstance(out, Variable) else list(out)

    def infer(self, *inputs: Any) -> Any:
        return self.neutral().output_types(inputs)

    def reference(self, *inputs: Any) -> Any:
        return self.neutral().compute(*inputs)

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        return self.neutral().shapes(types, shapes, host)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return self.neutral().vjp(inputs, outputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
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


def neutral_of(op: Op) -> Op:
    """The op of the same meaning that belongs to no target; ``op`` itself where it is one."""
    return op.unlowered if isinstance(op, Lowered) else op

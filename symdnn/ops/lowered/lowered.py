"""The common form of libraries' ops: a neutral op, a layout, an epilogue, and settings.

Rewrites of :mod:`symdnn.opt` know only this form. The ops of each library are in
:mod:`symdnn.ops.vendor`, with their printed names and their constructors for users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

from symdnn.errors import NonDifferentiable
from symdnn.graph.op import Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.target import Version
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.nn.channels_last import in_layout


class Lowered(Op):
    """Base of ops that a target's library runs: plain data, no driver needed.

    A subclass declares :attr:`neutral_type`; types, shapes, reference and derivatives are that
    op's. If its inputs or results differ from the neutral op's, it is a
    :class:`~symdnn.ops.core.composed.Composed` too: they are then those of :meth:`expanded`, the
    same computation in neutral ops. The layouts, dtypes and epilogues that the library takes are
    data of the class.
    """

    abstract: ClassVar[bool] = True
    #: The neutral op that computes the same. Each of its fields is an attribute of this op with the
    #: same name, or has its default.
    neutral_type: ClassVar[type[Op]]
    #: The layouts in which the library has the op: NCHW is (N, C, \\*sizes), NHWC channels last.
    layouts: ClassVar[tuple[str, ...]] = ("NCHW",)
    #: The index of the input that is a filter (K, C, \\*sizes) in every layout, since the library
    #: packs filters itself; -1 for the result. None: filters have the layout of the activations.
    packed_filter: ClassVar[int | None] = None
    #: The float dtypes for which the library has the op; empty if unknown.
    dtypes: ClassVar[tuple[str, ...]] = ()
    #: For one of these dtypes the library and its first version that has it, if that is no old one.
    since: ClassVar[Mapping[str, tuple[str, Version]]] = {}
    #: For an output the inputs that it may overwrite.
    overwrites: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    #: The inputs that the library reads on the host, where these are not the host inputs.
    read_on_host: ClassVar[tuple[int, ...]] = ()
    #: The layout of this op; a field if there are several.
    layout: str = "NCHW"

    @classmethod
    def dtype_reason(cls, dtype: str, libraries: Mapping[str, Version]) -> str | None:
        """Why the installed libraries have not the op for a float dtype; None where they have."""
        if cls.dtypes and dtype not in cls.dtypes:
            return f"{cls.__name__} is for {', '.join(cls.dtypes)}, not for {dtype}"
        library, first = cls.since.get(dtype, ("", ()))
        if libraries.get(library, ()) < first:
            return f"{cls.__name__} in {dtype} needs {library} {'.'.join(map(str, first))}"
        return None

    @cached_property
    def unlowered(self) -> Op:
        """The neutral op that computes the same, in the layout NCHW."""
        return self.as_op(self.neutral_type)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone, without what is cached."""
        return {name: getattr(self, name) for name in _field_names(type(self))}

    def as_op(self, kind: type[Op], **settings: Any) -> Op:
        """An op of type ``kind`` with ``settings``, and this op's attributes for other fields."""
        names = [n for n in _field_names(kind) if n not in settings and hasattr(self, n)]
        return kind(**{n: getattr(self, n) for n in names}, **settings)

    @classmethod
    def of(cls, op: Op, **settings: Any) -> Self:
        """This op with ``settings``, and for other fields those that ``op`` has by the same name.

        ``op`` is the neutral op, or another op of the library.
        """
        same = {*_field_names(cls)} - {*settings}
        return cls(**{n: getattr(op, n) for n in _field_names(type(op)) if n in same}, **settings)

    def neutral(self) -> Op:
        """:attr:`unlowered` on activations in this op's layout."""
        return in_layout(self.unlowered, self.layout, self.packed_filter)

    def channels_last(self, ndim: int) -> Self | None:
        """This op for activations of ``ndim`` dimensions in NHWC; None where there is none."""
        if self.layout != "NCHW" or "NHWC" not in self.layouts:
            return None
        return cast(Self, replace(cast(Any, self), layout="NHWC"))

    def along(self, axis: int) -> Self | None:
        """This op along another axis; None for an op without an axis."""
        return None

    @property
    def reduced_axes(self) -> tuple[int, ...] | None:
        """The dimensions that a reduction removes; None for other ops."""
        return None

    def over(self, axes: Sequence[int]) -> Self:
        """The reduction over other dimensions."""
        raise NotImplementedError(f"{type(self).__name__}.over")

    def neutral_inputs(self, inputs: Vars) -> Vars:
        """The neutral op's inputs: those of this op, and constants for settings."""
        return inputs

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        """The outputs in neutral ops; None where there is no such expression."""
        out = self.neutral()(*self.neutral_inputs(inputs))
        return [out] if isinstance(out, Variable) else list(out)

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        return self.neutral().output_types(inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.neutral().compute(*inputs)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return self.neutral().shapes(types, shapes, host)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return self.neutral().vjp(inputs, outputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if self.linear_in_first:  # it may have other operands than the neutral op
            return super().jvp(inputs, outputs, tangents)
        return self.neutral().jvp(inputs, outputs, tangents)

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return self.neutral().host_inputs

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        return self.neutral().run_time_inputs

    @property
    def host_values(self) -> tuple[int, ...]:
        """Indices of the inputs that the library reads on the host.

        These are the host inputs, and arrays such as an RNN's lengths. They are never copied to the
        device.
        """
        return self.read_on_host or self.host_inputs

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return self.overwrites

    def results(self, node: Apply) -> Any:
        return node.outputs if isinstance(self, MultiOp) else self.neutral().results(node)

    def _words(self) -> list[str]:
        """The fields that differ from their defaults, for printing."""
        return [
            f"{f.name}={value}"
            for f in fields(cast(Any, self))
            if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        ]

    def __str__(self) -> str:
        words = self._words()
        return f"{type(self).__name__}{{{', '.join(words)}}}" if words else type(self).__name__


def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


class LoweredLate(Lowered):
    """Base of a library's ops that have no gradients: they are made after gradients are taken."""

    abstract: ClassVar[bool] = True

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable(f"{self} has no gradient: it is made after gradients are taken")


def neutral_of(op: Op) -> Op:
    """The neutral op of a library's op; any other op itself."""
    return op.unlowered if isinstance(op, Lowered) else op

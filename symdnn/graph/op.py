"""The contract of an op: types, shapes, reference, derivatives, aliasing.

An op is a frozen dataclass; its parameters are its fields, so equality, hash, printing, pickling
and cache keys come from them. It stores no device, handle or flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from symdnn.config import config
from symdnn.errors import NonDifferentiable, NotEvaluable
from symdnn.graph.dims import Dim, Shape
from symdnn.graph.names.flow import with_names
from symdnn.graph.origin import Hints
from symdnn.graph.pattern import Pattern, holds_pattern
from symdnn.graph.type import TensorType, Type
from symdnn.graph.variable import Apply, Constant, Variable, as_variable

__all__ = [
    "Array", "Axes", "Batched", "Grads", "Host", "MultiOp", "Op", "Shapes", "Types", "Vars",
]  # fmt: skip

_test_values = config.reader("compute_test_value")
_float64 = config.reader("warn_float64")

Array = np.ndarray[Any, np.dtype[Any]]
Vars = Sequence[Variable]
Types = Sequence[TensorType]
Shapes = Sequence[Shape]
Grads = Sequence[Variable | None]  # gradients, tangents: None where there is none
Host = Mapping[int, Dim]  # input index -> value of a host input
Axes = Sequence[int | None]  # 0: an entry for each lane; None: one value for all lanes
Batched = tuple[Vars, Axes] | None  # outputs with their axes; None: a loop

if TYPE_CHECKING:
    _never = property
else:

    def _never(question: Any) -> bool:
        """A property that is False, as a plain value: each walk over a graph asks all its ops."""
        return False


class Op:
    """An operation with one output. Subclasses are frozen dataclasses.

    A subclass defines :meth:`infer` and :meth:`reference`, and :meth:`vjp` if it has a gradient;
    the rest has defaults.
    """

    #: Set (in the class itself) by base classes that are no ops themselves.
    abstract: ClassVar[bool] = False
    #: Whether the result has no truth value in Python (``x < y``).
    is_comparison: ClassVar[bool] = False
    #: Whether constant folding may compute it; not for random draws and lazy choices.
    folds: ClassVar[bool] = True
    #: Whether its results are not there when it has run, but behind another op that waits for them.
    in_flight: ClassVar[bool] = False
    #: Whether its kernels draw random numbers, which differ from those of the reference.
    private_draws: ClassVar[bool] = False
    #: Whether no element of a real floating result is below 0 (NaN is possible).
    nonnegative: ClassVar[bool] = False
    #: Which integer operands ("all", "any", none) must be at least 0 for the result to be so.
    keeps_sizes: ClassVar[str] = ""
    #: Whether it is linear in its first input and has no derivative by the others.
    linear_in_first: ClassVar[bool] = False
    #: Whether no output changes smoothly with any input: each gradient is None.
    no_gradients: ClassVar[bool] = False
    #: The input that has the shape of the result, if :meth:`shapes` does not say it.
    shaped_as: ClassVar[int | None] = None
    #: Whether the result is the product of its operands.
    multiplies: ClassVar[bool] = False
    #: The version of what its fields mean in files; see :meth:`upgraded`.
    saved_version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own: Any = cls
        if own.ordered is True and own.unmergeable is not True:
            raise TypeError(f"{cls.__name__}: an op that is `ordered` must be `unmergeable` too")

    # -- its effects besides its value --------------------------------------------------------

    @_never
    def host_callback(self) -> bool:
        """Whether it calls a user's Python code on the host, which no CUDA graph can record."""
        return False

    @_never
    def unmergeable(self) -> bool:
        """Whether equal nodes each run, in every call: never merged, folded or kept."""
        return False

    @_never
    def ordered(self) -> bool:
        """Whether it runs before all ordered ops written later; it is then unmergeable, too."""
        return False

    @property
    def never_fails(self) -> bool:
        """Whether no values make it raise an error; False where nobody has said so."""
        return False

    # -- what it computes ---------------------------------------------------------------------

    def infer(self, *inputs: Any, **params: Any) -> Any:
        """Type of the output from the types of the inputs; raises ``TypeMismatch``."""
        raise NotImplementedError(f"{type(self).__name__}.infer")

    def reference(self, *inputs: Any, **params: Any) -> Any:
        """The result by NumPy, which every kernel is tested against."""
        raise NotEvaluable(f"{self} has no reference")

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        """Shapes of the outputs; raises ``ShapeMismatch``.

        ``types`` are the static types of the inputs, ``shapes`` their shapes, ``host`` the values
        of the host inputs. Dimensions are ints when a plan is made and integer scalar variables
        when shapes are rewritten, so compute them with :mod:`symdnn.graph.dims`. None means that
        shapes do not determine the result. The default is the shape of the input ``shaped_as``;
        without one it calls :meth:`infer`, which needs ints.
        """
        if self.shaped_as is not None:
            return [tuple(shapes[self.shaped_as])]
        if not all(isinstance(d, int | np.integer) for s in shapes for d in s):
            return None
        typed = [t.with_shape(s) if isinstance(t, TensorType) else t for t, s in zip(types, shapes)]  # type: ignore[arg-type]
        out = self.output_types(typed)
        if any(isinstance(t, TensorType) and not t.is_static for t in out):
            return None
        return [t.shape if isinstance(t, TensorType) else () for t in out]  # type: ignore[misc]

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        """An estimate of the multiply-adds of a call of concrete types, to compare ops by time.

        0 (the default) where each element takes a few operations.
        """
        return 0.0

    # -- its derivatives ----------------------------------------------------------------------

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        """Gradient with respect to each input, given that of each output.

        An entry of the result is None if the output does not depend on the input in a
        differentiable way. A cotangent is None if that output is not used (never all): an op
        with several outputs takes ``cotangents: Grads``.
        """
        if self.no_gradients:
            return [None] * len(inputs)
        raise NonDifferentiable(f"{self} has no gradient")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        """Tangent of each output, given that of each input (None: it is constant).

        With None (the default) :func:`symdnn.autodiff.Rop` applies the vjp twice instead. An op
        that is :attr:`linear_in_first` is applied to the tangent of its first input.
        """
        if not self.linear_in_first:
            return None
        return [None if tangents[0] is None else self(tangents[0], *inputs[1:])]

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        """Variables of whose elements an output's are, unchanged, each of one or another."""
        return ()

    @property
    def branches(self) -> Sequence[Sequence[int]]:
        """Inputs of each branch of a lazy choice, of which one is computed; none for other ops."""
        return ()

    def where_taken(self, inputs: Vars, branch: int, gradient: Variable) -> Variable:
        """``gradient`` if that branch is taken, else zeros: a derivative there may be infinite."""
        raise NotImplementedError(f"{type(self).__name__}.where_taken")

    # -- many calls at once -------------------------------------------------------------------

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        """A batch of calls (lanes) as one: the outputs and their axes, or None for a loop.

        If an entry of ``axes`` is 0, the input has an additional first dimension with an entry for
        each lane; if it is None, the input is the same for all lanes. At least one entry is 0. The
        axes of the outputs mean the same. The entries have the static sizes of a single call. The
        default leaves the batch to a loop (:func:`symdnn.ops.control.batching.batch_graph`);
        :mod:`symdnn.ops.core.lanes` has helpers for overriding it.
        """
        return None

    def short_with(self, inputs: Vars, axis: int) -> Sequence[tuple[Variable, int]] | None:
        """Axes of inputs: where each has at most one element, so has ``axis`` of the output.

        None if it may have more even then (the default). Only asked where the size is unknown.
        """
        return None

    @property
    def random_state(self) -> int | None:
        """The input that is the state of a generator which it advances; None for all other ops.

        The output of the state's type is the next state. Calls with one state draw one after the
        other.
        """
        return None

    # -- what it reads ------------------------------------------------------------------------

    @property
    def size_of(self) -> int | None:
        """The dimension of its input whose size it returns; None for all other ops."""
        return None

    # -- what a schedule may do with it -------------------------------------------------------

    @property
    def host_inputs(self) -> tuple[int, ...]:
        """Inputs whose *values* (integer scalars) are read on the host: shapes, bounds, axes."""
        return ()

    @property
    def choosing_inputs(self) -> tuple[int, ...]:
        """Host inputs that choose among elements: no shape depends on them."""
        return ()

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        """Host inputs that determine more than shapes, such as a slice's start."""
        return self.host_inputs

    @property
    def shape_inputs(self) -> tuple[int, ...]:
        """Inputs of which only the shape is read, when a plan is made."""
        return ()

    @property
    def views(self) -> Mapping[int, int]:
        """Output -> input of which it is a view: the same memory with another shape or strides."""
        return {}

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        """Output -> inputs whose buffers it may overwrite while they are read."""
        return {}

    # -- in files -----------------------------------------------------------------------------

    def portable(self) -> Op:
        """The op as data alone: without Python functions that its value does not need."""
        return self

    @classmethod
    def upgraded(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of a file of an earlier ``saved_version`` as those of now.

        A field that is added with a default which means what the op did before needs no new
        version. Raises ``ValueError`` for a version that is no longer read.
        """
        raise ValueError(f"{cls.__name__} of version {version} is no longer read")

    # -- applying it --------------------------------------------------------------------------

    def output_types(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """:meth:`infer` as a tuple."""
        out = self.infer(*inputs)
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    def typed(self, inputs: Sequence[Variable]) -> tuple[Type, ...]:
        """Types of the outputs, with the names of sizes that follow from those of ``inputs``.

        Raises ``TypeMismatch``, and ``ShapeMismatch`` if sizes that must be equal differ in name.
        """
        return with_names(self, inputs, self.output_types([v.type for v in inputs]))

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        """:meth:`reference` as a tuple of arrays."""
        out = self.reference(*inputs)
        return tuple(out) if isinstance(out, tuple | list) else (np.asarray(out),)

    def comparable(self, results: Sequence[Any]) -> Sequence[Any]:
        """Of results what all right kernels have in common, each in the place of one result.

        The results, but where some are arbitrary, as signs of eigenvectors are.
        """
        return results

    def make_node(self, *inputs: Any, hints: Hints | None = None) -> Apply:
        """The node of this op on these inputs."""
        variables = []
        for i in inputs:
            v = i if isinstance(i, Variable) else as_variable(i)
            if isinstance(v, Constant) and v.number is not None:
                v = v.settled()
            variables.append(v)
        node = Apply(self, variables, self.typed(variables), None, hints)
        if _test_values() != "off":
            from symdnn.graph.values.test_values_flag import attach_test_values

            attach_test_values(node)
        if _float64() != "ignore":
            from symdnn.graph.values.float64 import report_float64_node

            report_float64_node(node)
        return node

    def __call__(
        self, *inputs: Any, hints: Hints | None = None, name: str | None = None
    ) -> Variable:
        """Apply to variables (or numbers, arrays); the output variable, or a tuple of them.

        Applied to patterns it makes a :class:`~symdnn.graph.pattern.Pattern`.
        """
        for i in inputs:
            if isinstance(i, Pattern):
                return cast(Variable, Pattern(self, inputs))
        if holds_pattern(self):
            return cast(Variable, Pattern(self, inputs))
        node = self.make_node(*inputs, hints=hints)
        if name is not None:
            node.outputs[0].name = name
        return cast(Variable, self.results(node))

    def results(self, node: Apply) -> Any:
        """What applying the op returns: the only output (a tuple for a :class:`MultiOp`)."""
        return node.outputs[0]

    def __str__(self) -> str:
        parameters: tuple[Any, ...] = fields(cast(Any, self)) if is_dataclass(self) else ()
        given = [f"{f.name}={_short(getattr(self, f.name))}" for f in parameters if f.repr]
        return f"{type(self).__name__}{{{', '.join(given)}}}" if given else type(self).__name__


class MultiOp(Op):
    """An op with several outputs: :meth:`infer` and :meth:`reference` return tuples."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]  # where an op has one output, it is returned alone
            self, *inputs: Any, hints: Hints | None = None, name: str | None = None
        ) -> tuple[Variable, ...]: ...

    def results(self, node: Apply) -> Any:
        return node.outputs


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

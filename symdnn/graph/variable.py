"""Variables, constants, shared variables, and the nodes (``Apply``) that make them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from operator import index
from types import SimpleNamespace
from typing import Any, Generic

import numpy as np

from symdnn.config import config
from symdnn.errors import NdimMismatch, ShapeMismatch, SymbolicValueError
from symdnn.graph.methods.elementwise import ElementwiseMethods
from symdnn.graph.methods.reductions import ReductionMethods
from symdnn.graph.operators import TensorMethods, operator
from symdnn.graph.origin import (
    NO_HINTS,
    Hints,
    Origin,
    Written,
    current_hints,
    make_origin,
    make_written,
)
from symdnn.graph.tracing import computes_truth, is_tracing, traced_truth
from symdnn.graph.type import TensorType, Type, dtype_name, tensor_type
from symdnn.graph.typing import DtypeLike, OpT
from symdnn.graph.values.interop import check_as, home, is_on_device, place, place_as
from symdnn.graph.values.storage import Storage
from symdnn.graph.values.value import as_numpy, constant_array

__all__ = ["Apply", "Constant", "Shared", "Variable", "as_variable", "constant"]


class Variable(TensorMethods, ElementwiseMethods, ReductionMethods):
    """A symbolic value: an input, or output ``index`` of the node ``owner``.

    ``type`` is its static type. Variables compare by identity, so they can be keys of dicts; a
    comparison such as ``x < 1`` is symbolic and has no truth value.
    """

    # A dict is made only for a variable to which a program gives attributes of its own.
    __slots__ = (
        "__dict__", "__weakref__", "_evaluated", "_tag", "index", "name", "owner", "short_axes",
        "stable_form_of", "type",
    )  # fmt: skip

    #: The class of the Python number that it stands for, which takes the dtype of arrays in an op.
    number_kind: type | None = None
    #: The op and the operands of a float of integers and numbers (`symdnn.ops.core.unrounded`).
    unrounded: tuple[Callable[..., Variable], tuple[Variable, ...]] | None = None
    #: Whether :meth:`clone` made it, so that it has no value of its own.
    is_clone: bool = False

    def __init__(
        self,
        type: Type,
        name: str | None = None,
        owner: Apply | None = None,
        index: int | None = None,
    ) -> None:
        # The few places that may meet an opaque type test for it.
        self.type: TensorType = type  # type: ignore[assignment]
        self.name = name
        self.owner = owner
        self.index = index
        self._tag: SimpleNamespace | None = None
        self._evaluated: dict[tuple[Any, ...], Any] | None = None  # the functions of eval
        #: The variable with the same value of which a gradient made this one (`symdnn.stable`).
        self.stable_form_of: Variable | None = None
        #: The axes of unknown size that are no longer than 1, once found (`core/short_axes.py`).
        self.short_axes: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.type.ndim)

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return str(self.type.dtype)

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        """``True`` for each dimension that is statically 1."""
        return tuple(self.type.broadcastable)

    @property
    def tag(self) -> SimpleNamespace:
        """A place for the user's own attributes (``x.tag.test_value = ...``)."""
        if self._tag is None:
            self._tag = SimpleNamespace()
        return self._tag

    @property
    def test_value(self) -> Any:
        """``tag.test_value``, or None."""
        return getattr(self._tag, "test_value", None)

    def get_parents(self) -> list[Apply]:
        """The node that makes this variable, in a list; nothing for an input."""
        return [] if self.owner is None else [self.owner]

    def clone(self, name: str | None = None) -> Variable:
        """A new free variable of the same type and name."""
        other = Variable(self.type, name or self.name)
        other._tag, other.is_clone = copy.copy(self._tag), True
        return other

    def __iter__(self) -> Iterator[Variable]:
        size = self.type.shape[0] if getattr(self.type, "ndim", 0) else None
        if size is None:
            advice = getattr(self._tag, "unpacking", "use scan, or give it a static shape")
            raise SymbolicValueError(
                f"cannot iterate over {self}: the length of its first dimension is unknown; "
                f"{advice}"
            )
        return (self[i] for i in range(size))

    def __bool__(self) -> bool:
        compared = computes_truth(self)
        if (is_tracing() or compared) and (known := operator("known_number")(self)) is not None:
            return bool(known)
        if is_tracing():
            raise SymbolicValueError(traced_truth(self))
        if compared:
            raise SymbolicValueError(
                f"the truth of {self} is not known before it runs; use switch or ifelse, "
                "or `x is None` for a test of the variable itself"
            )
        return True

    def __int__(self) -> int:
        return int(operator("known_number")(self, "int"))

    def __float__(self) -> float:
        return float(operator("known_number")(self, "float"))

    def __index__(self) -> int:
        return index(operator("known_number")(self, "an index, a range or int"))

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        if self.owner is None:
            return f"<{self.type}>"
        if len(self.owner.outputs) == 1:
            return f"{self.owner.op}.0"
        return f"{self.owner.op}.{self.index}"

    def __repr__(self) -> str:
        if config.print_test_value and self.test_value is not None:
            return f"{self}\n{self.test_value!r}"
        return str(self)

    def _repr_html_(self) -> str:
        """The variable in a notebook: formula and type."""
        return str(operator("repr_html")(self))

    def __copy__(self) -> Variable:
        return Variable(self.type, self.name, self.owner, self.index)

    def __deepcopy__(self, memo: dict[int, object]) -> Variable:
        from symdnn.graph.pickling import deepcopy_variable

        return deepcopy_variable(self, memo)

    def __reduce__(self) -> tuple[object, ...]:
        from symdnn.graph.pickling import reduce_leaf, reduce_variable

        return reduce_leaf(self) if self.owner is None else reduce_variable(self)


class Constant(Variable):
    """A value known when the graph is built. ``data`` is a read-only array.

    ``exact`` is the number before it was rounded to a float16 or bfloat16 of one element: fused
    elementwise chains, which compute in float32, use it. ``number`` is the Python number if no
    dtype was given: with arrays it takes their dtype.
    """

    __slots__ = ("_key", "data", "exact", "number", "read_of")

    def __init__(
        self,
        data: np.ndarray[Any, Any],
        name: str | None = None,
        exact: float | None = None,
        number: Any = None,
    ) -> None:
        array = np.array(data, copy=True)
        array.flags.writeable = False
        dtype = dtype_name(array.dtype)
        super().__init__(tensor_type(dtype, array.shape), name)
        self.data = array
        narrow = dtype in ("float16", "bfloat16") and array.size == 1
        self.exact = exact if narrow else None
        self.number = number
        if number is not None:
            self.number_kind = type(number)
        self._key: tuple[Any, ...] | None = None
        #: The variable whose type has this size; a function with this constant needs the variable.
        self.read_of: Variable | None = None

    def reading(self, v: Variable) -> Constant:
        """This constant, marked as a size of the type of ``v``."""
        self.read_of = v
        return self

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """``data``, under Theano's other name."""
        return self.data

    def key(self) -> tuple[Any, ...]:
        """A key that is equal for constants of equal type and equal bytes."""
        if self._key is None:
            self._key = (self.type, self.data.tobytes(), self.exact)
        return self._key

    def settled(self) -> Constant:
        """This constant with a fixed dtype, as an input of a node."""
        if self.number is None:
            return self
        made = Constant(self.data, self.name, self.exact)
        made.read_of = self.read_of
        return made

    def reshaped(self, shape: tuple[int, ...]) -> Constant:
        """The same numbers in another shape."""
        made = Constant(self.data.reshape(shape), self.name, self.exact, self.number)
        made.read_of = self.read_of
        return made

    def clone(self, name: str | None = None) -> Variable:
        return Constant(self.data, name or self.name, self.exact, self.number)

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        if self.data.size > 8:
            return f"Constant{{{self.type}}}"
        return f"{self.data.tolist()}"

    def __reduce__(self) -> tuple[object, ...]:
        return Constant, (self.data, self.name, self.exact, self.number)

    def __copy__(self) -> Variable:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Variable:
        return self


class Shared(Variable):
    """A variable with a value of its own that functions read and update.

    The value is in ``storage``. ``default_update`` is an expression that functions which read this
    variable write back, unless their arguments say otherwise. Optimisers obey ``requires_grad``.
    """

    __slots__ = ("_default_update", "requires_grad", "storage")

    def __init__(self, type: Type, storage: Storage, name: str | None = None) -> None:
        super().__init__(type, name)
        self.storage = storage
        self._default_update: Variable | None = None
        self.requires_grad = True

    @property
    def default_update(self) -> Variable | None:
        """The next value, which functions that read this variable write back; None for none."""
        return self._default_update

    @default_update.setter
    def default_update(self, new: Variable | None) -> None:
        self._default_update = new

    @default_update.deleter
    def default_update(self) -> None:
        self._default_update = None

    @classmethod
    def on_device(
        cls, value: object, name: str | None = None, static: Any = None, borrow: bool = False,
        dtype: str | None = None,
    ) -> Shared:  # fmt: skip
        """A variable whose value is an array on a device and stays there.

        ``static`` are dimensions as in ``TensorType``, ``dtype`` the wanted dtype of the array.
        """
        what = f"shared {name or ''}".strip()
        made = place(value, what)
        type_ = TensorType(dtype or made.dtype, static or (None,) * len(made.shape))
        check_as(made, type_, what)
        return cls(type_, Storage.placed(made, borrow), name)

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """The value: a copy, or with ``borrow`` on the CPU the array itself that functions use.

        With ``return_internal_type`` the result is the memory on the GPU, without a copy, if the
        value is there or belongs there by the flag ``device``: PyCUDA's ``GPUArray``, or without
        PyCUDA a ``symdnn.gpu.DeviceArray``.
        """
        if not return_internal_type:
            return self.storage.get(borrow=borrow)
        return self.storage.get(borrow=borrow, internal=True, home=home(self.type))

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type of device and its index, of the memory that :meth:`__dlpack__` gives."""
        device: tuple[int, int] = self.storage.export(home(self.type)).__dlpack_device__()
        return device

    def __dlpack__(self, **words: object) -> Any:
        """A DLPack capsule of the value's own memory, so that other libraries have it in place.

        It is what ``get_value(borrow=True, return_internal_type=True)`` gives: what they write
        changes the variable. ``words`` are those of the array API standard (``stream``,
        ``max_version``, ``dl_device``, ``copy``).

        Raises ``BufferError`` for what can't be exported.
        """
        return self.storage.export(home(self.type)).__dlpack__(**words)

    def set_value(self, new_value: object, borrow: bool = False) -> None:
        """Replace the value; dtype and ndim must stay, static dimensions too.

        An array on a GPU (PyCUDA's ``GPUArray``, or any with ``__cuda_array_interface__`` or
        ``__dlpack__``) is copied there; with ``borrow`` its memory becomes the variable's.

        Raises :class:`~symdnn.errors.InputError` for another dtype or ndim, or for an array of
        another CUDA context.
        """
        if is_on_device(new_value):
            self.storage.take(place_as(new_value, self.type, f"set_value of {self}"), borrow)
            return
        array = as_numpy(new_value, self.type, f"set_value of {self}")
        self.storage.set(array, borrow=borrow and array is new_value)

    def zero(self, borrow: bool = False) -> None:
        """Set every element to 0."""
        self.set_value(np.zeros_like(self.get_value(borrow=True)))

    @property
    def value(self) -> Any:
        """A copy of the value, and what assigns it: Theano's name before ``get_value``."""
        return self.get_value()

    @value.setter
    def value(self, new: object) -> None:
        self.set_value(new)

    @property
    def container(self) -> Any:
        """The storage, under Theano's name; ``container.data`` is the value."""
        return self.storage

    def clone(self, name: str | None = None) -> Variable:
        """Another shared variable with the same storage."""
        other = self._kind(self.type, self.storage, name or self.name)
        other.default_update, other.requires_grad = self.default_update, self.requires_grad
        other._tag = copy.copy(self._tag)
        return other

    def __copy__(self) -> Variable:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, object]) -> Variable:
        other = self._kind(self.type, copy.deepcopy(self.storage, memo), self.name)
        memo[id(self)] = other  # first, since the update may read this variable
        other.default_update = copy.deepcopy(self.default_update, memo)
        other._tag, other.requires_grad = copy.deepcopy(self._tag, memo), self.requires_grad
        return other

    def __reduce__(self) -> tuple[object, ...]:
        state = (self.default_update, self._tag, self.requires_grad)
        return self._kind, (self.type, self.storage, self.name), state

    @property
    def _kind(self) -> type[Shared]:
        """What copies are: of its class, unless that is made of other arguments."""
        kind = type(self)
        return kind if kind.__init__ is Shared.__init__ else Shared

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.default_update, self._tag, self.requires_grad = (*state, True)[:3]  # of older files


class Apply(Generic[OpT]):
    """An op applied to inputs: one node of the graph.

    ``origin`` is the user's line, ``hints`` the choices for this node alone. Nodes whose effects
    are ordered run in the order of ``written``; copies and replacements keep it.
    """

    __slots__ = ("__weakref__", "hints", "inputs", "op", "origin", "outputs", "written")

    def __init__(
        self,
        op: OpT,
        inputs: Sequence[Variable],
        output_types: Sequence[Type],
        origin: Origin | None = None,
        hints: Hints | None = None,
        written: Written | None = None,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.origin = make_origin() if origin is None else origin
        hints = current_hints() if hints is None else hints
        self.hints = hints if hints is NO_HINTS or hints else NO_HINTS
        self.written = written or make_written()
        if len(output_types) == 1:
            self.outputs: tuple[Variable, ...] = (Variable(output_types[0], None, self, 0),)
        else:
            self.outputs = tuple([Variable(t, None, self, i) for i, t in enumerate(output_types)])

    @property
    def out(self) -> Variable:
        """The only output."""
        (only,) = self.outputs
        return only

    def get_parents(self) -> list[Variable]:
        """The inputs, in a list."""
        return list(self.inputs)

    def clone_with(self, inputs: Sequence[Variable]) -> Apply[OpT]:
        """The same op on other inputs, types inferred anew; names of outputs are kept."""
        try:
            types = self.op.typed(inputs)
        except ShapeMismatch as error:
            error.add_note(f"{self} was made here:\n{self.origin.text()}")
            raise
        node = Apply(self.op, inputs, types, self.origin, self.hints, self.written)
        for old, new in zip(self.outputs, node.outputs, strict=True):
            new.name, new._tag = old.name, old._tag
            if old.number_kind is not None and old.type.dtype == new.type.dtype:
                new.number_kind = old.number_kind
        return node

    def clone_with_new_inputs(self, inputs: Sequence[Variable], strict: bool = True) -> Apply[OpT]:
        """:meth:`clone_with`, under Theano's name; ``strict`` is accepted."""
        return self.clone_with(inputs)

    def default_output(self) -> Variable:
        """The first output, or the one whose number the op has as ``default_output``."""
        return self.outputs[getattr(self.op, "default_output", None) or 0]

    def __reduce__(self) -> tuple[object, ...]:
        from symdnn.graph.pickling import reduce_apply

        return reduce_apply(self)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.inputs))})"

    def __repr__(self) -> str:
        return str(self)


def constant(
    x: object, name: str | None = None, ndim: int | None = None, dtype: DtypeLike | None = None
) -> Constant:
    """A constant variable.

    A Python number gets the dtype of the arrays in the same op; alone an int is int64, a float
    ``floatX`` (with ``cast_policy=custom``, Theano's rule: the smallest integer dtype that holds
    it, and ``floatX``). An array keeps its dtype; ``ndim`` adds leading dimensions of size 1.
    """
    array = constant_array(x, dtype)
    if ndim is not None and ndim < array.ndim:
        raise NdimMismatch("constant", f"at most {ndim} dimensions", array.shape)
    if ndim is not None:
        array = array.reshape((1,) * (ndim - array.ndim) + array.shape)
    exact = float(x) if isinstance(x, float | int) and array.dtype.kind not in "biu" else None
    plain = dtype is None and type(x) in (int, float, complex)
    return Constant(array, name, exact, x if plain else None)


def as_variable(value: object, name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """``value`` itself if it is a variable, else a constant.

    A list or tuple that holds variables is stacked (``T.stack``).
    """
    if isinstance(value, Variable):
        return value
    if isinstance(value, list | tuple) and _holds_variable(value):
        return operator("stack")([as_variable(v) for v in value])
    return constant(value, name, dtype=dtype)


def _holds_variable(values: Sequence[Any]) -> bool:
    return any(
        isinstance(v, Variable) or (isinstance(v, list | tuple) and _holds_variable(v))
        for v in values
    )

"""Names of ``theano.compile``: functions, modes, shared variables."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from symdnn.compat.theano.names.random_names import state_of
from symdnn.compat.theano.names.types import (
    DisconnectedType,
    Generic,
    Instances,
    NullType,
    SharedObject,
    SharedVariable,
    TensorSharedVariable,
    generic,
)
from symdnn.compat.theano.names.user_ops import FromFunctionOp, ViewOp, as_op
from symdnn.compile import function as _function
from symdnn.compile import shared as _shared
from symdnn.compile.call.arguments import In, Out
from symdnn.compile.call.compiled_function import Function
from symdnn.compile.modes.debug import DebugMode as _DebugMode
from symdnn.compile.modes.modes import get_mode as _get_mode
from symdnn.compile.modes.monitor import MonitorMode as _MonitorMode
from symdnn.compile.nanguard import NanGuardMode as _NanGuardMode
from symdnn.compile.program.mode import Mode
from symdnn.compile.report.profile import FunctionProfile, print_at_exit
from symdnn.config import config
from symdnn.errors import DebugModeError, UnusedInputError
from symdnn.graph.traverse import ancestors, clone, graph_inputs
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.array.view import SpecifyShape
from symdnn.ops.control.from_graph import OpFromGraph as _OpFromGraph
from symdnn.ops.core.shape import ShapeI as Shape_i
from symdnn.ops.core.shape import ShapeVector as Shape
from symdnn.ops.core.shape import SpecifyType as Rebroadcast
from symdnn.ops.core.shape import shape, shape_i
from symdnn.tensor import specify_shape

__all__ = [
    "DebugMode", "DebugModeError", "DisconnectedType", "FAST_COMPILE", "FAST_RUN",
    "FromFunctionOp", "Function", "FunctionMaker", "Generic", "In", "Mode", "MonitorMode",
    "NanGuardMode", "NullType", "OpFromGraph", "Out", "Param", "ProfileMode", "ProfileStats",
    "Rebroadcast", "Shape", "Shape_i", "SharedVariable", "SpecifyShape", "SymbolicInput",
    "SymbolicOutput", "TensorSharedVariable", "UnusedInputError", "Variable", "ViewOp", "as_op",
    "deep_copy_op", "detect_nan", "function", "function_dump", "generic", "get_default_mode",
    "get_mode",
    "may_share_memory", "optdb", "orig_function", "pfunc", "predefined_linkers",
    "predefined_modes", "predefined_optimizers", "rebuild_collect_shared", "shape", "shape_i",
    "shared", "shared_constructor", "specify_shape", "view_op",
]  # fmt: skip

FAST_RUN = Mode(optimizer="fast_run")
FAST_COMPILE = Mode(optimizer="fast_compile")
predefined_modes: dict[str, Any] = {"FAST_RUN": FAST_RUN, "FAST_COMPILE": FAST_COMPILE}
predefined_optimizers = dict.fromkeys(
    ["None", "merge", "o1", "o2", "o3", "o4", "fast_run", "fast_compile", "unsafe"]
)
predefined_linkers = dict.fromkeys(
    ["py", "c", "c|py", "c|py_nogc", "vm", "cvm", "vm_nogc", "cvm_nogc"]
)
SymbolicInput, SymbolicOutput = In, Out
FunctionMaker = Function
may_share_memory = np.may_share_memory
view_op = deep_copy_op = ViewOp()


def Param(variable: Variable, default: Any = None, **words: Any) -> In:
    """Theano's old name of ``In``, whose default value is called ``default``."""
    return In(variable, value=default, **words)


def get_default_mode() -> Mode:
    """The mode of the flag ``mode``."""
    return _get_mode(None)


def get_mode(orig: object = None) -> Mode:
    """The mode of a name, a mode itself, or for None that of the flag ``mode``."""
    if isinstance(orig, str) and orig in predefined_modes:
        return predefined_modes[orig]  # type: ignore[no-any-return]
    return _get_mode(_named(orig))


def _named(mode: object) -> Any:
    return None if mode in ("Mode", "ProfileMode", "PROFILE_MODE") else mode


def register_mode(name: str, mode: Mode) -> None:
    """Give a mode a name for :func:`function`."""
    if name in predefined_modes:
        raise ValueError(f"the mode {name!r} exists already")
    predefined_modes[name] = mode


def detect_nan(i: int, node: Any, fn: Any) -> None:
    """A function for ``MonitorMode(post_func=)``: prints a node that computed a NaN."""
    from symdnn.printing import debugprint

    if any(np.isnan(cell[0]).any() for cell in fn.outputs if cell[0].dtype.kind in "fc"):
        print("*** NaN detected ***")
        debugprint(node.outputs[0])
        print(f"Inputs : {[cell[0] for cell in fn.inputs]}")
        print(f"Outputs: {[cell[0] for cell in fn.outputs]}")


#: What Theano's DebugMode raises, each by the name of what it found.
BadOptimization = BadThunkOutput = BadDestroyMap = BadViewMap = DebugModeError
InvalidValueError = StochasticOrder = DebugModeError


class AliasedMemoryError(Exception):
    """Two inputs share memory that one of them would overwrite; inputs are never overwritten."""


#: Theano's optimisers by the names of its modes' module.
OPT_NONE, OPT_MERGE, OPT_FAST_COMPILE, OPT_FAST_RUN = "None", "merge", "fast_compile", "fast_run"
OPT_FAST_RUN_STABLE, OPT_STABILIZE, OPT_UNSAFE = "fast_run", "fast_run", "unsafe"
OPT_O2 = OPT_O3 = "fast_run"


def contains_nan(arr: object, node: object = None, var: object = None) -> bool:
    """Whether an array of floats has a NaN."""
    value = np.asarray(arr)
    return value.dtype.kind in "fc" and bool(np.isnan(value).any())


def contains_inf(arr: object, node: object = None, var: object = None) -> bool:
    """Whether an array of floats has an infinity."""
    value = np.asarray(arr)
    return value.dtype.kind in "fc" and bool(np.isinf(value).any())


class NanGuardMode(_NanGuardMode):
    """:class:`symdnn.NanGuardMode` with Theano's order of arguments."""

    def __init__(
        self, nan_is_error: bool | None = None, inf_is_error: bool | None = None,
        big_is_error: bool | None = None, optimizer: Any = "default", linker: Any = None,
        **words: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            linker, optimizer, nan_is_error=nan_is_error, inf_is_error=inf_is_error,
            big_is_error=big_is_error, **words,
        )  # fmt: skip


class MonitorMode(_MonitorMode):
    """:class:`symdnn.MonitorMode` with Theano's order of arguments."""

    def __init__(
        self, pre_func: Any = None, post_func: Any = None, optimizer: Any = "default",
        linker: Any = None, **words: Any,
    ) -> None:  # fmt: skip
        super().__init__(linker, optimizer, pre_func=pre_func, post_func=post_func, **words)


class DebugMode(_DebugMode):
    """:class:`symdnn.DebugMode` with Theano's order of arguments."""

    def __init__(
        self, optimizer: Any = "default", stability_patience: int | None = None,
        check_c_code: bool | None = None, check_py_code: bool | None = None,
        check_isfinite: bool | None = None, check_preallocated_output: Any = None,
        require_matching_strides: bool | None = None, linker: Any = None, **words: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            linker, optimizer, stability_patience=stability_patience, check_c_code=check_c_code,
            check_py_code=check_py_code, check_isfinite=check_isfinite,
            check_preallocated_output=check_preallocated_output,
            require_matching_strides=require_matching_strides, **words,
        )  # fmt: skip


class ProfileMode(Mode):
    """Theano's old mode that profiles; use ``function(..., profile=True)``."""

    def print_summary(self, **words: object) -> None:
        """Nothing: with the flag ``profile`` a table is printed when the process ends."""


class ProfileStats(FunctionProfile):
    """What Theano collects a profile in: ``f.profile`` of a function of ``profile=`` this one.

    It prints itself when the process ends, unless ``atexit_print`` is false.
    """

    def __init__(self, atexit_print: bool = True, **words: Any) -> None:
        super().__init__(str(words.get("message") or "a ProfileStats"))
        self.message = words.get("message", "")
        if atexit_print:
            print_at_exit(self)


def function(
    inputs: Any, outputs: Any = None, mode: object = None, updates: Any = None, givens: Any = None,
    no_default_updates: Any = False, accept_inplace: bool = False, name: str | None = None,
    rebuild_strict: bool = True, allow_input_downcast: bool | None = None, profile: object = None,
    on_unused_input: str | None = None,
) -> Function:  # fmt: skip
    """``theano.function``: :func:`symdnn.function` that takes Theano's words for modes."""
    profiled = True if isinstance(mode, ProfileMode) and profile is None else profile
    chosen = predefined_modes[mode] if isinstance(mode, str) and mode in predefined_modes else mode
    if isinstance(inputs, list | tuple):
        inputs = [_input(i) for i in inputs]
    _refuse_objects(inputs, outputs)
    if not rebuild_strict and givens:
        outputs, updates, givens = _rebuilt(outputs, updates, givens)
    return _function.function(
        inputs, outputs, _named(chosen), updates,
        givens, no_default_updates, accept_inplace, name, rebuild_strict,
        allow_input_downcast, profiled, on_unused_input,
    )  # fmt: skip


def _rebuilt(outputs: object, updates: Any, givens: Any) -> tuple[Any, Any, None]:
    """Outputs and updates with ``givens`` in place, which may have other types."""
    made = {k: as_variable(v) for k, v in dict(givens).items()}
    pairs = list(dict(updates or {}).items())
    wanted = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    plain = [v for v in wanted if v is not None] + [v for _, v in pairs]
    found = clone(plain, made, strict=False)
    new = found[: len(found) - len(pairs)] if pairs else found
    updated = [(k, v) for (k, _), v in zip(pairs, found[len(new) :])]
    if outputs is None or isinstance(outputs, list | tuple):
        return list(new) if outputs is not None else None, updated, None
    return new[0], updated, None


def _refuse_objects(inputs: object, outputs: object) -> None:
    given = list(inputs) if isinstance(inputs, list | tuple) else []
    wanted = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    plain = [getattr(v, "variable", v) for v in (*given, *wanted)]
    made = [v for v in plain if isinstance(v, Variable)]
    for v in graph_inputs(made):
        kind: Any = getattr(v, "type", None)
        if isinstance(kind, NullType):
            raise TypeError(f"function: a gradient is not defined: {kind.why_null}")
        if isinstance(kind, Generic) or isinstance(type(kind), Instances):
            raise TypeError(
                f"function: {v} is a Python object ({kind}), and functions compute arrays. "
                "Let the op keep the object, as an attribute that __props__ names"
            )


def _input(given: object) -> Any:
    """Theano's first form of inputs: ``(variable, value)``, ``((variable, update), value)``, with a
    name before or not."""
    if isinstance(given, In) and isinstance(given.value, np.random.RandomState):
        given = copy.copy(given)
        given.value = state_of(given.value)
    if not isinstance(given, list | tuple):
        return given
    rest = list(given)
    name = rest.pop(0) if isinstance(rest[0], str) else None
    first = rest.pop(0)
    pair = isinstance(first, list | tuple)
    variable, update = first if pair else (first, None)
    value = rest.pop(0) if rest else None
    return In(variable, name=name, value=value, update=update)


def pfunc(params: Any, outputs: Any = None, *args: Any, **words: Any) -> Function:
    """The older name of :func:`function`."""
    return function(params, outputs, *args, **words)


def orig_function(inputs: Any, outputs: Any, mode: Any = None, **words: Any) -> Function:
    """The inner form of :func:`function`."""
    return function(inputs, outputs, mode=mode, **words)


class OpFromGraph(_OpFromGraph):
    """:class:`symdnn.OpFromGraph` with Theano's ``connection_pattern[input][output]``: inputs that
    it says are not connected have no gradient. ``on_unused_input`` is accepted."""

    def __init__(
        self, inputs: Any, outputs: Any, inline: bool = False, lop_overrides: Any = "default",
        grad_overrides: Any = "default", rop_overrides: Any = "default",
        connection_pattern: Any = None, name: str | None = None, **words: Any,
    ) -> None:  # fmt: skip
        words.pop("on_unused_input", None)
        lop, grad, rop = map(_without_types, (lop_overrides, grad_overrides, rop_overrides))
        super().__init__(inputs, outputs, inline, lop, grad, rop, name)
        object.__setattr__(self, "_pattern", connection_pattern)

    def connection_pattern(self, node: object) -> list[list[bool]]:
        """For each input and output, whether the output depends on the input."""
        given = self.__dict__.get("_pattern")
        if given is not None:
            stated: list[list[bool]] = given(node) if callable(given) else given
            return stated
        above = [set(ancestors([o])) for o in self.inner.outputs]
        return [[v in reached for reached in above] for v in self.inner.inputs]

    def vjp(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        found = super().vjp(inputs, outputs, cotangents)
        if self.__dict__.get("_pattern") is None:
            return found
        rows = self.connection_pattern(outputs[0].owner)
        return [g if i >= len(rows) or any(rows[i]) else None for i, g in enumerate(found)]


@dataclass(frozen=True)
class _WithoutTypes:
    """An override of a gradient, whose results of ``DisconnectedType`` are None."""

    override: Any

    def __call__(self, *groups: object) -> Any:
        found = self.override(*groups)
        given = found if isinstance(found, list | tuple) else [found]
        grads = [None if g is not None and isinstance(getattr(g, "type", None), DisconnectedType)
                 else g for g in given]  # fmt: skip
        return grads if isinstance(found, list | tuple) else grads[0]


def _without_types(override: object) -> Any:
    """:class:`_WithoutTypes` of each override that is a function."""
    if isinstance(override, list | tuple):
        return [_without_types(o) for o in override]
    if not callable(override) or isinstance(override, _OpFromGraph):
        return override
    return _WithoutTypes(override)


def function_dump(
    filename: str, inputs: Any, outputs: Any = None, extra_tag_to_remove: object = None,
    **words: Any,
) -> None:  # fmt: skip
    """Pickle the arguments of :func:`function` to a file, as a dict: of what ``pickle.load`` finds
    there, ``theano.function(**found)`` makes the function."""
    with open(filename, "wb") as file:
        pickle.dump({"inputs": inputs, "outputs": outputs, **words}, file, -1)


def shared(
    value: TensorLike, name: str | None = None, strict: bool = False,
    allow_downcast: bool | None = None,
    **words: Any,
) -> Any:  # fmt: skip
    """``theano.shared``: a shared variable of an array, a number, a sparse matrix or an object.

    ``target`` and ``force_type`` are accepted: the compiler places values.
    """
    words.pop("target", None)
    words.pop("force_type", None)
    if words.get("broadcastable") is None:
        words.pop("broadcastable", None)
    if isinstance(value, Variable):
        raise TypeError("theano.shared takes a value, got the variable " + str(value))
    if hasattr(value, "tocsr"):
        from symdnn.compat.theano.names.sparse_names import shared_sparse

        return shared_sparse(value, name, **words)
    if isinstance(value, list) and config.floatX == "float32":
        value = np.asarray(value)
    if _is_numeric(value):
        made = _shared.shared(value, name, strict, allow_downcast, **words)
        if type(made) is Shared and (strict or allow_downcast):
            made.__class__ = StrictShared if strict else NarrowingShared
        return made
    return SharedObject(value, name)


class NarrowingShared(Shared):
    """A shared variable made with ``allow_downcast``: values that it is set to lose digits."""

    __slots__ = ()

    def set_value(self, new_value: object, borrow: bool = False) -> None:
        """Replace the value, narrowed to the variable's dtype."""
        super().set_value(self.type.filter(new_value, allow_downcast=True), borrow)


class StrictShared(Shared):
    """A shared variable made with ``strict``: it is set to arrays of its dtype alone."""

    __slots__ = ()

    def set_value(self, new_value: object, borrow: bool = False) -> None:
        """Replace the value. Raises ``TypeError`` for what is no array of the variable's type."""
        super().set_value(self.type.filter(new_value, strict=True), borrow)


def _is_numeric(value: object) -> bool:
    if isinstance(value, Mapping | str | np.random.RandomState | np.random.Generator):
        return False
    if value is None or callable(value):
        return False
    if isinstance(value, Number | list | tuple):
        return True
    arrays = ("__array__", "__cuda_array_interface__", "__dlpack__")
    made = any(hasattr(value, name) for name in arrays)
    return made and (not isinstance(value, np.ndarray) or value.dtype.kind != "O")


def shared_constructor(ctor: object, remove: bool = False) -> Any:
    """Theano's register of constructors of shared variables; there is one here, and none added."""
    return ctor


def rebuild_collect_shared(
    outputs: object,
    inputs: Any = None,
    replace: object = None,
    updates: Any = None,
    **words: object,
) -> Any:
    """``(inputs, outputs, [clones, updates, update expressions, shared variables])`` of a graph in
    which ``replace`` was done."""
    new = clone(outputs, replace)
    all_ = new if isinstance(new, list) else [new]
    found = [v for v in graph_inputs(all_) if isinstance(v, Shared)]
    return list(inputs or []), new, [{}, dict(updates or {}), [], found]


class _NoDatabase:
    """Theano's ``optdb``: a database of rewrites, to which a program can't add here."""

    def __getattr__(self, name: str) -> Any:
        from symdnn.compat.theano.absent import advice

        raise AttributeError(f"optdb.{name}: {advice('theano.gof.optdb.register')}")


optdb = _NoDatabase()

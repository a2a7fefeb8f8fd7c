"""Launches that need no Python: a compiled function and its block of parameters.

Successive steps of a plan whose launches offer this (:meth:`native` of a launch) run as one call of
a builtin function. Python's ``PyCFunction_NewEx`` makes it from compiled code: a call takes 0.05
us, one by ctypes 0.3 us.

A kernel reads the data pointers of its operands from NumPy's array objects. An argument or result
is another object in each call. For those the kernel gets a stub: a few words laid out like an array
object, of which only the data pointer is set, at each call. Views of such operands have stubs of
their own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.fastcall_ir import (
    ALIGNED,
    DATA_OFFSET,
    DENSE,
    FLAGS_OFFSET,
    HEAD,
    ITEMS_OFFSET,
    MOST_AXES,
    MOST_OPERANDS,
    WHOLE_HEAD,
    module,
)
from symdnn.graph.values.storage import CHANGES

#: A group whose operands have more bytes releases Python's global lock while it runs.
_MIN_BYTES_TO_RELEASE_GIL = 1 << 18
_FASTCALL = 0x80  # METH_FASTCALL
_STUB_WORDS = DATA_OFFSET // 8 + 1
#: The words of ``whole`` for kept operands; a runtime's depth of calls, and that of none.
_KEPT, _DEPTH, _IDLE = 17, sys.intern("depth"), -1


@dataclass(frozen=True)
class FastCall:
    """A launch as a compiled function of one parameter, a block of 64-bit words.

    ``at`` has for each of (\\*inputs, \\*outputs, workspace) the index of the word for the address
    of its array object, or -1. ``status`` is the index of the word that is not 0 after a failure;
    with 0 the function returns the status instead, with -1 it never fails. ``extra`` has further
    pairs (index of a word, position in ``at``). ``skipped`` are bytes that the function skips at
    the start of operands, by their position. ``keep`` holds objects that must stay alive.
    ``renew`` is called before each call, with the array of the operand at a position. It brings up
    to date what the function reads in its place, such as a parameter in another layout.
    """

    address: int
    words: Any
    at: tuple[int, ...]
    status: int = -1
    extra: tuple[tuple[int, int], ...] = ()
    skipped: Mapping[int, int] = field(default_factory=dict)
    keep: Any = field(default=None, compare=False)
    renew: tuple[int, Callable[[Any], None]] | None = None

    @classmethod
    def of(cls, function: Any, words: Any, at: Sequence[int], **more: Any) -> FastCall:
        """For a ctypes function; ``words`` are copied."""
        if isinstance(function, jit.Code):  # compile here, so that Ctrl-C is not lost in a cast
            function = function.function
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return cls(address, type(words)(*words), tuple(at), keep=(function, more.pop("keep", None)),
                   **more)  # fmt: skip


class FastCallSeries(NamedTuple):
    """A launch as several such functions in turn.

    Each has its operands: indices into those of the launch, or arrays.
    """

    calls: Sequence[tuple[FastCall, Sequence[Any]]]


class FastCallOperand(NamedTuple):
    """An operand of a step: a ``fixed`` array, or ``offset`` bytes into argument ``argument``."""

    fixed: Any
    argument: int = -1
    offset: int = 0


class _MethodDef(ctypes.Structure):
    """``PyMethodDef`` of Python's C API."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("method", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]  # fmt: skip


@cache
def available() -> bool:
    """Whether this works here: it needs CPython, whose object layout is known, and LLVM."""
    if sys.implementation.name != "cpython" or jit.problem():
        return False
    try:
        return _offsets_are_right()
    except Exception:  # a Python or NumPy with other layouts: plans work without this
        return False


def _offsets_are_right() -> bool:
    """Whether array objects have the assumed layout, tried on two arrays."""
    good, turned = np.arange(6.0).reshape(2, 3), np.zeros((3, 2)).T
    field_at = ctypes.c_void_p.from_address(id(good) + DATA_OFFSET).value
    flags = ctypes.c_int.from_address(id(good) + FLAGS_OFFSET).value
    if field_at != good.ctypes.data or not flags & 1:
        return False
    return check(2)(good, good) is True and check(2)(good, turned) is False


@cache
def _definitions() -> dict[str, Any]:
    """The method definitions of the functions, which must stay as long as the process."""
    types = (ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    found: dict[str, Any] = {}
    for name in ("group", "loop", "check", "whole"):
        function = jit.compile_for_process(module, (name,), name, *types)
        address = ctypes.cast(function.function, ctypes.c_void_p).value
        found[name] = _MethodDef(f"symdnn_{name}".encode(), address, _FASTCALL, None)
        found[f"{name}'s code"] = function
    return found


def _builtin(name: str, table: Any) -> Any:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    return make(ctypes.addressof(_definitions()[name]), table, None)


def _address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _head(first: Sequence[int]) -> list[int]:
    words = [
        *first, id(None), _address_of("Py_IncRef"), _address_of("PyEval_SaveThread"),
        _address_of("PyEval_RestoreThread"), id(True), id(False), id(np.ndarray), 0,
    ]  # fmt: skip
    return words + [0] * (HEAD - len(words))


@cache
def check(count: int) -> Any:
    """A function of ``count`` objects: whether all are contiguous NumPy arrays."""
    return _builtin("check", np.array(_head([count, 0, 0]), np.int64))


class _Table(np.ndarray):
    """Words of a builtin function, with what they have addresses of."""

    keep: Any
    kept: Any


def whole_call(
    group: FastCallGroup, inputs: Sequence[Any], outputs: Sequence[tuple[Any, tuple[Any, ...]]],
    order: Sequence[int], otherwise: Any, same_flags: bool = False, runtime: Any = None,
) -> Any:  # fmt: skip
    """A call with everything around the group as one function; None where it is not possible.

    ``call(function, arguments)`` takes the tuple of arguments and returns a list of new arrays,
    which these ``outputs`` make: functions with one or two arguments. Arguments that are no arrays
    with dtypes and shapes as the ``inputs`` have, and the strides of those that are not contiguous,
    go to ``otherwise(function, arguments)``; with ``same_flags`` so do all where flags are others
    than now. ``order`` has the index of each of the group's arguments among inputs and outputs, or
    -1 for one that :func:`keep` gives; then calls while the ``runtime`` runs one go there, too.
    Python's lock is held all the time, so that nothing else runs.
    """
    axes = max((a.ndim for a in inputs), default=0)
    many = max(len(inputs) + len(outputs), len(order)) > MOST_OPERANDS
    if not inputs or many or axes > MOST_AXES or not group.alone or not _items_are_right():
        return None
    changes, scopes = config.state_parts()
    now, scope = changes[0], scopes.get()
    head = [
        len(inputs), len(outputs), len(order), id(None), 0,
        _address_of("PyObject_Vectorcall"), _address_of("PyList_New"), _address_of("Py_DecRef"),
        _definitions()["group"].method, id(group.table), id(otherwise), id(np.ndarray),
    ]  # fmt: skip
    if same_flags:
        head += [id(changes), id(now), id(scopes), id(scope), _address_of("PyContextVar_Get")]
    words = head + [0] * (_KEPT - len(head))
    kept = -1 in order
    if kept:  # the number in the list is another object until ``keep``
        get = _address_of("PyObject_GetAttr")
        words += [id(CHANGES), 0, id(runtime), id(_DEPTH), id(_IDLE), get]
    words += [0] * (WHOLE_HEAD - len(words))
    for a in inputs:
        rest = [0] * (MOST_AXES - a.ndim)
        flag = DENSE if a.flags.c_contiguous else ALIGNED
        words += [id(a.dtype), a.ndim, flag, *a.shape, *rest, *a.strides, *rest]
    for make, given in outputs:
        words += [id(make), len(given), *map(id, given), *[0] * (2 - len(given))]
    at = [max(k, 0) for k in order]
    table = np.array([*words, *at, *[0] * len(order)], np.int64).view(_Table)
    table.keep = group, [a.dtype for a in inputs], [*outputs], otherwise, now, scope, runtime
    return _builtin("whole", table)


def keep(function: Any, arrays: Sequence[Any]) -> None:
    """Give a function of :func:`whole_call` the operands that are no arguments; None for others.

    It reads them as long as no storage gets another buffer.
    """
    table, now = function.__self__, CHANGES[0]
    if table[_KEPT + 1] != id(now):
        table[_KEPT + 1] = id(now)
        table[len(table) - len(arrays) :] = [0 if a is None else id(a) for a in arrays]
        table.kept = now, arrays


@cache
def _items_are_right() -> bool:
    """Whether tuples and lists have the assumed layout, and one thread at a time runs Python."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    word, pair = ctypes.c_void_p.from_address, (object(), object())
    listed = [*pair]
    items = word(id(listed) + ITEMS_OFFSET).value
    found = items is not None and word(items + 8).value == id(pair[1])
    return found and word(id(pair) + ITEMS_OFFSET).value == id(pair[0])


class FastCallGroup:
    """Successive steps as one function of the arrays that change from call to call.

    ``call(*arrays)`` returns None. Anything else means that step :attr:`failed` reported an error.
    """

    def __init__(self, parts: Sequence[tuple[FastCall, Sequence[FastCallOperand]]]) -> None:
        self._parts = parts
        self._keep: list[Any] = []
        self._stubs: dict[tuple[int, int], int] = {}
        pointers: list[int] = []
        steps: list[int] = []
        nbytes = 0
        for native, operands in parts:
            for position, (at, operand) in enumerate(zip(native.at, operands)):
                if at >= 0:
                    skipped = native.skipped.get(position, 0)
                    native.words[at] = self._address(operand, pointers, skipped)
                    nbytes += 0 if operand.fixed is None else operand.fixed.nbytes
            for at, position in native.extra:
                native.words[at] = self._address(operands[position], pointers)
            steps += [native.status, native.address, ctypes.addressof(native.words)]
        head = _head([len(pointers) // 3, len(steps) // 3, int(nbytes > _MIN_BYTES_TO_RELEASE_GIL)])
        self.table = np.array([*head, *pointers, *steps], np.int64)
        self._renewals = [
            (native.renew[1], operands[native.renew[0]])
            for native, operands in parts
            if native.renew is not None
        ]
        #: Whether nothing else runs during a call: it keeps Python's lock, and renews nothing.
        self.alone = nbytes <= _MIN_BYTES_TO_RELEASE_GIL and not self._renewals
        self._call = _builtin("group", self.table)
        self.call = self._renewed_call if self._renewals else self._call
        self._loop = _builtin("loop", self.table)

    def _renew(self, arguments: Sequence[Any]) -> None:
        """Bring up to date what steps read in place of operands (:attr:`FastCall.renew`)."""
        for renew, (fixed, argument, offset) in self._renewals:
            array = fixed if argument < 0 else arguments[argument]
            renew(array.reshape(-1).view(np.uint8)[offset:] if offset else array)

    def _renewed_call(self, *arguments: Any) -> Any:
        self._renew(arguments)
        return self._call(*arguments)

    def repeat(self, times: int, arguments: Sequence[Any], strides: Sequence[int]) -> int:
        """Call it so often, each argument moved by so many bytes from one time to the next.

        Returns how often it went well. Python's global lock is released meanwhile.
        """
        self._renew(arguments)
        steps = np.array([*strides, 0], np.int64)
        self.table[_TIMES_WORD : _TIMES_WORD + 2] = times, steps.ctypes.data
        if self._loop(*arguments) is not None:
            native = self._parts[self.failed][0]
            if native.status > 0:
                native.words[native.status] = 0
        return int(self.table[_TIMES_DONE_WORD])

    def _address(self, operand: FastCallOperand, pointers: list[int], skipped: int = 0) -> int:
        """The address of the operand's array object or stub; a stub adds its pointer update."""
        if operand.argument < 0:
            if not skipped:
                return id(operand.fixed)
            stub = self._stub()
            stub[DATA_OFFSET // 8] = operand.fixed.ctypes.data + skipped
            return int(stub.ctypes.data)
        key = operand.argument, operand.offset + skipped
        if key not in self._stubs:
            self._stubs[key] = int(self._stub().ctypes.data)
            pointers += [*key, self._stubs[key] + DATA_OFFSET]
        return self._stubs[key]

    def _stub(self) -> Any:
        """Words laid out like an array object, kept as long as the group."""
        words = np.zeros(_STUB_WORDS, np.int64)
        self._keep.append(words)
        return words

    @property
    def failed(self) -> int:
        """Which step reported an error in the last call."""
        return int(self.table[_FAILED_STEP_WORD])


#: Index of the word of the table that says which step failed.
_FAILED_STEP_WORD = 10
#: Of those of a loop: how often, behind it the address of the steps, and how often it went well.
_TIMES_WORD, _TIMES_DONE_WORD = 11, 13

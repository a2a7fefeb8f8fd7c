"""Launches that need no Python: a block of words that a compiled function takes.

Steps of a plan that offer it (:meth:`native` of a launch) run as one call of a builtin function of
Python's. That is made of compiled code by Python's own ``PyCFunction_NewEx``: a call costs 0.05 us,
one of ctypes 0.3 us, and neither looks at the steps one by one.

A kernel reads where its operands lie from NumPy's array objects. For an operand that is another
object in each call, an argument or a result, it gets a stand-in, a few words of which one is the
address of the data; the call fills it in. Views of such operands have stand-ins of their own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.fastcall_ir import DATA_OFFSET, FLAGS_OFFSET, HEAD, module

__all__ = ["Group", "Native", "Operand", "available", "check"]

#: What is worth letting other threads of Python run meanwhile, in bytes of operands.
_LONG = 1 << 18
_FASTCALL = 0x80  # METH_FASTCALL
_STAND_IN = DATA_OFFSET // 8 + 1


@dataclass(frozen=True)
class Native:
    """A launch as a compiled function of one parameter, a block of 64-bit words.

    ``at`` has for each of (\\*inputs, \\*outputs, workspace) the word that takes the address of
    its array object, or -1. ``status`` is the word that is not 0 where it failed; with 0 the
    function itself returns that, with -1 it never fails. ``keep`` is what must stay.
    """

    address: int
    words: Any
    at: tuple[int, ...]
    status: int = -1
    keep: Any = field(default=None, compare=False)

    @classmethod
    def of(cls, function: Any, words: Any, at: Sequence[int], **more: Any) -> Native:
        """For a function of ctypes; ``words`` are copied."""
        if isinstance(function, jit.Code):  # an interrupt of its compiling stays one
            function = function.function
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return cls(address, type(words)(*words), tuple(at), keep=(function, more.pop("keep", None)),
                   **more)  # fmt: skip


class Operand(NamedTuple):
    """What a step's operand is: a ``fixed`` array, or a place in memory of one that comes with the
    call: ``offset`` bytes into argument ``argument``."""

    fixed: Any
    argument: int = -1
    offset: int = 0


class _MethodDef(ctypes.Structure):
    """``PyMethodDef``"""

    _fields_ = [
        ("name", ctypes.c_char_p), ("method", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]  # fmt: skip


@cache
def available() -> bool:
    """Whether this Python can do it: CPython, whose objects are known, and a compiler."""
    if sys.implementation.name != "cpython" or jit.problem():
        return False
    try:
        return _right()
    except Exception:  # a Python whose structures differ: everything works without this
        return False


def _right() -> bool:
    """Whether arrays are what is supposed here, tried on two."""
    good, turned = np.arange(6.0).reshape(2, 3), np.zeros((3, 2)).T
    field_at = ctypes.c_void_p.from_address(id(good) + DATA_OFFSET).value
    flags = ctypes.c_int.from_address(id(good) + FLAGS_OFFSET).value
    if field_at != good.ctypes.data or not flags & 1:
        return False
    return check(2)(good, good) is True and check(2)(good, turned) is False


@cache
def _definitions() -> dict[str, Any]:
    """The functions' definitions, which must stay as long as the process."""
    types = (ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    found: dict[str, Any] = {}
    for name in ("group", "check"):
        function = jit.compile_made(module, (name,), name, *types)
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
    """A function of ``count`` objects: whether all are NumPy's arrays in C order."""
    return _builtin("check", np.array(_head([count, 0, 0]), np.int64))


class Group:
    """Steps in a row as one function of the arrays that come with a call.

    ``call(*arrays)`` gives None, or else something went wrong at step :attr:`failed`.
    """

    def __init__(self, parts: Sequence[tuple[Native, Sequence[Operand]]]) -> None:
        self._keep: list[Any] = [parts]
        self._stand_ins: dict[tuple[int, int], int] = {}
        moves: list[int] = []
        steps: list[int] = []
        nbytes = 0
        for native, operands in parts:
            for at, operand in zip(native.at, operands):
                if at >= 0:
                    native.words[at] = self._place(operand, moves)
                    nbytes += 0 if operand.fixed is None else operand.fixed.nbytes
            steps += [native.status, native.address, ctypes.addressof(native.words)]
        head = _head([len(moves) // 3, len(steps) // 3, int(nbytes > _LONG)])
        self.table = np.array([*head, *moves, *steps], np.int64)
        self.call = _builtin("group", self.table)

    def _place(self, operand: Operand, moves: list[int]) -> int:
        if operand.argument < 0:
            return id(operand.fixed)
        key = operand.argument, operand.offset
        if key not in self._stand_ins:
            words = np.zeros(_STAND_IN, np.int64)
            self._keep.append(words)
            self._stand_ins[key] = words.ctypes.data
            moves += [*key, words.ctypes.data + DATA_OFFSET]
        return self._stand_ins[key]

    @property
    def failed(self) -> int:
        """Which step went wrong in the last call."""
        return int(self.table[_FAILED])


#: The word of the table that says which step failed.
_FAILED = 10

"""Checks of layers' arguments and inputs: sizes for each dimension, batches, dtypes."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable
from symdnn.options import is_int

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module

#: A function that gives an output the dimensions of its input.
Restore = Callable[[Variable], Variable]


def known(value: Any) -> Any:
    """``value`` with an int for each size in it that is known, as of ``x.shape[1]``.

    A vector of them, ``x.shape[1:]``, is a tuple.
    """
    if type(value) in (list, tuple):
        return type(value)(known(v) for v in value)
    if not isinstance(value, Variable) or not (value.owner or isinstance(value, Constant)):
        return value
    t = value.type
    if not isinstance(t, TensorType) or not t.is_integer or t.ndim > 1:
        return value
    if t.ndim == 0:
        number = operator("known_number")(value)
        return value if number is None else int(number)
    length = t.shape[0]
    found = [known(value[i]) for i in range(length or 0)]
    return value if length is None or not all(map(is_int, found)) else tuple(found)


def of_known(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arguments whose known integers are ints."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*known(args), **{k: known(v) for k, v in kwargs.items()})

    return call


def sizes(
    what: str, ndim: int, given: Sequence[int | None], keyword: Any = None, default: Any = None
) -> tuple[int, ...]:
    """``ndim`` ints, (T,) H, W: positional (``given``), or ``keyword``, an int or a tuple.

    ``given`` is used if an entry is not None; ``default`` replaces missing entries. Raises
    :class:`~symdnn.errors.InputError` for both, for neither, and for types other than ints.
    """
    given, keyword = known(tuple(given)), known(keyword)
    some = any(v is not None for v in given)
    if keyword is not None:
        if some:
            raise InputError(f"{what}: wanted it by position or by keyword, got both")
        single = isinstance(keyword, Variable | str) or np.ndim(keyword) == 0
        entries = [keyword] * ndim if single else list(keyword)
    else:
        rest = [default] * ndim if np.ndim(default) == 0 else list(default)
        entries = [d if v is None else v for v, d in zip(given, rest, strict=True)]
    if len(entries) != ndim or not all(map(is_int, entries)):
        got = keyword if keyword is not None else tuple(entries)
        kind = UnknownWord if isinstance(keyword, str) else InputError
        raise kind(f"{what}: wanted an int, or {ndim} of them, got {got!r}")
    return tuple(int(e) for e in entries)


def positive(what: str, *numbers: object, least: int = 1) -> None:
    """Raise :class:`~symdnn.errors.InputError` unless all are ints from ``least`` on."""
    for n in numbers:
        if not is_int(n) or n < least:
            raise InputError(f"{what}: wanted an int, {least} or more, got {n!r}")


def tensor_input(
    module: Module, x: object, wanted: str, *ndims: int, any_dtype: bool = False
) -> None:
    """Raise :class:`TypeMismatch` unless ``x`` is a (float) tensor of one of these ndims.

    No ``ndims``: any number of dimensions.
    """
    name = type(module).__name__
    if not isinstance(x, Variable):
        raise TypeMismatch(name, wanted, _shown(x))
    t = x.type
    if not isinstance(t, TensorType) or (ndims and t.ndim not in ndims):
        raise TypeMismatch(name, wanted, t)
    if not any_dtype and not t.is_float:
        raise TypeMismatch(name, wanted, t, "Cast it: x.astype('floatX')")


def warn(text: str, category: type[Warning]) -> None:
    """A warning at the user's own line, the first outside of this package."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("symdnn."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)


def _shown(x: object) -> str:
    return f"a table of {len(x)}" if isinstance(x, list | tuple) else repr(x)


def as_batch(module: Module, x: Any, ndim: int, wanted: str) -> tuple[Variable, Restore]:
    """``x`` with ``ndim`` dimensions, the first a batch, and the :data:`Restore` of its outputs.

    An input of one dimension less is a single example.
    """
    tensor_input(module, x, f"a float tensor {wanted}", ndim, ndim - 1)
    if x.type.ndim == ndim:
        return x, lambda y: y
    alone = x.dimshuffle("x", *range(ndim - 1))
    return alone, lambda y: y.dimshuffle(*range(1, y.type.ndim))

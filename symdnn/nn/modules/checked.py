"""Checks arguments against their annotations; errors name argument, wanted type and value.

Annotations consist of the words in :data:`KINDS`. For any other annotation the function itself
checks the argument.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from symdnn.errors import ArgumentError, InputError
from symdnn.graph.names.torch_words import meant
from symdnn.graph.type import TensorType
from symdnn.graph.typing import DtypeLike
from symdnn.graph.variable import Variable
from symdnn.loss_scale import LossScale
from symdnn.options import is_int

__all__ = ["KINDS", "check_arguments", "checked"]

F = TypeVar("F", bound=Callable[..., Any])


def _truth(v: object) -> bool:
    return isinstance(v, bool | np.bool_) or (is_int(v) and v in (0, 1))


def _number(v: object) -> bool:
    real = isinstance(v, numbers.Real | np.floating | np.integer)
    real |= isinstance(v, np.ndarray) and v.ndim == 0 and v.dtype.kind in "iuf"
    return bool(real and not isinstance(v, bool) and v == v)


def _rate(v: object) -> bool:
    return _number(v) or isinstance(v, Variable)


def _row(v: object) -> bool:
    return isinstance(v, Sequence | np.ndarray) and not isinstance(v, str)


def _pair(v: object) -> bool:
    return isinstance(v, list | tuple) and len(v) == 2 and all(map(_number, v))


Kind = tuple[str, Callable[[Any], bool]]
KINDS: Mapping[str, Kind] = {
    "None": ("None", lambda v: v is None),
    "bool": ("True or False", _truth),
    "int": ("an int", is_int),
    "float": ("a number", _number),
    "str": ("a string", lambda v: isinstance(v, str)),
    "Module": ("a module", lambda v: hasattr(type(v), "named_modules")),
    "Variable": ("a symbolic variable", lambda v: isinstance(v, Variable)),
    "Number": ("a number or a symbolic scalar (schedules are for nn.fit)", _rate),
    "Betas": ("a pair of numbers", _pair),
    "Callable": ("a function", callable),
    "Initial": ("a function (shape, rng) -> values", callable),
    "Schedule": ("a function of the step", callable),
    "Sequence": ("a list", _row),
    "Mapping": ("a dict", lambda v: isinstance(v, Mapping)),
    "Transform": ("a function (batch, rng) -> batch", callable),
    "LossScale": ("a symdnn.LossScale", lambda v: isinstance(v, LossScale)),
    "PathLike": ("a path", lambda v: isinstance(v, str | os.PathLike)),
}


def checked(function: F) -> F:
    """The function with a check of its arguments before each call."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        check_arguments(function.__name__, function, args, kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def check_arguments(
    what: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise :class:`~symdnn.errors.InputError` for an argument of none of the annotated kinds.

    Arguments that do not fit the signature are an :class:`~symdnn.errors.ArgumentError`.
    """
    signature, kinds = _kinds_of(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{what}: {error}; {meant(signature, kwargs)}") from None
    for name, value in bound.arguments.items():
        allowed = kinds.get(name)
        several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for each in value if several else (value,):
            if allowed is not None and not any(takes(each) for _, takes in allowed):
                wanted = " or ".join(word for word, _ in allowed)
                raise InputError(f"{what}: {name}={each!r:.60}; wanted {wanted}")
            if name == "dtype" and each is not None:
                _check_dtype(what, each)
            if name.endswith("_init") and each is not None:
                _check_initial(what, name, each)


def _check_dtype(what: str, dtype: DtypeLike) -> None:
    try:
        fits = TensorType(dtype).is_float
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(f"{what}: dtype={dtype!r:.60}; wanted the name of a float dtype")


def _check_initial(what: str, name: str, initial: Any) -> None:
    try:
        inspect.signature(initial).bind((1,), None)
    except TypeError:
        raise InputError(
            f"{what}: {name}={initial!r:.60}; wanted a function (shape, rng) -> values"
        ) from None
    except ValueError:  # of C, which does not tell
        return


@functools.cache
def _kinds_of(
    function: Callable[..., Any],
) -> tuple[inspect.Signature, dict[str, list[Kind]]]:
    """The signature, and the kinds of each parameter that has no others."""
    signature = inspect.signature(function)
    kinds = {}
    for name, parameter in signature.parameters.items():
        words = _words(parameter.annotation)
        if parameter.kind is not parameter.VAR_KEYWORD and all(w in KINDS for w in words):
            kinds[name] = [KINDS[w] for w in words]
    return signature, kinds


def _words(annotation: object) -> Iterable[str]:
    """``float | None`` as its two words, without brackets after a word."""
    if not isinstance(annotation, str):
        return [getattr(annotation, "__name__", "Any")] if annotation is not None else ["None"]
    flat = annotation
    while "[" in flat:
        flat = re.sub(r"\[[^\[\]]*\]", "", flat)
    return [word.strip() for word in flat.split("|")]

"""PyTorch's and JAX's keywords of a function: ``dim`` for ``axis``, ``in_dims`` for ``in_axes``.

A program that has such a word is PyTorch's. Where PyTorch's function of that name returns something
else (``max`` of a ``dim`` also the indices, ``std`` that of a sample), that one is called.
Words of what a graph does not choose, such as ``device``, and other unknown ones are refused with
advice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from symdnn.errors import ArgumentError, InputError
from symdnn.flag_types import nearest
from symdnn.graph.names.elsewhere import advice

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_WORDS = {
    "dim": "axis", "keepdim": "keepdims", "dims": "axis", "shifts": "shift", "p": "L",
    "diagonal": "k", "dim1": "axis1", "dim2": "axis2", "interpolation": "method",
}  # fmt: skip

#: Words of functions that make a tensor, and the table and the word of what to do in their place.
_REFUSED = {
    "device": ("TENSOR", "device"),
    "requires_grad": ("VARIABLE", "requires_grad"),
    "layout": ("VARIABLE", "strides"),
    "memory_format": ("VARIABLE", "strides"),
    "pin_memory": ("TENSOR", "pin_memory"),
    "out": ("VARIABLE", "copy_"),
}

_functions: dict[str, Callable[..., Any]] = {}


def install_torch_functions(functions: Mapping[str, Callable[..., Any]]) -> None:
    """PyTorch's functions, by the name passed to :func:`torch_words`."""
    _functions.update(functions)


def torch_words(
    theirs: str | None = None, *more: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function also takes ``dim``, ``keepdim`` and similar keywords.

    With a name, PyTorch's function ``theirs`` is called if one of these keywords, or of ``more``,
    is used.
    """
    words = frozenset((*_WORDS, *more))

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        plural = "axes" in inspect.signature(function).parameters
        plain = advises()(function)

        @functools.wraps(function)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs or words.isdisjoint(kwargs):
                return plain(*args, **kwargs)
            if theirs is not None:
                return _functions[theirs](*args, **kwargs)  # type: ignore[no-any-return]
            return function(*args, **_translated(function.__name__, kwargs, plural))

        return either

    return decorate


def _translated(name: str, kwargs: Mapping[str, Any], plural: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in kwargs.items():
        ours = _WORDS.get(key, key)
        if plural and ours == "axis":
            ours = "axes"
        if ours in made:
            raise InputError(f"{name}: {key} and {ours} are one argument; wanted one of them")
        made[ours] = value
    return made


def makes_tensor(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator of a function that makes a tensor: PyTorch's words for where it is are refused.

    Their defaults, None and False, count as left out.
    """

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        for word in [w for w in _REFUSED if w in kwargs]:
            given = kwargs.pop(word)
            if given is not None and given is not False:
                got = f"{word}={given!r:.40}"
                table, known = _REFUSED[word]
                do = advice(table)[known]
                raise ArgumentError(f"{function.__name__}: wanted no {word}, got {got}; {do}")
        return checked(*args, **kwargs)

    checked = function if hasattr(function, "words") else advises()(function)
    return made


def advises(**words: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: arguments that do not fit are refused with what to write instead.

    ``words`` are other libraries' keywords, each with the name that it has here, or with a text. Of
    others the error names the nearest one, or all that there are.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        known = frozenset(signature.parameters)

        @functools.wraps(function)
        def advised(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs and not known.issuperset(kwargs):
                raise _unknown(function.__name__, [w for w in kwargs if w not in known])
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # the function's own
                raise ArgumentError(f"{error}; {meant(signature, kwargs)}") from None

        def _unknown(name: str, given: list[str]) -> ArgumentError:
            said = [f"{name}() got an unexpected keyword argument {given[0]!r}"]
            for word in given:
                do = words.get(word) or meant(signature, [word])
                said.append(f"{word!r} is {do!r} here" if do in known else do)
            return ArgumentError("; ".join(said))

        vars(advised)["words"] = words
        return advised

    return decorate


def advised_methods(**words: str) -> Callable[[type[C]], type[C]]:
    """:func:`advises` for each public method that a class defines."""

    def decorate(cls: type[C]) -> type[C]:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                known = inspect.signature(method).parameters
                told = {theirs: ours for theirs, ours in words.items() if ours in known}
                setattr(cls, name, advises(**told)(method))
        return cls

    return decorate


def meant(signature: inspect.Signature, given: Iterable[str]) -> str:
    """What arguments of these names should have been."""
    parameters = signature.parameters.values()
    names = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    for word in given:
        if word not in names and (near := nearest(word, names)):
            return f"{word!r} is none of its arguments: did you mean {near!r}?"
    return f"it takes {', '.join(names)}"

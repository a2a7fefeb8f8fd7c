"""Flags of a program's own: names of ``theano.configparser``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.compat.theano.settings import TheanoConfig, config

__all__ = [
    "AddConfigVar", "BoolParam", "ConfigParam", "EnumStr", "FloatParam", "IntParam", "StrParam",
    "TheanoConfigParser", "TypedParam",
]  # fmt: skip

TheanoConfigParser = TheanoConfig


class ConfigParam:
    """A flag for :func:`AddConfigVar`: its default, and ``filter``, which makes its value of what
    is assigned or raises ``ValueError``.

    A default that is a function is called when the flag is first read.
    """

    fullname = ""

    def __init__(self, default: object, filter: Any = None, allow_override: bool = True) -> None:
        self.default, self.filter, self.allow_override = default, filter, allow_override

    def made(self, value: Any) -> Any:
        """The flag's value of what is assigned."""
        return self.filter(value) if self.filter else value

    def __str__(self) -> str:
        return f"{self.fullname} ({self.default}) "


class EnumStr(ConfigParam):
    """A flag of some words; the first is the default. ``convert`` replaces a word by another."""

    def __init__(
        self, default: str, *options: str, convert: Any = None, allow_override: bool = True
    ) -> None:
        self.all = (default, *options)
        wrong = [word for word in self.all if not isinstance(word, str)]
        if wrong:
            raise ValueError(f"EnumStr: wanted words, got {wrong[0]!r}")
        self._convert = convert
        super().__init__(default, self._word, allow_override)

    def _word(self, value: Any) -> str:
        word = self._convert(value) if self._convert else value
        if word not in self.all:
            raise ValueError(f"theano.config.{self.fullname} = {value!r}: wanted one of {self.all}")
        return str(word)

    def __str__(self) -> str:
        return f"{self.fullname} ({self.all}) "


class TypedParam(ConfigParam):
    """A flag of a type; ``is_valid`` says whether a value of it is taken."""

    def __init__(
        self,
        default: object,
        mytype: Callable[[Any], Any],
        is_valid: Any = None,
        allow_override: bool = True,
    ) -> None:
        self.mytype, self._is_valid = mytype, is_valid
        super().__init__(default, self._typed, allow_override)

    def _typed(self, value: Any) -> Any:
        typed = self.mytype(value)
        if callable(self._is_valid) and not self._is_valid(typed):
            raise ValueError(f"theano.config.{self.fullname} = {value!r} is not valid")
        return typed

    def __str__(self) -> str:
        return f"{self.fullname} ({self.mytype}) "


def StrParam(default: object, is_valid: Any = None, allow_override: bool = True) -> TypedParam:
    """A flag of text."""
    return TypedParam(default, str, is_valid, allow_override)


def IntParam(default: object, is_valid: Any = None, allow_override: bool = True) -> TypedParam:
    """A flag of an integer."""
    return TypedParam(default, int, is_valid, allow_override)


def FloatParam(default: object, is_valid: Any = None, allow_override: bool = True) -> TypedParam:
    """A flag of a number."""
    return TypedParam(default, float, is_valid, allow_override)


def _truth(value: Any) -> bool:
    for truth in (False, True):
        if value in (str(truth), str(truth).lower(), str(int(truth)), truth):
            return truth
    raise ValueError(f"{value!r}: wanted True or False")


def BoolParam(default: object, is_valid: Any = None, allow_override: bool = True) -> TypedParam:
    """A flag that is true or false."""
    return TypedParam(default, _truth, is_valid, allow_override)


def AddConfigVar(
    name: str, doc: str, configparam: Any, root: object = None, in_c_key: bool = True
) -> None:
    """Add a program's own flag ``name``; a value from ``THEANO_FLAGS`` has precedence."""
    if not isinstance(configparam, ConfigParam):
        configparam = ConfigParam(configparam)
    configparam.fullname, configparam.doc, configparam.in_c_key = name, doc, in_c_key
    config.add(name, configparam.default, configparam.made)

"""The base of cuDNN's ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from symdnn.errors import ArgumentError, OptionError
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.lowered.lowered import Lowered

__all__ = ["DnnBase", "constant_number"]


#: For the name of a field its words.
Choices = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class DnnBase(Lowered):
    """Base of cuDNN's ops, under Theano's name.

    A class without fields of its own is the dataclass that its base is.
    """

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "float32", "float64")

    #: The words that a field may have, for fields that are words.
    choices: ClassVar[Choices] = {}

    def __post_init__(self) -> None:
        for name, words in self.choices.items():
            value = getattr(self, name)
            if value not in words:
                raise OptionError(f"{name}={value!r}: wanted one of {', '.join(words)}")

    def with_arguments(self, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """The op and its inputs for the arguments of a call: its inputs, or those of Theano."""
        return self, arguments

    def __call__(
        self, *arguments: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Variable:
        """Apply to inputs, or as in Theano to arguments that are partly settings."""
        op, inputs = self.with_arguments(*arguments, **words)
        return Lowered.__call__(op, *inputs, hints=hints, name=name)


def constant_number(what: str, value: Any) -> float:
    """``value`` as a Python float; raises ArgumentError for a symbolic one."""
    v = value if isinstance(value, Variable) else as_variable(value)
    if not isinstance(v, Constant) or v.data.size != 1:
        raise ArgumentError(f"{what}: wanted a number known when the graph is built, got {value!r}")
    return float(v.data.reshape(()))

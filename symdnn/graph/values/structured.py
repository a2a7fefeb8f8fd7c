"""Values that users pass as one object and the graph has as several tensors, such as a sparse
matrix: its elements and its indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from symdnn.graph.variable import Variable


class Form(ABC):
    """How a call's value becomes arrays, and is made of them: a frozen dataclass."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the parts."""

    @abstractmethod
    def split(self, value: object, what: str) -> Sequence[Any]:
        """The parts of a value of the user's, as arrays.

        Raises :class:`~symdnn.errors.InputError`, whose message begins with ``what``, for values of
        another kind.
        """

    @abstractmethod
    def join(self, parts: Sequence[Any]) -> Any:
        """The value for the user."""


class Structured(ABC):
    """An expression of a structured value: ``parts`` are its variables, in the order of the form.

    A function takes it as an input and returns it as an output, ``grad`` takes it as ``wrt``, and
    ``updates`` and ``givens`` replace its parts.
    """

    name: str | None = None

    @property
    @abstractmethod
    def form(self) -> Form:
        """How its values become arrays."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Variable, ...]:
        """Its variables."""

    def parts_for(self, other: Structured) -> tuple[Variable, ...]:
        """Its variables in place of those of ``other``, which :meth:`fitting` has accepted."""
        return self.parts[: len(other.parts)]

    @property
    @abstractmethod
    def differentiable(self) -> Variable:
        """The part that has a gradient."""

    @abstractmethod
    def with_gradient(self, gradient: Variable) -> Self:
        """The same structure with the gradient of that part in its place."""

    @abstractmethod
    def fitting(self, new: object, what: str) -> Structured:
        """``new`` as an expression that may replace this one; raises ``TypeMismatch`` if none."""

"""A call of a module, which tells what was wrong with the sizes that came to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from symdnn.errors import SymdnnError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module


@dataclass(frozen=True, eq=False)
class Called:
    """A call of ``module``, of this path in its network, with these inputs."""

    module: Module
    path: str
    given: Sequence[Any]
    named: Mapping[str, Any]

    @property
    def tensors(self) -> list[Variable]:
        """The tensors among the inputs, also those in lists, in their order."""
        return list(dict.fromkeys(_tensors([*self.given, *self.named.values()])))

    def told(self, shapes: Sequence[tuple[int, ...]]) -> tuple[str, str]:
        """The module with these shapes of its tensors, and its error for such inputs.

        There is none if it takes them; modules that are not symdnn's own are not asked.
        """
        module, tensors = self.module, self.tensors
        types = [v.type.with_shape(s) for v, s in zip(tensors, shapes, strict=True)]
        path = "" if self.path == type(module).__name__ else f"{self.path}, "
        came = ", ".join(map(str, types)) or "no tensor"
        where = f"{path}{module.title}{module.describe()} called with {came}"
        if not type(module).__module__.startswith("symdnn."):
            return where, ""
        new = {v: Variable(t, v.name) for v, t in zip(tensors, types, strict=True)}
        try:
            module(
                *_replaced(self.given, new),
                **{k: _replaced(v, new) for k, v in self.named.items()},
            )
        except SymdnnError as error:
            return where, str(error).removeprefix(f"{type(module).__name__}: ")
        return where, ""


def _tensors(values: Sequence[Any]) -> Iterator[Variable]:
    for v in values:
        if isinstance(v, list | tuple):
            yield from _tensors(v)
        elif isinstance(v, Variable) and isinstance(v.type, TensorType):
            yield v


def _replaced(value: Any, new: Mapping[Variable, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_replaced(v, new) for v in value]
    return new.get(value, value) if isinstance(value, Variable) else value

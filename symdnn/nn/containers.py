"""Networks of modules: one after the other, side by side, and how their outputs are joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symdnn.errors import InputError
from symdnn.nn.module import Module

__all__ = ["Container", "Sequential"]


class Container(Module):
    """A list of modules, in :attr:`modules`; they are saved under 0, 1, 2, ..."""

    def __init__(self, *modules: Module) -> None:
        self.modules: list[Module] = []
        for module in modules:
            self.add(module)

    def add(self, module: Module) -> Container:
        """Append a module; returns the container, so that calls can be chained."""
        if not isinstance(module, Module):
            raise InputError(f"{type(self).__name__}.add: wanted a module, got {module!r}")
        self.modules.append(module)
        return self

    def children(self) -> dict[str, Module]:
        return {str(i): m for i, m in enumerate(self.modules)}

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, index: int) -> Module:
        return self.modules[index]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)


class Sequential(Container):
    """Each module's output is the next one's input (Torch7's ``nn.Sequential``)."""

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x

    def chain(self) -> str:
        """``[input -> (1) -> (2) -> output]``."""
        steps = "".join(f"({i + 1}) -> " for i in range(len(self.modules)))
        return f"[input -> {steps}output]"

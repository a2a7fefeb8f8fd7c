"""What a bound kernel of the CPU may offer a plan besides being called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CpuLaunch", "FunctionLaunch", "as_launch"]


class CpuLaunch:
    """``launch(inputs, outputs[, workspace])``; a plan looks for faster ways to the same.

    ``direct(*inputs, *outputs)`` takes the arrays one by one. ``prepare(inputs, outputs)`` has code
    compiled meanwhile for operands of these strides. ``native(inputs, outputs[, workspace])`` gives
    a :class:`~symdnn.cpu.launch.fastcall.Native` for such operands, or None. None: there is no such
    way.
    """

    __slots__ = ()
    direct: Callable[..., Any] | None = None
    prepare: Callable[..., Any] | None = None
    native: Callable[..., Any] | None = None

    @property
    def function(self) -> Any:
        """What is called: itself, or the function behind it."""
        return self


class FunctionLaunch(CpuLaunch):
    """A function that a kernel gave for its launch."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *operands: Any) -> Any:
        """Call it."""
        return self._function(*operands)

    @property
    def function(self) -> Any:
        """The function itself."""
        return self._function


def as_launch(launch: Any) -> CpuLaunch:
    """What ``bind`` gave: a launch, or any callable."""
    return launch if isinstance(launch, CpuLaunch) else FunctionLaunch(launch)

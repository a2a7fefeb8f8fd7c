"""The interface of a bound kernel on the CPU: a call, and faster ways that a plan may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CpuLaunch:
    """``launch(inputs, outputs[, workspace])``, and three optional methods for plans.

    ``direct(*inputs, *outputs)`` takes the arrays one by one. ``prepare(inputs, outputs)`` queues
    the compilation of code for operands with these strides. ``native(inputs, outputs[,
    workspace])`` returns a :class:`~symdnn.cpu.launch.fastcall.FastCall` for such operands, a
    series of them, or None. A method that a launch does not have is None. Numbers that are read on
    the host are given to ``native`` where they are the same in every run, else None.
    """

    __slots__ = ()
    direct: Callable[..., Any] | None = None
    prepare: Callable[..., Any] | None = None
    native: Callable[..., Any] | None = None

    @property
    def function(self) -> Any:
        """The callable: the launch itself, or a function that does the same."""
        return self


class FunctionLaunch(CpuLaunch):
    """A launch that is a plain function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *operands: Any) -> Any:
        """Call the function."""
        return self._function(*operands)

    @property
    def function(self) -> Any:
        """The function without this wrapper."""
        return self._function


def as_launch(launch: Any) -> CpuLaunch:
    """The result of a kernel's ``bind``, a launch or any callable, as a launch."""
    return launch if isinstance(launch, CpuLaunch) else FunctionLaunch(launch)

"""Copies between host and GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Grads, Op, Vars
from symdnn.graph.place import Place
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable


@dataclass(frozen=True)
class Transfer(Op):
    """Base of both. Types have no place: the rewrites of the phase ``transfer`` know it.

    ``place`` is the GPU. None, in a user's program, means the GPU of the function.
    """

    shaped_as: ClassVar[int | None] = 0
    linear_in_first: ClassVar[bool] = True
    abstract: ClassVar[bool] = True

    place: Place | None = None

    def __str__(self) -> str:
        name = type(self).__name__
        return name if self.place is None else f"{name}{{{self.place}}}"

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(x, TensorType):
            raise TypeMismatch(self, "a tensor: a kernel's own bytes never leave their device", x)
        return x

    def reference(self, x: Array) -> Array:
        return x

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        return inputs


class GpuFromHost(Transfer):
    """A copy on the device of a value on the host."""

    never_fails: ClassVar[bool] = True

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [HostFromGpu(self.place)(cotangents[0])]


class HostFromGpu(Transfer):
    """A copy on the host of a value on the device."""

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [GpuFromHost(self.place)(cotangents[0])]


def gpu_from_host(x: Any, place: Place | None = None) -> Variable:
    """``x`` on the GPU. It has no effect on the program: rewriting places transfers by itself.

    Compiling raises :class:`~symdnn.errors.OptionError` if ``place`` is another GPU than the
    function's.
    """
    return GpuFromHost(place)(x)


def host_from_gpu(x: Any) -> Variable:
    """``x`` on the host, without effect as :func:`gpu_from_host`."""
    return HostFromGpu()(x)

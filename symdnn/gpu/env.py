"""What a launch is given besides its operands: stream, scratch memory, handles, modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from symdnn.gpu.array import DeviceArray

__all__ = ["LaunchEnv"]


class LaunchEnv(Protocol):
    """Made by the runtime for one step of a plan; see :mod:`symdnn.gpu.runtime`.

    ``stream`` is a ``CUstream`` as an int; ``workspace`` a pointer to as many bytes as the kernel
    asked for; ``error_word`` a pointer to ``int32[4]`` on the device (code, node, value, limit);
    ``node`` the number that this step writes there. A kernel that may do so sets ``reports``.
    """

    stream: int
    workspace: int
    error_word: int
    node: int
    reports: bool

    @property
    def cudnn(self) -> int:
        """A ``cudnnHandle_t`` on ``stream``."""

    @property
    def cublaslt(self) -> int:
        """A ``cublasLtHandle_t``."""

    def module(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """The function ``name`` of CUDA C ``source``, compiled and loaded once per process."""

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Memory of one's own; it lives as long as the array."""

    def copy_in(self, array: Any, target: DeviceArray) -> None:
        """Enqueue a copy of a host array to the device."""

    def download(self, array: DeviceArray) -> Any:
        """A host copy of a contiguous array; waits for it."""

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        """Enqueue a kernel. ``args`` are ctypes or NumPy scalars; an int is a pointer."""

"""What a launch is given besides its operands: stream, scratch memory, handles, modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from symdnn.gpu.device.array import RawArray
from symdnn.graph.place import Place

if TYPE_CHECKING:
    from symdnn.gpu.device.context import Context
    from symdnn.gpu.device.memory import CudaMemory

__all__ = ["TICKETS_AT", "TICKET_COUNT", "Env", "LaunchEnv"]

#: Behind the error word, at so many bytes, are so many uint32 by which blocks of a kernel know that
#: they are the last: zero whenever no kernel runs.
TICKETS_AT, TICKET_COUNT = 64, 1024


class LaunchEnv(Protocol):
    """Made by the runtime for one step of a plan; see :mod:`symdnn.gpu.execution.runtime`.

    ``place`` is the device; ``stream`` is a ``CUstream`` as an int; ``workspace`` a pointer to as
    many bytes as the kernel asked for; ``error_word`` a pointer to ``int32[4]`` on the device:
    code, node, value, limit. ``node`` is the number that this step writes there. A kernel that may
    do so sets ``reports``.
    """

    place: Place
    stream: int
    workspace: int
    error_word: int
    node: int
    reports: bool

    @property
    def cudnn(self) -> int:
        """A ``cudnnHandle_t`` on ``stream``."""

    @property
    def cudnn_fixed(self) -> int:
        """One whose recurrent nets have the same bits each time."""

    @property
    def cublaslt(self) -> int:
        """A ``cublasLtHandle_t``."""

    def module(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """The function ``name`` of CUDA C ``source``, compiled and loaded once per process."""

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        """Memory of one's own; it lives as long as the array."""

    def copy_in(self, array: Any, target: RawArray) -> None:
        """Enqueue a copy of a host array to the device."""

    def download(self, array: RawArray) -> Any:
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


class Env:
    """A :class:`LaunchEnv` of the runtime."""

    def __init__(self, ctx: Context, workspace: int, node: int, memory: CudaMemory) -> None:
        self.context, self.workspace, self.node = ctx, workspace, node
        self.place = ctx.place
        self.empty, self.copy_in, self.download = memory.empty, memory.copy_in, memory.download
        self.stream, self.error_word = ctx.stream, ctx.error_word
        #: Whether a kernel of this step can find fault with data.
        self.reports = False
        #: Kernels are compiled and loaded, and not launched.
        self.dry = False
        #: Inputs that a kernel allocated and nothing reads behind this step: it may overwrite them.
        self.dying: frozenset[int] = frozenset()

    @property
    def cudnn(self) -> int:
        """The ``cudnnHandle_t``."""
        return self.context.cudnn

    @property
    def cudnn_fixed(self) -> int:
        """The ``cudnnHandle_t`` of :attr:`Context.cudnn_fixed`."""
        return self.context.cudnn_fixed

    @property
    def cublaslt(self) -> int:
        """The ``cublasLtHandle_t``."""
        return self.context.cublaslt

    def module(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """A kernel of generated source."""
        return self.context.function(source, name, options)

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""
        self.context.zero(ptr, nbytes)

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        """Enqueue a kernel."""
        if self.dry:
            return
        self.context.launch(function, grid, block, shared_bytes, args)

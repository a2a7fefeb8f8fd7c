"""The environment of a launch, besides its operands: stream, workspace, handles, modules."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.memory import CudaMemory
from symdnn.gpu.device.side_stream import SideStream
from symdnn.graph.place import Place


class LaunchEnv(Protocol):
    """Made by the runtime for one step of a plan; see :mod:`symdnn.gpu.execution.runtime`.

    ``place`` is the device and ``stream`` a ``CUstream`` as an int. ``workspace`` is a pointer to
    as many bytes as the kernel's ``workspace_bytes``. ``error_word`` is a pointer to ``int32[4]``
    on the device (:mod:`symdnn.gpu.device.error_codes`), and ``node`` the number of this step in
    it. A kernel that may write an error sets ``reports``. Collectives that are ``alone`` do without
    other ranks. ``slots`` are addresses in registered memory, where the plan has it for this step:
    those of the inputs, the outputs, and of scratch memory.
    """

    place: Place
    stream: int
    workspace: int
    error_word: int
    node: int
    reports: bool
    load_only: bool
    alone: bool
    slots: Sequence[int]

    @property
    def captures(self) -> bool:
        """Whether launches are captured into a graph."""

    def on(self, stream: int) -> LaunchEnv:
        """The same, but that kernels are launched on another stream of the device."""

    @property
    def side(self) -> SideStream:
        """The device's second stream."""

    @property
    def cudnn(self) -> int:
        """A ``cudnnHandle_t`` on ``stream``."""

    @property
    def cudnn_deterministic(self) -> int:
        """A ``cudnnHandle_t`` by which recurrent layers give the same bits each time."""

    @property
    def cublaslt(self) -> int:
        """A ``cublasLtHandle_t``."""

    def module(self, source: str, name: str, options: Sequence[str] = ()) -> Any:
        """The function ``name`` of CUDA C ``source``, compiled and loaded once per process."""

    def zero(self, ptr: int, nbytes: int) -> None:
        """Enqueue setting bytes to zero."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        """A new array; its memory lives as long as the array."""

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
        #: Whether a kernel of this step can report an error of the data.
        self.reports = False
        #: Whether kernels are only compiled and loaded, without a launch.
        self.load_only = False
        #: Whether collectives do without other ranks.
        self.alone = False
        self.slots: Sequence[int] = ()
        #: Indices of inputs that the step may overwrite: a kernel allocated them, and no later step
        #: reads them.
        self.overwritable: frozenset[int] = frozenset()

    @property
    def captures(self) -> bool:
        """Whether launches are captured into a graph."""
        return self.context.captures

    def on(self, stream: int) -> Env:
        """The same on another stream; only kernels are launched there."""
        found = copy.copy(self)
        found.stream = stream
        return found

    @property
    def side(self) -> SideStream:
        """The device's second stream."""
        return self.context.side

    @property
    def cudnn(self) -> int:
        """The ``cudnnHandle_t``."""
        return self.context.cudnn

    @property
    def cudnn_deterministic(self) -> int:
        """The ``cudnnHandle_t`` of :attr:`Context.cudnn_deterministic`."""
        return self.context.cudnn_deterministic

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
        if self.load_only:
            return
        elsewhere = () if self.stream == self.context.stream else (self.stream,)
        self.context.launch(function, grid, block, shared_bytes, args, *elsewhere)

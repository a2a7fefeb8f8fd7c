"""What kernels by cuSOLVER share: workspaces, small kernels of our own, statuses, fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import KernelLaunch, Pointer, blocks_for
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.solver import library
from symdnn.graph.kernel import Call, Kernel, Traits
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import OpT
from symdnn.ops.matrix.base import real_dtype

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

CUSOLVER = Traits("cusolver")
_BLOCK = 256
#: The libraries count in 32 bits.
_MAX_ELEMENTS = 2**31 - 1


class Layout:
    """Parts of a workspace: ``part(nbytes)`` gives offsets, each a multiple of 256 bytes."""

    def __init__(self) -> None:
        self.nbytes = 256  # so that the address can be rounded up

    def part(self, nbytes: int) -> int:
        """The offset of a new part."""
        at = self.nbytes - 256
        self.nbytes += -(-nbytes // 256) * 256
        return at


class Matrices:
    """A stack: dtype, how many, and the sizes of each."""

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self.count = prod(shape[:-2])
        self.rows, self.columns = shape[-2:]
        self.itemsize = int(numpy_dtype(dtype).itemsize)

    @property
    def size(self) -> int:
        """Elements of a matrix."""
        return self.rows * self.columns

    @property
    def step(self) -> int:
        """Bytes from one matrix to the next."""
        return self.size * self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.count * self.step


def question(name: str, dtype: str, estimate: Any, *arguments: Any) -> Any:
    """The workspace that a routine of cuSOLVER asks for; an estimate without a device.

    It is the number of elements, or for generic routines those of bytes on the device and on the
    host. ``arguments`` are those of its ``_buffer_size`` behind the handle.
    """
    if library.without_device() or library.problem():
        return estimate
    from symdnn.gpu.device.cudnn_device import queried_context, query_cudnn

    solver = library.solver()
    ask = library.routine(solver, dtype, name, "_buffer_size")
    return query_cudnn(
        lambda _: ask(library.handle(solver, queried_context()), *arguments), estimate
    )


class Work:
    """One launch: its environment, the addresses of workspace parts, and routines by name."""

    def __init__(self, env: LaunchEnv, dtype: str) -> None:
        self.env, self.dtype = env, dtype
        self.base = -(-env.workspace // 256) * 256

    def at(self, offset: int) -> int:
        """The address of a part of the workspace."""
        return self.base + offset

    def solver(self, name: str, *arguments: Any) -> None:
        """Call a routine of cuSOLVER."""
        found = library.solver()
        library.routine(found, self.dtype, name)(library.handle(found, self.env), *arguments)

    def blas(self, name: str, *arguments: Any) -> None:
        """Call a routine of cuBLAS."""
        found = library.blas()
        library.routine(found, self.dtype, name)(library.handle(found, self.env), *arguments)

    def small(self, name: str, **given: Any) -> None:
        """Enqueue a kernel of ``matrix.cu``."""
        small(self.env, self.dtype, name, **given)

    def copy(self, source: RawArray, target: int) -> None:
        """Copy a contiguous array to an address."""
        if source.nbytes:
            n = source.shape[-1] * source.shape[-2]
            self.small(
                "take", x=source.ptr, y=target, count=prod(source.shape[:-2]), rows=1, columns=n,
                x_step=n, y_step=n,
            )  # fmt: skip

    def pointers(self, base: int, step_elements: int, count: int, target: int) -> int:
        """Write the addresses of matrices to ``target``, and return it."""
        self.small("pointers", x=base, y=target, count=count, x_step=step_elements)
        return target

    def settle(self, out: RawArray, count: int, info: int, code: int, shared: bool = False) -> None:
        """NaN for the matrices of ``out`` with a status, and the error ``code`` if it is not 0."""
        small(
            self.env, out.dtype, "settle", y=out.ptr, info=info, count=count,
            columns=out.size // max(count, 1), x_step=0 if shared else 1, value=code,
        )  # fmt: skip


_FIELDS = ("count", "rows", "columns", "x_step", "y_step", "x_ld", "y_ld", "value")
#: Slots of the addresses of ``matrix.cu``, and of the error word.
_SLOTS = ("x", "y", "info", "")


def small(env: LaunchEnv, dtype: str, name: str, **given: int) -> None:
    """Enqueue the kernel ``name`` of ``matrix.cu`` with these parameters, the others 0."""
    if name == "settle" and given["value"]:
        env.reports = True
    if given["count"]:
        launch = _small(dtype, name, tuple([given.get(f, 0) for f in _FIELDS]), env.node)
        places = [given.get(s, 0) for s in _SLOTS[:-1]]
        launch.enqueue(env, np.array([*places, env.error_word], np.int64))


@lru_cache(maxsize=1024)
def _small(dtype: str, name: str, sizes: tuple[int, ...], node: int) -> KernelLaunch:
    source = specialised(
        "matrix.cu", T=CTYPES[real_dtype(dtype)], PARTS=2 if dtype.startswith("complex") else 1
    )
    threads = prod(max(n, 1) for n in sizes[:3])
    x, y, info, error_word = (Pointer(i) for i in range(len(_SLOTS)))
    parameters = (x, y, info, *sizes, error_word, node)
    return KernelLaunch(source, name, (blocks_for(threads, _BLOCK),), (_BLOCK,), parameters)


def enqueue(
    env: LaunchEnv, source: str, name: str, blocks: int, threads: int, parameters: Sequence[Any]
) -> None:
    """Enqueue a kernel with these fields, which have the addresses."""
    launch = KernelLaunch(source, name, (blocks,), (threads,), tuple(parameters))
    launch.enqueue(env, np.zeros(1, np.int64))


class SolverKernel(Kernel[OpT]):
    """Base of the kernels: a subclass has :meth:`plan`, which lays out a workspace and returns
    ``launch(work, inputs, outputs)``."""

    traits = CUSOLVER
    contiguous_inputs = True
    #: Whether a CUDA graph may record what it calls.
    recordable = True

    def __init__(self, name: str) -> None:
        self.name = f"cusolver.{name}"

    def refuses(self, call: Call[OpT]) -> str | None:
        """Sizes beyond 32 bits, and a machine without the libraries."""
        if not call.has_sizes:
            return None
        if any(prod(t.shape[-2:]) > _MAX_ELEMENTS for t in (*call.inputs, *call.outputs)):
            return "cuSOLVER counts a matrix's elements in 32 bits"
        return None if library.without_device() else library.problem() or None

    def capturable(self, call: Call[OpT]) -> bool:
        """Whether the library's routines do all of their work on the device."""
        return self.recordable

    def workspace_bytes(self, call: Call[OpT]) -> int:
        """All parts of the workspace."""
        layout = Layout()
        if not _is_empty(call):
            self.plan(call, layout)
        return layout.nbytes

    def bind(self, call: Call[OpT]) -> Any:
        """The launch; of empty results there is none."""
        if _is_empty(call):
            return lambda env, inputs, outputs: None
        run, dtype = self.plan(call, Layout()), call.inputs[0].dtype

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            run(Work(env, dtype), inputs, outputs)

        return launch

    def plan(self, call: Call[OpT], layout: Layout) -> Callable[..., None]:
        """Take parts of the workspace; the function that enqueues the call."""
        raise NotImplementedError


def _is_empty(call: Call) -> bool:
    return any(0 in t.shape for t in call.outputs)

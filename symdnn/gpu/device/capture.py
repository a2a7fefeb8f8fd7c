"""CUDA graphs of captured work, and copies and events on the compute stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.binding.libcuda import library
from symdnn.gpu.device.context import Context
from symdnn.gpu.device.driver_api import is_done

#: The kernels of a graph with no more than this may be launched one by one, without the graph.
_MAX_SEPARATE_KERNELS = 2
_KERNEL_NODE_TYPE = 0  # CU_GRAPH_NODE_TYPE_KERNEL


class CaptureFailed(SymdnnError, RuntimeError):
    """Work could not be captured; it can still be enqueued step by step."""


class Graph:
    """The work that ``enqueue`` puts on the context's stream, captured for repeated launches.

    Addresses are part of a graph: all memory that it reads and writes must stay where it is.
    (``cuStreamBeginCapture``, ``cuStreamEndCapture``, ``cuGraphInstantiate``.)
    """

    def __init__(self, context: Context, enqueue: Callable[[], None]) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self._stream = driver.CUstream(context.stream)
        launched = context.launched
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._checked(driver.cuStreamBeginCapture(self._stream, mode))
        context.captures = True
        try:
            enqueue()
        except BaseException as error:  # Ctrl-C, too: a stream that stays captured runs nothing
            status, part = driver.cuStreamEndCapture(self._stream)
            if int(status) == 0:
                driver.cuGraphDestroy(part)
            if not isinstance(error, Exception):
                raise
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error
        finally:
            context.captures = False
        graph = self._checked(driver.cuStreamEndCapture(self._stream))
        #: The number of kernels and copies.
        self.nodes = int(driver.cuGraphGetNodes(graph, 0)[-1])
        #: Whether to launch one or two kernels of ours without the graph. They begin some 3 us
        #: earlier, and the host takes 1 or 2 us longer: worth it for kernels that run long.
        self.separate_launches = False
        own = context.launched - launched == self.nodes  # a library's kernels may have attributes
        self._kernels = (
            kernels_of(graph, self._stream)
            if own and 0 < self.nodes <= _MAX_SEPARATE_KERNELS
            else []
        )
        self._executable = self._checked(driver.cuGraphInstantiate(graph, 0))
        self._graph = graph  # it owns the parameters of the kernels
        if not self._kernels:
            self._graph = None
            self._checked(driver.cuGraphDestroy(graph))
        self._launch, self._launch_one = driver.cuGraphLaunch, library().cuLaunchKernel

    def launch(self) -> None:
        """Enqueue the whole graph."""
        if self.separate_launches and self._kernels:
            for arguments in self._kernels:
                if status := self._launch_one(*arguments):
                    raise CaptureFailed(f"cuLaunchKernel: {status}")
            return
        (status,) = self._launch(self._executable, self._stream)
        if status != 0:
            raise CaptureFailed(f"cuGraphLaunch: {status!r}")

    def __del__(self) -> None:
        # At the end of the process the driver, or the module that calls it, may be gone already.
        for what, by in (("_executable", "cuGraphExecDestroy"), ("_graph", "cuGraphDestroy")):
            destroy = getattr(getattr(self, "_driver", None), by, None)
            if getattr(self, what, None) is not None and destroy is not None:
                destroy(getattr(self, what))

    @staticmethod
    def _checked(result: Any) -> Any:
        status, *values = result
        if int(status) != 0:
            raise CaptureFailed(f"CUDA driver: {status!r}")
        return values[0] if values else None


def kernels_of(graph: Any, stream: Any) -> list[tuple[Any, ...]]:
    """The arguments of ``cuLaunchKernel`` for each node of a graph that is a chain of kernels.

    Empty for any other graph. (``cuGraphKernelNodeGetParams``.)
    """
    from cuda.bindings import driver

    checked = Graph._checked
    count = int(driver.cuGraphGetNodes(graph, 0)[-1])
    nodes = list(checked(driver.cuGraphGetNodes(graph, count)))[:count]
    asked, *_, pairs = driver.cuGraphGetEdges(graph, 0)
    if int(asked) != 0:  # CUDA 12's call does not tell edges to kernels that start early
        return []
    pairs = int(pairs)
    asked, before, after, *_ = driver.cuGraphGetEdges(graph, pairs) if pairs else (0, (), ())
    if int(asked) != 0:
        return []
    edges = {(int(a), int(b)) for a, b in zip(before[:pairs], after[:pairs])}
    if edges != {(int(a), int(b)) for a, b in pairwise(nodes)}:
        return []
    found: list[tuple[Any, ...]] = []
    for node in nodes:
        if checked(driver.cuGraphNodeGetType(node)) != _KERNEL_NODE_TYPE:
            return []
        p = checked(driver.cuGraphKernelNodeGetParams(node))
        sizes = (p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ)
        given = (int(p.kernelParams or 0), int(p.extra or 0))
        if not int(p.func) or not any(given):
            return []
        numbers = map(ctypes.c_uint, (*map(int, sizes), int(p.sharedMemBytes)))
        pointers = map(ctypes.c_void_p, (int(stream), *given))
        found.append((ctypes.c_void_p(int(p.func)), *numbers, *pointers))
    return found


class Queue:
    """The compute stream: copies between addresses, and events."""

    def __init__(self, context: Context) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self._context, self._stream = context, driver.CUstream(context.stream)
        self._in, self._out = driver.cuMemcpyHtoDAsync, driver.cuMemcpyDtoHAsync
        self._within = driver.cuMemcpyDtoDAsync

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """From pinned memory to the device (``cuMemcpyHtoDAsync``)."""
        self._check(self._in(target, source, nbytes, self._stream))

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """From the device to pinned memory (``cuMemcpyDtoHAsync``)."""
        self._check(self._out(target, source, nbytes, self._stream))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """On the device (``cuMemcpyDtoDAsync``)."""
        self._check(self._within(target, source, nbytes, self._stream))

    def event(self) -> Event:
        """A new event, not recorded yet."""
        return Event(self._driver, self._context)

    @staticmethod
    def _check(result: Any) -> None:
        if result[0] != 0:
            raise SymdnnError(f"CUDA driver: {result[0]!r}")


class Event:
    """A CUDA event of the stream (``cuEventCreate`` without timing).

    The garbage collector ends the objects of a cycle in any order, so that one which waits in its
    own end may come after the event: it waits for the stream then.
    """

    def __init__(self, driver: Any, context: Context) -> None:
        self._driver, self._context = driver, context
        self._stream = driver.CUstream(context.stream)
        status, self._event = driver.cuEventCreate(2)  # CU_EVENT_DISABLE_TIMING
        Queue._check((status,))
        self._set = False

    def record(self) -> None:
        """Record the event after all work enqueued so far."""
        self._set = True
        if self._event is not None:
            Queue._check(self._driver.cuEventRecord(self._event, self._stream))

    def wait(self) -> None:
        """Wait until the work before the event is done; return at once if it was not recorded."""
        if self._set and self._event is None:
            self._context.synchronize()
        elif self._set and self._context.poll is not None:
            self._context.poll(lambda: is_done(self._driver.cuEventQuery(self._event)))
        elif self._set:
            Queue._check(self._driver.cuEventSynchronize(self._event))

    def __del__(self) -> None:
        if getattr(self, "_event", None) is not None and self._driver is not None:
            self._driver.cuEventDestroy(self._event)
            self._event = None

"""What kernels of oneDNN share: operands in the layouts that a primitive wants, scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import kept
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import Scratch, address, aligned
from symdnn.cpu.launch.traits import ONEDNN
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.objects import Bound, Descriptor, Layout, Primitive, describe, reorder
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Kernel
from symdnn.graph.type import TensorType
from symdnn.graph.typing import OpT
from symdnn.graph.variable import Constant, Shared
from symdnn.ops.nn.channels_last import first_shape

__all__ = [
    "Kept", "Launcher", "OnednnKernel", "Operand", "Planned", "Version", "address", "aligned",
    "contiguous", "image", "lies_densely", "version_of",
]  # fmt: skip

#: A number that changes when a value does; None where that can't be told.
Version = Callable[[], int | None]


@dataclass(frozen=True)
class Operand:
    """An operand of a primitive: its name there, how the array lies, and which array it is.

    ``index`` counts the call's inputs, or its outputs where ``written``. ``mirrored`` dimensions,
    the last ones, are reversed in the array. What is written adds to input ``adds``, if there is
    one (oneDNN's sum).
    """

    name: str
    layout: Layout
    index: int
    written: bool = False
    mirrored: int = 0
    adds: int = -1


class Planned:
    """A primitive with reorders for those operands that it wants in another layout."""

    def __init__(self, primitive: Primitive, operands: Sequence[Operand]) -> None:
        self.primitive, self.operands = primitive, tuple(operands)
        #: Which of several candidates this is, and why.
        self.choice = ""
        self.foreign = [self._foreign(o) for o in self.operands]
        self.places: list[int] = []
        at = 0
        for descriptor in self.foreign:
            self.places.append(at)
            at += aligned(descriptor.nbytes) if descriptor is not None else 0
        self.scratch_at = at
        self.workspace_bytes = at + primitive.scratch_bytes

    def _foreign(self, o: Operand) -> Descriptor | None:
        """The primitive's layout of an operand, unless the array lies so."""
        wanted = self.primitive.operand(o.name)
        return None if wanted.equals(describe(o.layout)) else wanted

    def __str__(self) -> str:
        moved = [o.name for o, d in zip(self.operands, self.foreign) if d is not None]
        more = f", reordering {', '.join(moved)}" if moved else ""
        return f"{self.primitive.implementation}{more}"

    def launcher(self, versions: Mapping[int, Version] | None = None) -> Launcher:
        """What runs it on a call's arrays; ``versions`` are those of inputs that may be kept."""
        return Launcher(self, versions or {})


_MOVED = ("src", "dst")


class Kept:
    """An input in the primitive's own layout, kept while its value stays.

    That starts when two calls in turn have seen the same value: a parameter that each step changes
    would take memory of its own for nothing.
    """

    def __init__(self, version: Version, nbytes: int) -> None:
        self._version, self._nbytes = version, nbytes
        self._seen: int | None = None
        self._valid: int | None = None
        self._memory: Any = None

    def place(self) -> tuple[int, bool]:
        """(address to use, whether the value is there already); address 0: nothing is kept."""
        now = self._version()
        if now is None:
            return 0, False
        if now == self._valid:
            return address(self._memory), True
        if now != self._seen:
            self._seen = now
            return 0, False
        if self._memory is None:
            raw = np.empty(self._nbytes + 64, np.uint8)
            start = -address(raw) % 64
            self._memory = raw[start:]
        self._valid = now
        return address(self._memory), False


class Launcher(CpuLaunch):
    """A planned primitive, bound: ``launch(inputs, outputs, workspace)``."""

    def __init__(self, planned: Planned, versions: Mapping[int, Version]) -> None:
        self.planned = planned
        self._bound = Bound(planned.primitive, [*(o.name for o in planned.operands), "scratchpad"])
        self._moves = [self._move(o, d) for o, d in zip(planned.operands, planned.foreign)]
        self._kept = [
            None if d is None or o.written or o.index not in versions
            else Kept(versions[o.index], d.nbytes)
            for o, d in zip(planned.operands, planned.foreign)
        ]  # fmt: skip
        self._adds = [
            (o.adds, place, None if d is None else Bound(reorder(describe(o.layout), d), _MOVED))
            for o, d, place in zip(planned.operands, planned.foreign, planned.places)
            if o.adds >= 0
        ]
        self._scratch = Scratch([planned.workspace_bytes])
        self._parts = list(zip(planned.operands, self._moves, planned.places, self._kept))
        self._direct = all(
            m is None and not o.mirrored for o, m in zip(planned.operands, self._moves)
        )

    @staticmethod
    def _move(o: Operand, foreign: Descriptor | None) -> Bound | None:
        if foreign is None:
            return None
        own = describe(o.layout)
        pair = (foreign, own) if o.written else (own, foreign)
        return Bound(reorder(*pair), _MOVED)

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Run it on a call's arrays."""
        for index, place, move in self._adds:
            z = lies_densely(inputs[index])
            if move is not None:
                move(address(z), self._scratch.begin(workspace) + place)
            elif address(z) != address(outputs[0]):
                np.copyto(outputs[0], z)
        self.run(
            [(outputs if o.written else inputs)[o.index] for o in self.planned.operands], workspace
        )

    def run(self, arrays: Sequence[Any], workspace: Any = None) -> None:
        """Reorder what comes in, execute, reorder what goes out; an array for each operand."""
        base = self._scratch.begin(workspace)
        if self._direct:
            held = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
            self._bound(*map(address, held), base + self.planned.scratch_at)
            return
        pointers, after, held = [], [], []
        for (o, move, place, stays), array in zip(self._parts, arrays):
            if o.written:
                at = address(array)
                if move is not None:
                    after.append((move, base + place, at))
            else:
                at, inside = (0, False) if stays is None else stays.place()
                if not inside:
                    array = _as_read(array, o)
                    held.append(array)
                    target, at = at or base + place, address(array)
                    if move is not None:
                        move(at, target)
                        at = target
                pointers.append(at)
                continue
            pointers.append(at if move is None else base + place)
        self._bound(*pointers, base + self.planned.scratch_at)
        for move, source, target in after:
            move(source, target)
        for o, array in zip(self.planned.operands, arrays):
            if o.written and o.mirrored:
                flat = array.reshape(*array.shape[: -o.mirrored], -1)
                flat[...] = flat[..., ::-1].copy()

    def native(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> Native | None:
        """For operands that lie as the primitive wants them."""
        operands = self.planned.operands
        arrays = [(outputs if o.written else inputs)[o.index] for o in operands]
        if not self._direct or self._adds or not all(a.flags.c_contiguous for a in arrays):
            return None
        names = [""] * (len(inputs) + len(outputs) + (workspace is not None))
        for o in operands:
            names[o.index + (len(inputs) if o.written else 0)] = o.name
        if len({n for n in names if n}) < len(operands):
            return None  # one array is two operands
        bound = Bound(self.planned.primitive, self._bound.names)
        places = {}
        if wanted := self.planned.workspace_bytes:
            if workspace is not None and workspace.nbytes >= wanted:
                names[-1], places["scratchpad"] = "scratchpad", (0, self.planned.scratch_at)
            else:
                own = self._scratch.own()
                start = -address(own) % 64 + self.planned.scratch_at
                places["scratchpad"] = id(own), start
        return bound.native(places, names, self._scratch)


def _as_read(array: Any, o: Operand) -> Any:
    """An input as the primitive reads it: dense, and not mirrored."""
    if not o.mirrored:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    lead = array.shape[: -o.mirrored]
    flat = np.ascontiguousarray(array).reshape(*lead, -1)
    return np.ascontiguousarray(flat[..., ::-1])


def version_of(call: Call, index: int) -> Version | None:
    """The version of an input that stays from call to call: a parameter, what was computed of
    parameters before, a constant."""
    v = None if call.node is None else call.node.inputs[index]
    if isinstance(v, Constant):
        return lambda: 0
    if isinstance(v, Shared):
        storage = v.storage
        return lambda: storage.version
    return None if v is None else call.versions.get(v)


class OnednnKernel(Kernel[OpT]):
    """Base of the kernels; see :class:`symdnn.graph.kernel.Kernel`.

    A subclass gives :meth:`planned`, which raises
    :class:`~symdnn.cpu.onednn.library.OnednnError` for what oneDNN does not have.
    """

    name = ""
    traits = ONEDNN
    #: Dtypes besides float32.
    more_dtypes: frozenset[str] = frozenset()
    #: Whether oneDNN's implementation is called ``ref`` though it is the real one (RNNs).
    takes_reference = False
    #: Whether threads of libgomp run it.
    threaded = True
    #: Inputs that are kept in the primitive's layout while their value stays.
    keeps: tuple[int, ...] = ()

    def planned(self, call: Call[OpT]) -> Planned:
        """The primitive for a call at known sizes."""
        raise NotImplementedError

    def refuses_types(self, call: Call[OpT]) -> str | None:
        """Reasons that need no sizes: here, dtypes and a library that is not there."""
        host = call.op.host_inputs
        read = [t for i, t in enumerate(call.inputs) if i not in host]
        for t in (*read, *call.outputs):
            if isinstance(t, TensorType) and t.dtype not in {"float32", *self.more_dtypes}:
                return f"oneDNN computes in float32 here, not {t.dtype}"
        return library.problem().partition("\n")[0] or None

    def refuses(self, call: Call[OpT]) -> str | None:
        """Why oneDNN cannot run this call."""
        reason = self.refuses_types(call)
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if reason or not all(t.is_static for t in types):
            return reason
        if any(0 in t.shape for t in types):
            return "it is empty"
        try:
            planned = self.cached(call)
        except library.OnednnError as error:
            return str(error)
        if planned.primitive.is_reference and not self.takes_reference:
            return f"oneDNN has only its reference for it ({planned.primitive.implementation})"
        return None

    def cached(self, call: Call[OpT]) -> Planned:
        """:meth:`planned`, once for each call, number of threads and way to choose."""
        return _planned(self, call, thread_pools.settle(), self.chooses())

    def chooses(self) -> str:
        """How it chooses among candidates, by flags."""
        return ""

    def workspace_bytes(self, call: Call[OpT]) -> int:
        """Scratch memory, and room for operands in other layouts."""
        return self.cached(call).workspace_bytes

    def bind(self, call: Call[OpT]) -> Any:
        """Primitives and memory objects are made here; a launch only passes pointers."""
        versions = {i: v for i in self.keeps if (v := version_of(call, i)) is not None}
        return self.cached(call).launcher(versions)

    def details(self, call: Call[OpT]) -> str:
        """The implementation, and what is reordered."""
        return str(self.cached(call))


@kept(64 << 10)
def _planned(kernel: Any, call: Call, threads: int, chooses: str) -> Planned:
    found: Planned = kernel.planned(call)
    return found


def contiguous(t: Any) -> Layout:
    """The layout of a C-contiguous array of a static type."""
    return Layout(tuple(t.shape), t.dtype)


def image(t: Any, layout: str) -> Layout:
    """How (N, C, \\*sizes) lies in a contiguous array of a static type in an op's layout."""
    if layout == "NCHW" or len(t.shape) < 4:
        return contiguous(t)
    return Layout(first_shape(tuple(t.shape)), t.dtype).channels_last()


def lies_densely(array: Any) -> Any:
    """``array``, or a copy that is contiguous."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)

"""The base of oneDNN kernels: operands reordered to a primitive's layouts, scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import cached
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import Scratch, address, aligned, as_contiguous, empty_kept
from symdnn.cpu.launch.traits import ONEDNN
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.magnitudes import bound, largest
from symdnn.cpu.onednn.objects import (
    BoundPrimitive,
    Descriptor,
    Layout,
    Primitive,
    describe,
    reorder,
)
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Kernel
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays, OpT
from symdnn.graph.variable import Constant, Shared
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.nn.channels_last import first_shape
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, resolved_padding

#: A function that returns a number which changes with a value; None where changes are not known.
Version = Callable[[], int | None]


@dataclass(frozen=True)
class PrimitiveOperand:
    """An operand of a primitive: its oneDNN name, the layout of the array, and which array it is.

    ``index`` counts the call's inputs, or its outputs if ``written``. The last ``mirrored``
    dimensions are reversed in the array. ``adds`` is the input that the result is added to
    (oneDNN's sum), or -1.
    """

    name: str
    layout: Layout
    index: int
    written: bool = False
    mirrored: int = 0
    adds: int = -1


class PlannedPrimitive:
    """A primitive, with reorders of the operands that it needs in another layout."""

    def __init__(self, primitive: Primitive, operands: Sequence[PrimitiveOperand]) -> None:
        self.primitive, self.operands = primitive, tuple(operands)
        #: Name of the chosen candidate, and why it was chosen.
        self.choice = ""
        #: For each operand the primitive's layout if it differs from the array's, else None.
        self.foreign = [self._foreign(o) for o in self.operands]
        self.places: list[int] = []
        at = 0
        for descriptor in self.foreign:
            self.places.append(at)
            at += aligned(descriptor.nbytes) if descriptor is not None else 0
        self.scratch_at = at
        self.workspace_bytes = at + primitive.scratch_bytes

    def _foreign(self, o: PrimitiveOperand) -> Descriptor | None:
        """The primitive's layout of an operand; None if the array has it."""
        wanted = self.primitive.operand(o.name)
        return None if wanted.equals(describe(o.layout)) else wanted

    def __str__(self) -> str:
        moved = [o.name for o, d in zip(self.operands, self.foreign) if d is not None]
        more = f", reordering {', '.join(moved)}" if moved else ""
        return f"{self.primitive.implementation}{more}"

    def launcher(self, versions: Mapping[int, Version] | None = None) -> PrimitiveLaunch:
        """A launch on a call's arrays; ``versions`` are those of inputs that may be prepacked."""
        return PrimitiveLaunch(self, versions or {})


_REORDER_OPERANDS = ("src", "dst")


class PrepackedInput:
    """An input that is kept in the primitive's layout until its value changes.

    It is kept only after two successive calls with the same value: for a parameter that changes in
    each step the memory would be wasted.
    """

    def __init__(self, version: Version, nbytes: int) -> None:
        self._version, self._nbytes = version, nbytes
        self._seen: int | None = None
        self._valid: int | None = None
        self._memory: Any = None

    @property
    def memory(self) -> Any:
        """The memory at the address that :meth:`place` gave."""
        return self._memory

    def place(self) -> tuple[int, bool]:
        """(address of the prepacked value, whether it is up to date); address 0: not kept."""
        now = self._version()
        if now is None:
            return 0, False
        if now == self._valid:
            return address(self._memory), True
        if now != self._seen:
            self._seen = now
            return 0, False
        if self._memory is None:
            self._memory = empty_kept(self._nbytes)
        self._valid = now
        return address(self._memory), False

    def kept(self) -> Any:
        """The memory, where the next call would keep the value; None else. Asking is no call."""
        now = self._version()
        if self._memory is None and now is not None and now == self._seen:
            self._memory = empty_kept(self._nbytes)
        return self._memory

    def renewed(self) -> bool:
        """Whether the memory, which :meth:`place` has given before, is up to date; it will be."""
        now = self._version()
        if now is not None and now == self._valid:
            return True
        self._seen = self._valid = now
        return False


class PrimitiveLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)`` of a planned primitive."""

    def __init__(self, planned: PlannedPrimitive, versions: Mapping[int, Version]) -> None:
        self.planned = planned
        self._bound = BoundPrimitive(
            planned.primitive, [*(o.name for o in planned.operands), "scratchpad"]
        )
        self._moves = [self._move(o, d) for o, d in zip(planned.operands, planned.foreign)]
        self._kept = [
            None if d is None or o.written or o.index not in versions
            else PrepackedInput(versions[o.index], d.nbytes)
            for o, d in zip(planned.operands, planned.foreign)
        ]  # fmt: skip
        self._adds = [
            (
                o.adds,
                place,
                None
                if d is None
                else BoundPrimitive(reorder(describe(o.layout), d), _REORDER_OPERANDS),
            )
            for o, d, place in zip(planned.operands, planned.foreign, planned.places)
            if o.adds >= 0
        ]
        self._scratch = Scratch([planned.workspace_bytes])
        self._parts = list(zip(planned.operands, self._moves, planned.places, self._kept))
        self._direct = all(
            m is None and not o.mirrored for o, m in zip(planned.operands, self._moves)
        )

    @staticmethod
    def _move(o: PrimitiveOperand, foreign: Descriptor | None) -> BoundPrimitive | None:
        if foreign is None:
            return None
        own = describe(o.layout)
        pair = (foreign, own) if o.written else (own, foreign)
        return BoundPrimitive(reorder(*pair), _REORDER_OPERANDS)

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Run the primitive on a call's arrays."""
        for index, place, move in self._adds:
            z = as_contiguous(inputs[index])
            if move is not None:
                move(address(z), self._scratch.begin(workspace) + place)
            elif address(z) != address(outputs[0]):
                np.copyto(outputs[0], z)
        self.run(
            [(outputs if o.written else inputs)[o.index] for o in self.planned.operands], workspace
        )

    def run(self, arrays: Arrays, workspace: Array | None = None) -> None:
        """Reorder inputs, execute, reorder outputs. ``arrays`` has one for each operand."""
        base = self._scratch.begin(workspace)
        if self._direct:
            held = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
            self._bound(*map(address, held), base + self.planned.scratch_at)
            return
        pointers, after, held = [], [], []
        for (o, move, place, prepacked), array in zip(self._parts, arrays):
            if o.written:
                at = address(array)
                if move is not None:
                    after.append((move, base + place, at))
            else:
                at, valid = (0, False) if prepacked is None else prepacked.place()
                if not valid:
                    array = _as_primitive_reads(array, o)
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
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCall | None:
        """For operands in the primitive's layouts, and one that is kept in it."""
        foreign = [k for k, (o, m, *_) in enumerate(self._parts) if m is not None or o.mirrored]
        memory = self._kept_memory(foreign[0], inputs) if foreign else None
        if len(foreign) > 1 or (foreign and memory is None):
            return None
        operands = [o for k, o in enumerate(self.planned.operands) if k not in foreign]
        names = [""] * (len(inputs) + len(outputs) + (workspace is not None))
        for o in operands:
            names[o.index + (len(inputs) if o.written else 0)] = o.name
        read = [(outputs if o.written else inputs)[o.index] for o in operands]
        read += [inputs[index] for index, *_ in self._adds]
        if len({n for n in names if n}) < len(operands):
            return None  # one array is the value of two operands
        if not all(a.flags.c_contiguous for a in read):
            return None
        bound = BoundPrimitive(self.planned.primitive, self._bound.names)
        places = {self.planned.operands[k].name: (id(memory), 0) for k in foreign}
        if wanted := self.planned.workspace_bytes:
            if workspace is not None and workspace.nbytes >= wanted:
                names[-1], places["scratchpad"] = "scratchpad", (0, self.planned.scratch_at)
            else:
                own = self._scratch.own()
                start = -address(own) % 64 + self.planned.scratch_at
                places["scratchpad"] = id(own), start
        copied = [(outputs[0].nbytes, index, len(inputs)) for index, *_ in self._adds]
        made = bound.native(places, names, (self._scratch, memory), *copied)
        return replace(made, renew=self._renewal(foreign[0], inputs)) if foreign else made

    def _kept_memory(self, k: int, inputs: Arrays) -> Any:
        """The memory of operand ``k`` in the primitive's layout; None where it is not kept."""
        kept, array = self._kept[k], inputs[self.planned.operands[k].index]
        if not (array.flags.c_contiguous or array.T.flags.c_contiguous):
            return None
        return None if kept is None else kept.kept()

    def _renewal(self, k: int, inputs: Arrays) -> tuple[int, Callable[[Any], None]]:
        """The position of a kept operand, and a function that reorders it if it has changed.

        The function gets the memory of a view without the view's shape.
        """
        o, move, _, kept = self._parts[k]
        like: Any = inputs[o.index]
        turned = not like.flags.c_contiguous
        shape, dtype, size = like.T.shape if turned else like.shape, like.dtype, like.size
        assert move is not None, "it has another layout"
        assert kept is not None, "it is kept"

        def renew(array: Any) -> None:
            if not kept.renewed():
                own = array.reshape(-1).view(dtype)[:size].reshape(shape)
                array = _as_primitive_reads(own.T if turned else own, o)
                move(address(array), address(kept.memory))

        return o.index, renew


def _as_primitive_reads(array: Array, o: PrimitiveOperand) -> Any:
    """An input as the primitive reads it: contiguous, and not mirrored."""
    if not o.mirrored:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    lead = array.shape[: -o.mirrored]
    flat = np.ascontiguousarray(array).reshape(*lead, -1)
    return np.ascontiguousarray(flat[..., ::-1])


def of_maxima(launch: PrimitiveLaunch, op: Any) -> Any:
    """``launch`` of maxima that ignore NaN and begin at the lowest finite number.

    ``op``'s reference computes them if x may have a NaN, and where a window may be all -inf.
    """

    def run(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        x = as_contiguous(inputs[0])
        launch([x], outputs, workspace)
        with np.errstate(all="ignore"):
            limit = _sign_of_limits(x.reshape(-1))
            lowest = limit == -np.inf and _has_lowest(outputs[0].reshape(-1))
            if np.isnan(limit) or lowest:
                np.copyto(outputs[0], op.compute(x)[0])

    return run


def _sign_of_limits(x: Any) -> float:
    """NaN if an element may be; else -inf where one is -inf (their sum, which may also overflow).

    NumPy adds a million numbers in bfloat16 in 20 ms. Of their bits NaN are the largest, with and
    without the sign; the next are those of the infinities.
    """
    if x.dtype.itemsize > 2:
        return float(np.add.reduce(x))
    below = x.view(np.uint16).max()
    if x.view(np.int16).max() > 0x7F80 or below > 0xFF80:
        return np.nan
    return -np.inf if below == 0xFF80 else 0.0


def _has_lowest(y: Any) -> bool:
    """Whether an element is the lowest finite number."""
    if y.dtype.itemsize > 2:
        return bool((y == np.finfo(y.dtype).min).any())
    return bool((y.view(np.uint16) == 0xFF7F).any())


def of_finite_operands(launch: Any, call: Call) -> Any:
    """``launch`` of a primitive whose activation function loses NaN, where operands cannot lead to
    one; else ``op``'s reference. Parameters are looked at when they change."""
    versions = [version_of(call, i) for i in range(len(call.inputs))]
    seen: dict[int, tuple[int, float]] = {}

    def most(i: int, x: Array) -> float:
        version = versions[i]
        now = None if version is None else version()
        if now is None:  # of two factors one has to be known, or the product's bound is too large
            return largest(x) if i == 1 else bound(x)
        if i not in seen or seen[i][0] != now:
            seen[i] = now, largest(x)
        return seen[i][1]

    def run(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        x, w, *added = [most(i, x) for i, x in enumerate(inputs)]
        # Sums that overflow lead to NaN, too. A comparison with NaN is false.
        if x * w * inputs[1].size + sum(added) < _MAX_SUM:
            launch(inputs, outputs, workspace)
            return
        with np.errstate(all="ignore"):
            np.copyto(outputs[0], call.op.compute(*inputs)[0])

    return run


#: Sums of at most this do not overflow, whatever their order.
_MAX_SUM = float(np.finfo("float32").max) / 2


def version_of(call: Call, index: int) -> Version | None:
    """The version of an input that may be the same in several calls; None for other inputs.

    Such inputs are parameters, values that depend on parameters alone, and constants.
    """
    v = None if call.node is None else call.node.inputs[index]
    while v is not None and v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]  # a view changes with what it shows
    if isinstance(v, Constant):
        return lambda: 0
    if isinstance(v, Shared):
        storage = v.storage
        return lambda: storage.version
    return None if v is None else call.versions.get(v)


class OnednnKernel(Kernel[OpT]):
    """Base class of oneDNN kernels; see :class:`symdnn.graph.kernel.Kernel`.

    A subclass defines :meth:`planned`, which raises
    :class:`~symdnn.cpu.onednn.library.OnednnError` if oneDNN has no primitive for a call.
    """

    name = ""
    traits = ONEDNN
    #: Whether activations may be bfloat16, where the CPU has instructions for it.
    takes_bfloat16 = False
    #: Whether it uses libgomp's threads.
    threaded = True
    #: Inputs that are prepacked: kept in the primitive's layout until their value changes.
    keeps: tuple[int, ...] = ()

    @property
    def more_dtypes(self) -> frozenset[str]:
        """Dtypes besides float32."""
        return frozenset({"bfloat16"} if self.takes_bfloat16 and library.has_bfloat16() else ())

    def planned(self, call: Call[OpT]) -> PlannedPrimitive:
        """The primitive for a call at known sizes."""
        raise NotImplementedError

    def refuses_types(self, call: Call[OpT]) -> str | None:
        """Reasons that need no sizes: dtypes, and a missing library."""
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
        if planned.primitive.is_reference:
            return f"oneDNN has only its reference for it ({planned.primitive.implementation})"
        return None

    def cached(self, call: Call[OpT]) -> PlannedPrimitive:
        """:meth:`planned`, cached by call, number of threads and :meth:`chooses`."""
        return _planned(self, call, thread_pools.set_threads(), self.chooses())

    def chooses(self) -> str:
        """How candidates are chosen, by flags; "" if there is only one."""
        return ""

    def workspace_bytes(self, call: Call[OpT]) -> int:
        """Scratch memory, and memory for reordered operands."""
        return self.cached(call).workspace_bytes

    def bind(self, call: Call[OpT]) -> Any:
        """A launch with its primitives and memory objects; running it only sets pointers."""
        versions = {i: v for i in self.keeps if (v := version_of(call, i)) is not None}
        return self.cached(call).launcher(versions)

    def details(self, call: Call[OpT]) -> str:
        """The implementation, and the operands that are reordered."""
        return str(self.cached(call))


@cached(64 << 10)
def _planned(kernel: Any, call: Call, threads: int, chooses: str) -> PlannedPrimitive:
    return kernel.planned(call)


def contiguous(t: Any) -> Layout:
    """The layout of a contiguous array of a static type."""
    return Layout(tuple(t.shape), t.dtype)


def activation_layout(t: Any, layout: str) -> Layout:
    """The layout of activations (N, C, \\*sizes) in an op's ``layout``, NCHW or NHWC."""
    if layout == "NCHW" or len(t.shape) < 4:
        return contiguous(t)
    return Layout(first_shape(tuple(t.shape)), t.dtype).channels_last()


def convolution_settings(
    conv: Conv | ConvGradInput | ConvGradWeight, w: Layout
) -> tuple[Sequence[int], ...]:
    """Strides, dilations less one, and the padding before and after, as oneDNN has them."""
    pads = [
        resolved_padding(p, k, d)
        for p, k, d in zip(conv.padding, w.shape[-conv.ndim :], conv.dilation)
    ]
    before, after = ([int(p[i]) for p in pads] for i in (0, 1))
    return conv.stride, [d - 1 for d in conv.dilation], before, after

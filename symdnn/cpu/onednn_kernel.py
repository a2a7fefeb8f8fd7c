"""What kernels of oneDNN share: operands in the layouts that a primitive wants, scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from symdnn.cpu import libdnnl
from symdnn.cpu.dnnl import Bound, Descriptor, Layout, Primitive, describe, reorder
from symdnn.graph.kernel import Call
from symdnn.graph.type import TensorType

__all__ = ["OnednnKernel", "Operand", "Planned", "aligned", "contiguous"]


@dataclass(frozen=True)
class Operand:
    """An operand of a primitive: its name there, how the array lies, and which array it is.

    ``index`` counts the call's inputs, or its outputs where ``written``.
    """

    name: str
    layout: Layout
    index: int
    written: bool = False


class Planned:
    """A primitive with reorders for those operands that it wants in another layout."""

    def __init__(self, primitive: Primitive, operands: Sequence[Operand]) -> None:
        self.primitive, self.operands = primitive, tuple(operands)
        self.foreign = [self._foreign(o) for o in self.operands]
        self._places: list[int] = []
        at = 0
        for descriptor in self.foreign:
            self._places.append(at)
            at += aligned(descriptor.nbytes) if descriptor is not None else 0
        self.scratch_at = at
        self.workspace_bytes = at + primitive.scratch_bytes

    def _foreign(self, o: Operand) -> Descriptor | None:
        """The primitive's layout of an operand, unless the array lies so."""
        wanted = self.primitive.operand(o.name)
        return None if wanted.equals(describe(o.layout)) else wanted

    @property
    def reordered_bytes(self) -> int:
        """Bytes that are copied into or out of other layouts at each call."""
        return sum(d.nbytes for d in self.foreign if d is not None)

    def __str__(self) -> str:
        moved = [o.name for o, d in zip(self.operands, self.foreign) if d is not None]
        more = f", reordering {', '.join(moved)}" if moved else ""
        return f"{self.primitive.implementation}{more}"

    def launcher(self) -> Launcher:
        """What runs it on a call's arrays."""
        return Launcher(self)


class Launcher:
    """A planned primitive, bound: ``launch(inputs, outputs, workspace)``."""

    def __init__(self, planned: Planned) -> None:
        names = [o.name for o in planned.operands]
        self._bound = Bound(planned.primitive, [*names, "scratchpad"])
        self._planned = planned
        self._moves = [self._move(o, d) for o, d in zip(planned.operands, planned.foreign)]

    @staticmethod
    def _move(o: Operand, foreign: Descriptor | None) -> Bound | None:
        if foreign is None:
            return None
        own = describe(o.layout)
        pair = (foreign, own) if o.written else (own, foreign)
        return Bound(reorder(*pair), ("src", "dst"))

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Reorder what comes in, execute, reorder what goes out."""
        base = 0 if workspace is None else address(workspace)
        pointers, after, kept = [], [], []
        planned = self._planned
        for o, move, place in zip(planned.operands, self._moves, planned._places):
            array = (outputs if o.written else inputs)[o.index]
            if not o.written and not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
                kept.append(array)
            at = address(array)
            if move is None:
                pointers.append(at)
                continue
            pointers.append(base + place)
            if o.written:
                after.append((move, base + place, at))
            else:
                move(at, base + place)
        self._bound(*pointers, base + planned.scratch_at)
        for move, source, target in after:
            move(source, target)


def address(array: Any) -> int:
    """Where an array's data begins."""
    at: int = array.__array_interface__["data"][0]
    return at


def aligned(nbytes: int) -> int:
    """The next multiple of 64."""
    return -(-nbytes // 64) * 64


class OnednnKernel:
    """Base of the kernels; see :class:`symdnn.graph.kernel.Kernel`.

    A subclass gives :meth:`planned`, which raises
    :class:`~symdnn.cpu.libdnnl.OnednnError` for what oneDNN does not have.
    """

    name = ""
    dtypes: frozenset[str] = frozenset({"float32"})

    def planned(self, call: Call) -> Planned:
        """The primitive for a call at known sizes."""
        raise NotImplementedError

    def refuses_types(self, call: Call) -> str | None:
        """Reasons that need no sizes: here, dtypes and a library that is not there."""
        host = call.op.host_inputs
        read = [t for i, t in enumerate(call.inputs) if i not in host]
        for t in (*read, *call.outputs):
            if isinstance(t, TensorType) and t.dtype not in self.dtypes:
                return f"oneDNN computes in float32 here, not {t.dtype}"
        return libdnnl.problem().partition("\n")[0] or None

    def refuses(self, call: Call) -> str | None:
        """Why oneDNN cannot run this call."""
        reason = self.refuses_types(call)
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if reason or not all(t.is_static for t in types):
            return reason
        if any(0 in t.shape for t in types):
            return "it is empty"
        try:
            planned = self._cached(call)
        except libdnnl.OnednnError as error:
            return str(error)
        if planned.primitive.is_reference:
            return f"oneDNN has only its reference for it ({planned.primitive.implementation})"
        return None

    def _cached(self, call: Call) -> Planned:
        return _planned(self, call)

    def workspace_bytes(self, call: Call) -> int:
        """Scratch memory, and room for operands in other layouts."""
        return self._cached(call).workspace_bytes

    def bind(self, call: Call) -> Any:
        """Primitives and memory objects are made here; a launch only passes pointers."""
        return self._cached(call).launcher()

    def details(self, call: Call) -> str:
        """The implementation, and what is reordered."""
        return str(self._cached(call))


@lru_cache(maxsize=4096)
def _planned(kernel: Any, call: Call) -> Planned:
    found: Planned = kernel.planned(call)
    return found


def contiguous(t: Any) -> Layout:
    """The layout of a C-contiguous array of a static type."""
    return Layout(tuple(t.shape), t.dtype)

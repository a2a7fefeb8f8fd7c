"""An order of a segment's nodes in which memory is freed early."""

from __future__ import annotations

from dataclasses import replace

from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import bounds_known, byte_count
from symdnn.graph.place import HOST
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import StreamStart, StreamWait
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu

#: The bytes of a segment's values from which their order matters.
_LARGE = 64 << 20


def ordered_by_size(spec: Specialised) -> Specialised:
    """:func:`eager` on a GPU where values are large, and nothing else decides the order.

    Ranks run collectives in one order, a guard names the first fault, and a loop's step is short.
    """
    segment = spec.segment
    if segment.place == HOST or segment.guard is not None or segment.carried:
        return spec
    if any(isinstance(n.op, Collective | StreamStart | StreamWait) for n in segment.nodes):
        return spec
    values = (v for n in segment.nodes if not is_view(n) for v in n.outputs)
    return eager(spec) if sum(bytes_of(spec, v) for v in values) >= _LARGE else spec


def eager(spec: Specialised) -> Specialised:
    """The segment, reordered so that nodes which free more memory than they need run early.

    A gradient with respect to a weight is computed where its operands are, say, in place of at the
    end.
    """
    order = _Eager(spec).order()
    if order == spec.segment.nodes:
        return spec
    return replace(spec, segment=replace(spec.segment, nodes=order))


class _Eager:
    """The nodes in order, each followed by those that can now free memory."""

    def __init__(self, spec: Specialised) -> None:
        self.spec, self.nodes = spec, spec.segment.nodes
        self.leaving = set(spec.segment.outputs)
        self.late = {new for new, _ in spec.segment.updates}
        self.made = {v for n in self.nodes for v in n.outputs}
        self.root: dict[Variable, Variable] = {}
        self.readers: dict[Variable, list[Apply]] = {}
        for n in self.nodes:
            for v in dict.fromkeys(n.inputs):
                self.readers.setdefault(v, []).append(n)
            if is_view(n):
                source = n.inputs[n.op.views[0]]
                self.root[n.outputs[0]] = self.root.get(source, source)
        #: How many readers each value has left, views included, and how many inputs a node waits
        #: for.
        self.left: dict[Variable, int] = {}
        for n in self.nodes:
            for v in self._read(n):
                self.left[v] = self.left.get(v, 0) + 1
        self.missing = {n: len({v.owner for v in n.inputs if v in self.made}) for n in self.nodes}
        self.done: dict[Apply, None] = {}

    def order(self) -> tuple[Apply, ...]:
        """All nodes; up to the last that runs before a captured graph they keep their places."""
        before = [i for i, n in enumerate(self.nodes) if self._before_graph(n)]
        ahead = before[-1] + 1 if before else 0
        for n in self.nodes[:ahead]:
            self._run(n)
        for n in self.nodes[ahead:]:
            stack = [n]
            while stack:
                node = stack.pop()
                if node not in self.done:
                    stack += self._run(node)
        return tuple(self.done)

    def _before_graph(self, n: Apply) -> bool:
        """Whether a node runs before a captured graph: copies to the device, reads of the host."""
        return isinstance(n.op, GpuFromHost) or not bounds_known(self.spec, n)

    def _run(self, n: Apply) -> list[Apply]:
        """Nodes that may run now and free memory."""
        self.done[n] = None
        for v in self._read(n):
            self.left[v] -= 1
        after = dict.fromkeys(r for v in n.outputs for r in self.readers.get(v, ()))
        for r in after:
            self.missing[r] -= 1
        last = [v for v in self._read(n) if self.left[v] == 1]
        beside = dict.fromkeys(r for v in last for r in self._all_readers(v))
        found = [r for r in (*beside, *after) if r not in self.done and not self.missing[r]]
        return [r for r in found if not self._stays(r) and (is_view(r) or self._gain(r) > 0)]

    def _read(self, n: Apply) -> dict[Variable, None]:
        """The values whose memory a node reads."""
        return {} if is_view(n) else dict.fromkeys(self.root.get(v, v) for v in n.inputs)

    def _all_readers(self, v: Variable) -> list[Apply]:
        found, stack = [], [v]
        while stack:
            for r in self.readers.get(stack.pop(), ()):
                found.append(r)
                if is_view(r):
                    stack.append(r.outputs[0])
        return found

    def _gain(self, n: Apply) -> int:
        freed = [v for v in self._read(n) if v in self.made and self.left[v] == 1]
        sizes = [
            [bytes_of(self.spec, v) for v in vs if v not in self.leaving]
            for vs in (freed, n.outputs)
        ]
        return sum(sizes[0]) - sum(sizes[1])

    def _stays(self, n: Apply) -> bool:
        """Whether a node may not move: effects, updates, and unknown sizes.

        So do copies to the host, which come behind a captured graph.
        """
        known = all(self.spec.shapes.get(v) is not None for v in n.outputs)
        effect = n.op.unmergeable or n.op.host_callback or isinstance(n.op, HostFromGpu)
        return effect or not known or any(v in self.late for v in n.outputs)


def is_view(n: Apply) -> bool:
    """Whether a node may only look at the memory of one of its inputs."""
    return n.op.views.get(0) is not None and len(n.outputs) == 1


def bytes_of(spec: Specialised, v: Variable) -> int:
    """The bytes of a value; 0 where they are not known before a run."""
    shape = spec.shapes.get(v)
    return 0 if shape is None or isinstance(v.type, OpaqueType) else byte_count(v, shape)

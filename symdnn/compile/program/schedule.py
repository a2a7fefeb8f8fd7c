"""Schedules a rewritten graph as a program: host nodes, segments and their order.

A segment ends where a value must be read on the host before the next nodes can be planned: a shape
that depends on data, the condition of an ``ifelse``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from symdnn.compile.program.carried import with_carried
from symdnn.compile.program.overlap import overlapped
from symdnn.compile.program.program import If, Loop, Program, Region, Segment, inputs_of_loop
from symdnn.compile.program.sunk_views import sink, views_of_loop, without_unread
from symdnn.graph.inner import InnerGraph
from symdnn.graph.origin import NO_HINTS, inherit
from symdnn.graph.place import HOST, Place
from symdnn.graph.traverse import in_written_order, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.control.control import IfElse
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import DimShuffle, ShapeI
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.rewriting.shapes import ShapeResolver


class DeviceOf(Protocol):
    """The place of each node."""

    def __call__(self, node: Apply) -> Place:
        """The host or the target's device."""

    @property
    def captures(self) -> bool:
        """Whether segments may be captured: not in the body of a loop."""

    def inside(self, body: InnerGraph) -> DeviceOf:
        """The places of the nodes of a loop's body."""


def schedule(
    outputs: Sequence[Variable], device_of: DeviceOf, given: Collection[Variable] = ()
) -> Program:
    """The program that computes ``outputs``. Variables in ``given`` are inputs."""
    return _Scheduler(outputs, ShapeResolver(given), given, device_of).program()


class _Scheduler:
    """Puts each node into the earliest stage in which all its inputs are known."""

    def __init__(
        self,
        outputs: Sequence[Variable],
        resolver: ShapeResolver,
        available: Iterable[Variable],
        device_of: DeviceOf,
    ) -> None:
        self.outputs, self.resolver = list(outputs), resolver
        self.available, self.device_of = set(available), device_of
        order = toposort(outputs, self.available)
        self.branches = {n: _Branches(n, order, self.outputs) for n in order if _is_if(n)}
        inside = {m for b in self.branches.values() for m in (*b.then, *b.orelse)}
        self.dims_of = {n: self._dims(n) for n in order if n not in inside}
        dims = list(dict.fromkeys(d for found in self.dims_of.values() for d in found))
        order = toposort([*outputs, *dims], self.available)
        self.order, self.previous = self._with_effects_ordered(
            [n for n in order if n not in inside]
        )
        self.host = _host_nodes(self.order, dims, device_of) | self._host_scalars()
        self.host |= {n for n in self.order if _is_copy_out(n) and n.inputs[0].owner in self.host}
        self.device_stage: dict[Variable, int] = {}
        self.host_stage: dict[Variable, int] = {}
        self.stage_of: dict[Apply, int] = {}
        for node in self.order:
            self._place(node)
        loops = [n for n in self.order if _is_loop(n)]
        #: Views that loops make, in a program of the host alone.
        self.views = {
            n: views_of_loop(n, {*self.outputs}, self._is_inside)
            for n in (loops if all(device_of(n) == HOST for n in self.order) else ())
        }
        self.users = self._find_users()
        self.order = without_unread(self.order, self.views.values(), self.users)
        sink(self.order, self.stage_of, self.users, {*self.outputs}, self._is_inside)
        self.sizes = _sizes(self.order, self.host)
        self.on_call = self._needed_on_call()

    def _with_effects_ordered(self, order: list[Apply]) -> tuple[list[Apply], dict[Apply, Apply]]:
        """The order of the nodes, and for each node with an ordered effect the one before it.

        A lazy choice counts as the place of the effects in its branches.
        """

        def makers(node: Apply) -> list[Apply]:
            read = self.branches[node].outer if node in self.branches else ()
            return [v.owner for v in (*node.inputs, *read) if v.owner is not None]

        found = {n for n in order if n.op.ordered or (_is_if(n) and self.branches[n].has_ordered)}
        order = in_written_order(order, found, makers)
        chain = [n for n in order if n in found]
        return order, dict(zip(chain[1:], chain))

    def _dims(self, node: Apply) -> list[Variable]:
        """Sizes of a node's outputs that depend on host values: they are part of the signature."""
        if _is_loop(node) or all(isinstance(node.inputs[i], Constant) for i in node.op.host_inputs):
            return []
        # A size that depends on the node's data is not known when its plan is looked up.
        return [] if self.resolver.depends_on_data(node) else self.resolver.dims(node)

    def _host_scalars(self) -> set[Apply]:
        """Scalar arithmetic on the host in a graph that also runs on a device; else that on sizes.

        What follows from the sizes of inputs alone is then evaluated once for each plan.
        """
        if all(self.device_of(n) == HOST for n in self.order):
            return _of_sizes(self.order, self.available)
        return {
            n
            for n in self.order
            if self.device_of(n) == HOST and not _is_loop(n) and _is_scalar_work(n)
        }

    def _place(self, node: Apply) -> None:
        after = self._after_effect(node)
        if node in self.host:
            # A size needs its array, a value needs a copy on the host: both end a segment.
            stage = max((self._host(v) for v in node.inputs), default=0)
            stage = max(stage, after)
            self._set(node, stage, device=stage, host=stage)
        elif node in self.branches:
            stage = max(self._stage_of_if(node), after)
            self._set(node, stage, device=stage + 1, host=stage + 1)
        elif _is_loop(node):
            stage = max(self._earliest(node), after)
            self._set(node, stage, device=stage + 1, host=stage + 1)
        else:
            stage = max(self._earliest(node), after)
            known = stage + 1 if self.resolver.depends_on_data(node) else stage
            self._set(node, stage, device=known, host=stage + 1)

    def _is_inside(self, node: Apply) -> bool:
        """Whether a node is part of a segment on the host."""
        apart = node in self.host or node in self.branches or _is_loop(node)
        return not apart and self.device_of(node) == HOST

    def _after_effect(self, node: Apply) -> int:
        """The first stage in which the ordered effect before ``node`` has run, or runs earlier.

        A stage runs its host nodes, then its segments, its lazy choices and its loops.
        """
        before = self.previous.get(node)
        if before is None:
            return 0
        ranks = [self._rank(before), self._rank(node)]
        together = ranks[0] < ranks[1] or (
            ranks[0] == ranks[1] and (ranks[0] != 1 or self._device_is_one(before, node))
        )
        return self.stage_of[before] + (not together)

    def _rank(self, node: Apply) -> int:
        """The position of a node's region in its stage."""
        if node in self.host:
            return 0
        return 2 if node in self.branches else 3 if _is_loop(node) else 1

    def _device_is_one(self, a: Apply, b: Apply) -> bool:
        return self.device_of(a) == self.device_of(b)

    def _earliest(self, node: Apply) -> int:
        """The first stage in which all inputs are known, on the host where the node needs that."""
        read, device = set(node.op.host_inputs), self.device_of(node)
        if device != HOST:  # libraries read some arrays on the host: a seed, lengths
            read.update(getattr(node.op, "host_values", ()))
        stages = [
            self._host(v) if i in read else self._device(v, device)
            for i, v in enumerate(node.inputs)
        ]
        return max(stages, default=0)

    def _stage_of_if(self, node: Apply) -> int:
        branches = self.branches[node]
        needed = [self._device(v) + 1 for v in branches.outer if v.owner is not None]
        return max([self._host(node.inputs[0]), *needed])

    def _set(self, node: Apply, stage: int, device: int, host: int) -> None:
        self.stage_of[node] = stage
        for v in node.outputs:
            self.device_stage[v], self.host_stage[v] = device, host

    def _device(self, v: Variable, device: Place | None = None) -> int:
        """The stage from which ``v`` can be read by a node on ``device``."""
        stage = self.device_stage.get(v, 0)
        maker = v.owner
        if maker not in self.stage_of or maker in self.host or device is None:
            return stage
        same = self.device_of(maker) == device
        return stage if same else max(stage, self.stage_of[maker] + 1)

    def _host(self, v: Variable) -> int:
        return self.host_stage.get(v, 0)

    def program(self) -> Program:
        """The regions by stage: in each its segments, then its lazy choices and loops."""
        last = max(self.stage_of.values(), default=0)
        regions: list[Region] = []
        for stage in range(last + 1):
            nodes = [n for n in self.order if self.stage_of[n] == stage]
            straight = [n for n in nodes if n not in self.branches and not _is_loop(n)]
            regions += self._segments(straight)
            regions += [self._if(n) for n in nodes if n in self.branches]
            loops = [n for n in nodes if _is_loop(n)]
            regions += [_loop(n, self.device_of, self.views.get(n, ())) for n in loops]
        inputs = _free(regions)
        return Program(tuple(regions), inputs, tuple(self.outputs))

    def _segments(self, nodes: list[Apply]) -> list[Segment]:
        """A segment for each device that has nodes; the first has the host nodes."""
        host = [n for n in nodes if n in self.on_call]
        there: dict[Place, list[Apply]] = {}
        for n in nodes:
            if n not in self.host:
                there.setdefault(self.device_of(n), []).append(n)
        if host and not there:
            there[HOST] = []
        found = [self._segment(group, device) for device, group in sorted(there.items())]
        return [replace(s, host=tuple(host) if i == 0 else ()) for i, s in enumerate(found)]

    def _segment(self, nodes: list[Apply], where: Place) -> Segment:
        device = overlapped(_filled_late(nodes)) if where == HOST else self._for_capture(nodes)
        made = {v for n in device for v in n.outputs}
        dims = dict.fromkeys(d for n in device for d in self.dims_of.get(n, ()))
        read = dict.fromkeys((*(v for n in device for v in n.inputs), *dims))
        sizes = toposort([v for v in read if v.owner in self.sizes], self._not_sizes())
        of_shapes = {v for n in sizes for v in n.outputs}
        sources = dict.fromkeys(
            v for n in sizes for v in n.inputs if v not in of_shapes and not isinstance(v, Constant)
        )
        skip = made | of_shapes
        entering = [
            v
            for v in dict.fromkeys(v for n in device for v in n.inputs)
            if v not in skip and not isinstance(v, Constant)
        ]
        dims = dict.fromkeys(d for d in dims if d not in of_shapes)
        inside, results = set(device), set(self.outputs)
        leaving = [
            v
            for n in device
            for v in n.outputs
            if v in results or any(user not in inside for user in self.users.get(v, ()))
        ]
        return Segment(
            (),
            tuple(device),
            tuple(entering),
            tuple(leaving),
            tuple(dims),
            tuple(sizes),
            tuple(sources),
            where,
            self.device_of.captures,
        )

    def _for_capture(self, nodes: list[Apply]) -> list[Apply]:
        """The nodes with copies to the device first and copies to the host last.

        Nodes that read bounds at each call are first, too. The nodes between can be captured as one
        CUDA graph. Casts of parameters to 16 bits are the first of them, so that horizontal fusion
        launches many at once.
        """
        early: set[Apply] = set()
        inside = set(nodes)
        for n in nodes:
            reads = any(
                not isinstance(n.inputs[i], Constant) and n.inputs[i].owner not in self.sizes
                for i in n.op.run_time_inputs
            )
            ready = all(v.owner not in inside or v.owner in early for v in n.inputs)
            if ready and (isinstance(n.op, GpuFromHost) or (reads and not n.op.ordered)):
                early.add(n)
        late = {n for n in nodes if _is_copy_out(n)} - early
        rounded = _casts_of_parameters(nodes) - early - late
        # The copies of a captured graph run before all else, so memory is planned in this order.
        copies = {n for n in early if isinstance(n.op, GpuFromHost)}
        rest = inside - early - rounded - late
        first, last = (copies, early - copies, rounded), [n for n in nodes if n in late]
        ordered = [n for part in first for n in nodes if n in part]
        return ordered + overlapped(_filled_late([n for n in nodes if n in rest])) + last

    def _not_sizes(self) -> set[Variable]:
        """Variables at which the search for sizes stops: those that depend on more than shapes."""
        read = (v for n in self.sizes for v in n.inputs)
        return {v for v in read if v.owner not in self.sizes} | self.available

    def _needed_on_call(self) -> set[Apply]:
        """Host nodes evaluated at each call: those that read data, and what they need."""
        wanted = {v for v in self.outputs}
        wanted.update(n.inputs[0] for n in self.branches)
        wanted.update(v for b in self.branches.values() for v in b.outer)
        wanted.update(v for n in self.order if _is_loop(n) for v in n.inputs)
        needed: set[Apply] = set()
        for n in reversed(self.order):
            if n in self.host and (n not in self.sizes or any(v in wanted for v in n.outputs)):
                needed.add(n)
                wanted.update(n.inputs)
        return needed

    def _find_users(self) -> dict[Variable, list[Apply]]:
        users: dict[Variable, list[Apply]] = {}
        for n in self.order:
            extra = self.branches[n].outer if n in self.branches else ()
            for v in (*inputs_of_loop(n, self.views.get(n, ())), *extra):
                users.setdefault(v, []).append(n)
        return users

    def _if(self, node: Apply) -> If:
        b = self.branches[node]
        count = len(node.outputs)
        yes, no = node.inputs[1 : 1 + count], node.inputs[1 + count :]
        outside = set(b.outer)
        with inherit(node.origin, NO_HINTS):  # sizes in a branch are expressed by its inputs
            then = _Scheduler(yes, ShapeResolver(outside), outside, self.device_of).program()
            orelse = _Scheduler(no, ShapeResolver(outside), outside, self.device_of).program()
        return If(node, node.inputs[0], then, orelse, yes, no, node.outputs)


class _Branches:
    """The nodes that only one branch of an ``ifelse`` needs, and the inputs of both branches."""

    def __init__(self, node: Apply, order: Sequence[Apply], outputs: Sequence[Variable]) -> None:
        count = len(node.outputs)
        yes, no = node.inputs[1 : 1 + count], node.inputs[1 + count :]
        elsewhere = _needed_without(node, order, outputs)
        in_yes, in_no = set(toposort(yes)), set(toposort(no))
        self.then = [n for n in order if n in in_yes and n not in in_no and n not in elsewhere]
        self.orelse = [n for n in order if n in in_no and n not in in_yes and n not in elsewhere]
        inside = {*self.then, *self.orelse}
        self.has_ordered = any(n.op.ordered for n in inside)
        read = [v for n in (*self.then, *self.orelse) for v in n.inputs] + [*yes, *no]
        self.outer = list(
            dict.fromkeys(v for v in read if v.owner not in inside and not isinstance(v, Constant))
        )


def _needed_without(node: Apply, order: Sequence[Apply], outputs: Sequence[Variable]) -> set[Apply]:
    """Nodes that are needed without the branches of ``node``."""
    needed: set[Apply] = set()
    wanted = {v.owner for v in outputs if v.owner is not None}
    for n in reversed(order):
        if n in wanted:
            needed.add(n)
            inputs = n.inputs[:1] if n is node else n.inputs
            wanted.update(v.owner for v in inputs if v.owner is not None)
    return needed


def _is_if(node: Apply) -> bool:
    return isinstance(node.op, IfElse)


def _is_copy_out(node: Apply) -> bool:
    return isinstance(node.op, HostFromGpu)


def _casts_of_parameters(nodes: Sequence[Apply]) -> set[Apply]:
    """Nodes that cast parameters, or views of them, to 16 bits, and the views."""
    views: set[Apply] = set()
    found: set[Apply] = set()
    for n in nodes:
        leaves = all(isinstance(v, Shared | Constant) or v.owner in views for v in n.inputs)
        if leaves and isinstance(n.op, DimShuffle):
            views.add(n)
        elif leaves and isinstance(n.op, Elemwise | FusedElemwise) and not n.op.unmergeable:
            found |= {n} if all(is_narrow_float(v.type.dtype) for v in n.outputs) else set()
    return found | views if found else found


def _filled_late(nodes: Sequence[Apply]) -> list[Apply]:
    """``nodes`` with those that make an array of scalars alone right before their first reader.

    What they fill takes no memory before: the zeros that a gradient is added to at the very end.
    """
    held: dict[Apply, None] = {}
    order: list[Apply] = []
    for node in nodes:
        if _fills(node):
            held[node] = None
            continue
        for v in node.inputs:
            if v.owner in held:
                del held[v.owner]
                order.append(v.owner)
        order.append(node)
    return order + list(held)


def _fills(node: Apply) -> bool:
    """Whether a node reads numbers alone and makes an array."""
    types = [v.type for v in (*node.inputs, *node.outputs)]
    if node.op.ordered or node.op.unmergeable or not all(isinstance(t, TensorType) for t in types):
        return False
    made = len(node.outputs) == 1 and node.outputs[0].type.ndim > 0
    return made and all(v.type.ndim == 0 for v in node.inputs)


def _is_loop(node: Apply) -> bool:
    return isinstance(node.op, Scan)


def _loop(node: Apply, device_of: DeviceOf, views: Sequence[Apply]) -> Loop:
    body: Any = node.op
    inside = schedule(body.inner.outputs, device_of.inside(body.inner))
    return Loop(node, with_carried(body, inside), device_of.captures, tuple(views))


def _host_nodes(
    order: Sequence[Apply], dims: Sequence[Variable], device_of: DeviceOf
) -> set[Apply]:
    """Nodes evaluated on the host: scalar work there that feeds shapes, bounds and conditions."""
    wanted: set[Variable] = set(dims)
    for n in order:
        wanted.update(n.inputs[i] for i in n.op.host_inputs)
        if _is_if(n):
            wanted.add(n.inputs[0])
    host: set[Apply] = set()
    for n in reversed(order):
        needed = any(v in wanted for v in n.outputs)
        if needed and _is_scalar_work(n) and device_of(n) == HOST:
            host.add(n)
            if not isinstance(n.op, ShapeI):
                wanted.update(n.inputs)
    return host


def _sizes(order: Sequence[Apply], host: set[Apply]) -> set[Apply]:
    """Host nodes that depend only on shapes."""
    found: set[Apply] = set()
    for n in order:
        if n in host and (
            isinstance(n.op, ShapeI)
            or (
                all(isinstance(v, Constant) or v.owner in found for v in n.inputs)
                and not n.op.unmergeable
            )
        ):
            found.add(n)
    return found


def _of_sizes(order: Sequence[Apply], available: set[Variable]) -> set[Apply]:
    """Sizes of variables that enter, and scalar arithmetic on them."""
    found: set[Apply] = set()
    for n in order:
        if isinstance(n.op, ShapeI):
            ready = n.inputs[0].owner is None or n.inputs[0] in available
        else:
            of_them = (isinstance(v, Constant) or v.owner in found for v in n.inputs)
            ready = bool(n.inputs) and all(of_them) and _is_scalar_work(n) and _is_pure(n)
        if ready:
            found.add(n)
    return found


def _is_pure(node: Apply) -> bool:
    return not (node.op.unmergeable or node.op.ordered or node.op.host_callback)


def _is_scalar_work(node: Apply) -> bool:
    if isinstance(node.op, ShapeI):
        return True
    values = (*node.inputs, *node.outputs)
    return not (_is_if(node) or _is_loop(node)) and all(
        isinstance(v.type, TensorType)
        and (v.type.ndim == 0 or (v.type.ndim == 1 and v.type.is_discrete))
        for v in values
    )


def _free(regions: Sequence[Region]) -> tuple[Variable, ...]:
    made: set[Variable] = set()
    free: dict[Variable, None] = {}
    for region in regions:
        if isinstance(region, Segment):
            made.update(v for n in (*region.host, *region.sizes, *region.nodes) for v in n.outputs)
            read = [v for n in (*region.host, *region.nodes) for v in n.inputs]
            read += region.sources
        elif isinstance(region, Loop):
            made.update(region.node.outputs)
            read = list(region.inputs)
        else:
            made.update(region.results)
            read = [region.condition, *region.then.inputs, *region.orelse.inputs]
        free.update(dict.fromkeys(v for v in read if not isinstance(v, Constant)))
    return tuple(v for v in free if v not in made)

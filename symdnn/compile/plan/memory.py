"""Memory planning of a segment: views, in-place results, liveness, offsets in the arena.

A pure function of a segment at concrete shapes: nothing is allocated here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from symdnn.compile.plan.operand_memory import place_operands
from symdnn.compile.plan.packing import Buffer, assign_offsets, largest_live_set
from symdnn.compile.plan.parts import is_there, joined_views, placed, reads_turned, split_views
from symdnn.compile.plan.result_block import add_block
from symdnn.compile.plan.result_layout import is_read_in_place, result_strides
from symdnn.compile.plan.specialise import Specialised
from symdnn.compile.plan.views import (
    View,
    bounds_known,
    byte_count,
    derived_view,
    extent,
    is_known,
    must_run,
    plain_strides,
)
from symdnn.graph.kernel import OperandMemory
from symdnn.graph.place import HOST
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.join import Join, Split
from symdnn.ops.control.scan_loop import MOST_BYTES_OF_STEPS_AT_ONCE
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.nn.channels_last import Reorder

__all__ = ["MemoryPlan", "plan_memory"]

#: Bytes that wait for their check in a guarded run: about what a card's second-level cache holds.
_MOST_WAITING_BYTES = 32 << 20
#: Bytes of an output for which a view costs less than a copy by a plan of compiled steps alone.
_LEAST_TURNED = 1 << 16


@dataclass
class MemoryPlan:
    """The memory of each value of a segment.

    ``arena_bytes`` is the size of the arena that it needs, ``live_bytes`` the most bytes of the
    arena that are live at once.
    """

    views: dict[Variable, View] = field(default_factory=dict)
    workspaces: dict[Apply, Buffer] = field(default_factory=dict)
    in_place: dict[Apply, dict[int, int]] = field(default_factory=dict)
    aliases: set[Apply] = field(default_factory=set)
    #: Joins and splits -> pieces in the whole's memory, by number; all: the node is an alias.
    parts: dict[Apply, frozenset[int]] = field(default_factory=dict)
    #: Values that a kernel makes between others, in the result of a join.
    beside: set[Variable] = field(default_factory=set)
    #: Value -> the output, later made in its place, in whose memory it is made.
    early: dict[Variable, Variable] = field(default_factory=dict)
    #: New value -> the shared variable into whose storage a kernel writes it.
    stored: dict[Variable, Variable] = field(default_factory=dict)
    #: New value -> the shared variable to which it is copied, behind all other work.
    copied: dict[Variable, Variable] = field(default_factory=dict)
    #: Value -> the state of a loop, an input, in whose memory it is made.
    carried: dict[Variable, Variable] = field(default_factory=dict)
    #: Memory of the outputs together, in which other values are before; None: each has its own.
    block: Variable | None = None
    #: Memory of libraries -> bytes of it; collective -> offsets of its operands there.
    registered: dict[OperandMemory, int] = field(default_factory=dict)
    slots: dict[Apply, tuple[OperandMemory, tuple[int, ...]]] = field(default_factory=dict)
    arena_bytes: int = 0
    live_bytes: int = 0
    #: Nodes behind which a guarded run on a device checks what was computed since the last one.
    check_after: set[Apply] = field(default_factory=set)
    #: The outputs of the segment, which are never in the arena.
    leaving: frozenset[Variable] = field(default=frozenset(), repr=False)

    def arena_buffers(self) -> list[Buffer]:
        """The buffers of values in the arena."""
        found = {id(v.buffer): v.buffer for v in self.views.values() if v.buffer.kind == "arena"}
        return list(found.values())

    def text(self) -> str:
        """The plan as printed lines."""
        lines = [f"arena {self.arena_bytes} bytes, largest live set {self.live_bytes}"]
        for v, view in self.views.items():
            b = view.buffer
            at = f" at {b.offset}" if b.kind in ("arena", "registered") else ""
            lines.append(f"  {v}: {b.kind}{at}, {b.nbytes} bytes, steps {b.first}..{b.last}")
        lines += [f"  {new} is made in {old}" for new, old in self.stored.items()]
        lines += [f"  {new} is copied to {old}" for new, old in self.copied.items()]
        lines += [f"  {new} is made in the state {old}" for new, old in self.carried.items()]
        return "\n".join(lines)


def plan_memory(spec: Specialised, *, in_place: bool = True) -> MemoryPlan:
    """Plan the memory of a segment at concrete shapes.

    Views share the memory of their source. Operands are overwritten at their last use where the op
    allows it (with ``in_place``). Other values and workspaces get offsets in the arena, the
    workspaces of ``spec.budgeted`` nodes after all others.
    """
    plan = MemoryPlan(leaving=frozenset(spec.segment.outputs))
    targets = UpdateTargets(spec)
    _place_inputs(spec, plan)
    last_use, places = dict(spec.segment.last_uses), placed(spec)
    plan.check_after = _keep_until_checked(spec, last_use)
    for step, node in enumerate(spec.segment.nodes):
        if not (
            _try_alias(spec, plan, node, targets) or _try_output_view(spec, plan, node, targets)
        ):
            _place_pieces(spec, plan, node, step, places)
            _give_memory(spec, plan, node, step, in_place, targets)
            _find_joined(spec, plan, node)
        _extend_lives(plan, node, step, last_use)
        if workspace := spec.choices[node].workspace_bytes:
            plan.workspaces[node] = Buffer(None, "workspace", workspace, step, step)
    plan.block = add_block(spec, plan.views)
    place_operands(spec, plan)
    workspaces = plan.workspaces
    fixed = [*plan.arena_buffers(), *(w for n, w in workspaces.items() if n not in spec.budgeted)]
    fitted = [w for n, w in workspaces.items() if n in spec.budgeted]
    plan.arena_bytes = assign_offsets(fixed, fitted)
    plan.live_bytes = largest_live_set([*fixed, *fitted])
    return plan


def _place_inputs(spec: Specialised, plan: MemoryPlan) -> None:
    for v in spec.segment.entering:
        shape = tuple(v.data.shape) if isinstance(v, Constant) else spec.shapes.get(v) or ()
        buffer = Buffer(v, "outside", byte_count(v, shape))
        plan.views[v] = View(buffer, shape, plain_strides(v, shape), static=is_known(spec, v))


def _keep_until_checked(spec: Specialised, last_use: dict[Variable, int]) -> set[Apply]:
    """Extend the lives of what a guarded run checks to the check; the nodes behind which one is."""
    guard = spec.segment.guard
    found: set[Apply] = set()
    if guard is None or spec.segment.place == HOST:
        return found  # a CPU checks each value at once
    waiting: list[Variable] = []
    nbytes = 0
    for step, node in enumerate(spec.segment.nodes):
        checked = guard.checked(node)
        waiting += checked
        nbytes += sum(byte_count(v, spec.shapes.get(v) or ()) for v in checked)
        if nbytes > _MOST_WAITING_BYTES or step == len(spec.segment.nodes) - 1:
            found.add(node)
            # One step longer, so that the node before the check writes nothing in their place.
            last_use.update({v: max(last_use.get(v, step), step + 1) for v in waiting})
            waiting, nbytes = [], 0
    return found


def _try_alias(spec: Specialised, plan: MemoryPlan, node: Apply, targets: UpdateTargets) -> bool:
    """Let the output of a view op share its input's memory; False where that is impossible.

    On a GPU the new value of a shared variable may be a view: it is copied at the end.
    """
    reorders = isinstance(node.op, Reorder) and spec.segment.place != HOST
    viewed = 0 if reorders else node.op.views.get(0)
    if len(node.outputs) != 1 or viewed is None:
        return False
    out, source = node.outputs[0], plan.views[node.inputs[viewed]]
    shape = spec.shapes[out]
    inside = source.buffer.kind == "arena" and spec.segment.place != HOST
    old = targets.copied_to(out) if inside else None
    if (out in plan.leaving and old is None) or shape is None or source.buffer.kind == "made":
        return False
    if must_run(node) or not bounds_known(spec, node):
        if spec.segment.place != HOST:
            return False  # library calls and captured graphs need a constant address
        # The view's address is computed at each call.
        unknown = tuple(-1 for _ in shape)
        view: View | None = View(source.buffer, shape, unknown, static=False, placed=False)
    elif isinstance(node.op, Reorder):
        view = _reorder_view(spec, out, source, node.op.order)
    else:
        view = derived_view(spec, node, source, shape)
    if view is None:
        return False
    plan.aliases.add(node)
    plan.views[out] = view
    if old is not None:
        plan.copied[out] = old
    return True


def _reorder_view(
    spec: Specialised, out: Variable, source: View, order: Sequence[int]
) -> View | None:
    """The view of a reorder's operand: a contiguous one, or one that all its readers accept."""
    shape = spec.shapes[out] or ()
    if any(s == -1 for s in source.strides) or 0 in shape:
        return None
    turned = replace(source, shape=shape, strides=tuple(source.strides[d] for d in order))
    if turned.contiguous:
        return replace(turned, strides=plain_strides(out, shape))
    arena = source.buffer.kind == "arena" and spec.segment.guard is None
    read = arena and reads_turned(spec, out)
    return turned if read and is_read_in_place(spec, out, turned) else None


def _try_output_view(
    spec: Specialised, plan: MemoryPlan, node: Apply, targets: UpdateTargets
) -> bool:
    """Let an output be a view of a whole value, which then is allocated outside of the arena.

    It saves a copy. On a CPU the output is an array with that value as its base, and a transpose
    of it has its order of axes, as in NumPy; on a GPU the output's memory is that of the value, and
    of its other views.
    """
    if len(node.outputs) != 1 or node.op.views.get(0) is None:
        return False
    out, source = node.outputs[0], node.inputs[node.op.views[0]]
    seen, shape = plan.views[source], spec.shapes[out]
    on_host = spec.segment.place == HOST
    if out not in plan.leaving or seen.buffer.kind != "arena" or _is_transferred(seen.buffer):
        return False
    if shape is None or out in targets.old_of or must_run(node) or not bounds_known(spec, node):
        return False
    sharing = [v for v, view in plan.views.items() if view.buffer is seen.buffer]
    if on_host and (seen.buffer.variable is not source or len(sharing) > 1):
        return False
    if not plan.copied.keys().isdisjoint(sharing):
        return False
    view = derived_view(spec, node, seen, shape)
    whole = byte_count(out, shape) == seen.buffer.nbytes
    turns = on_host and isinstance(node.op, DimShuffle) and seen.buffer.nbytes >= _LEAST_TURNED
    if view is None or view.offset or not whole or not (view.contiguous or turns):
        return False
    seen.buffer.kind = "outside"
    if not on_host:
        seen.buffer.variable = out
    for v in sharing:
        plan.views[v] = replace(plan.views[v], static=False)
    plan.views[out] = replace(view, static=False)
    plan.aliases.add(node)
    return True


def _place_pieces(
    spec: Specialised,
    plan: MemoryPlan,
    node: Apply,
    step: int,
    places: Mapping[Variable, View],
) -> None:
    """Place results where a join or reorder would copy them, or in what is split."""
    if isinstance(node.op, Split):
        views = split_views(spec, node, plan.views[node.inputs[0]])
        _note_parts(plan, node, views, len(node.outputs))
        plan.views.update({node.outputs[i]: view for i, view in views.items()})
    for v in node.outputs:
        if v in places and v not in plan.views:
            plan.views[v] = view = places[v]
            plan.beside.add(v)
            view.buffer.first = step if view.buffer.first < 0 else view.buffer.first
            view.buffer.last = max(view.buffer.last, step)


def _find_joined(spec: Specialised, plan: MemoryPlan, node: Apply) -> None:
    """Note the operands of a join that lie where it would copy them."""
    if not isinstance(node.op, Join) or spec.segment.place == HOST:
        return
    whole = plan.views[node.outputs[0]]
    if whole.buffer.kind not in ("arena", "outside") or 0 in whole.shape:
        return
    pairs = zip(node.inputs, joined_views(spec, node, whole))
    found = [i for i, (v, part) in enumerate(pairs) if is_there(plan.views[v], part)]
    _note_parts(plan, node, found, len(node.inputs))


def _note_parts(plan: MemoryPlan, node: Apply, found: Collection[int], count: int) -> None:
    if found:
        plan.parts[node] = frozenset(found)
    if len(found) == count:
        plan.aliases.add(node)


def _give_memory(
    spec: Specialised,
    plan: MemoryPlan,
    node: Apply,
    step: int,
    in_place: bool,
    targets: UpdateTargets,
) -> None:
    for i, v in enumerate(node.outputs):
        if v in plan.views:
            continue  # it is part of another value
        shape = spec.shapes[v]
        if shape is None or not isinstance(v.type, TensorType):
            plan.views[v] = View(Buffer(v, "made", 0, step, step), (), (), static=False)
            continue
        if in_place and (old := targets.written_into(v, node, step, plan)) is not None:
            plan.stored[v] = old
            plan.views[v] = View(
                plan.views[old].buffer, shape, plain_strides(v, shape), static=False
            )
            continue
        if (old := targets.copied_to(v)) is not None:
            plan.copied[v] = old
        leaves = v in plan.leaving and old is None
        better = None if leaves else result_strides(spec, plan.views, node, i, shape)
        strides = plain_strides(v, shape) if better is None else better
        state = _state_taken(spec, plan, node, i, step) if in_place else None
        if state is not None:
            plan.in_place.setdefault(node, {})[i] = state
            source = plan.views[node.inputs[state]]
            old = source.buffer.variable
            assert old is not None, "an input has a buffer of its own"
            plan.carried[v] = old
            plan.views[v] = View(source.buffer, shape, strides, static=False)
            continue
        taken = _overwritten(spec, plan, node, i, step, strides) if in_place else None
        if taken is not None and (not leaves or _leaves_with(spec, plan, node.inputs[taken], v)):
            plan.in_place.setdefault(node, {})[i] = taken
            source = plan.views[node.inputs[taken]]
            plan.views[v] = View(source.buffer, shape, strides, source.offset, not leaves)
            continue
        nbytes = byte_count(v, shape) if better is None else extent(shape, better)
        buffer = Buffer(v, "outside" if leaves else "arena", nbytes, step, step)
        plan.views[v] = View(buffer, shape, strides, static=not leaves)


class UpdateTargets:
    """Which new values of a segment may be written to their shared variables, and how.

    All expressions of a call read old values, and a call that fails changes nothing. So a storage
    is written only behind the last step that reads its old value, and behind the last step that can
    fail. Copies to the host cannot fail, and some kernels cannot (on a GPU those that test the
    error word first).
    """

    def __init__(self, spec: Specialised) -> None:
        self.spec, nodes = spec, spec.segment.nodes
        self.old_of = dict(spec.segment.updates)
        self.last_read = spec.segment.last_reads if self.old_of else {}
        self.end = len(nodes)
        while self.end > 0 and isinstance(nodes[self.end - 1].op, HostFromGpu):
            self.end -= 1
        self.safe_from = self.end
        if spec.segment.guard is not None:
            return  # the check of a new value may fail
        while self.safe_from > 0 and self._cannot_fail(nodes[self.safe_from - 1]):
            self.safe_from -= 1

    def _cannot_fail(self, node: Apply) -> bool:
        """Whether the kernel never fails, and on a GPU writes nothing after an earlier error."""
        return self.spec.choices[node].kernel.never_fails(self.spec.call(node))

    def _writes(self, node: Apply) -> bool:
        """Whether the node's kernel may write a shared variable."""
        return self.spec.choices[node].kernel.writes_updates(self.spec.call(node))

    def written_into(
        self, v: Variable, node: Apply, step: int, plan: MemoryPlan
    ) -> Variable | None:
        """The shared variable into whose storage the node may write ``v``, if any."""
        old = self.old_of.get(v)
        if old is None or step < self.safe_from or not self._fits(v, old):
            return None
        if self.last_read.get(old, -1) > step or not self._writes(node):
            return None
        buffer, shape = plan.views[old].buffer, self.spec.shapes[v]
        # An operand in the same storage must have the result's strides and offset, and be one that
        # the op may overwrite, if it names any.
        allowed = node.op.may_overwrite.get(node.outputs.index(v), range(len(node.inputs)))
        seen = ((i, plan.views[x]) for i, x in enumerate(node.inputs))
        alike = all(
            i in allowed
            and x.shape == shape
            and x.offset == 0
            and x.strides == plain_strides(v, x.shape)
            for i, x in seen
            if x.buffer is buffer
        )
        return old if alike else None

    def copied_to(self, v: Variable) -> Variable | None:
        """The shared variable to which the segment copies ``v`` behind all other work, if any."""
        old = self.old_of.get(v)
        if old is None or not self._fits(v, old) or self.last_read.get(old, -1) >= self.end:
            return None
        return old

    def _fits(self, v: Variable, old: Variable) -> bool:
        shapes = self.spec.shapes
        return shapes.get(v) is not None and (shapes[v], v.type.dtype) == (
            shapes.get(old),
            old.type.dtype,
        )


def _overwritten(
    spec: Specialised,
    plan: MemoryPlan,
    node: Apply,
    output: int,
    step: int,
    strides: tuple[int, ...],
) -> int | None:
    """The input at its last use whose buffer may take this output, with these strides, if any."""
    v = node.outputs[output]
    taken = set(plan.in_place.get(node, {}).values())
    for k in node.op.may_overwrite.get(output, ()):
        if k >= len(node.inputs) or k in taken:
            continue
        source = node.inputs[k]
        view = plan.views[source]
        fits = (
            view.buffer.kind == "arena"
            and not _is_transferred(view.buffer)
            and view.static
            and view.strides == strides
            and source.type.dtype == v.type.dtype
            and view.shape == spec.shapes[v]
        )
        if fits and _is_last_use(plan, node, source, step):
            return k
    return None


def _state_taken(
    spec: Specialised, plan: MemoryPlan, node: Apply, output: int, step: int
) -> int | None:
    """The input in the memory of a loop's state that this output may overwrite, if any.

    Nothing reads the old value later. Small states are left: many of their steps run at once.
    """
    if not spec.segment.carried:
        return None
    v, shape = node.outputs[output], spec.shapes[node.outputs[output]]
    new_of = {old: new for new, old in spec.segment.carried}
    taken = set(plan.in_place.get(node, {}).values())
    for k in node.op.may_overwrite.get(output, ()):
        if k >= len(node.inputs) or k in taken:
            continue
        view = plan.views[node.inputs[k]]
        old = view.buffer.variable
        if old not in new_of or (v in plan.leaving and new_of[old] is not v):
            continue
        same = (view.shape, view.offset, node.inputs[k].type.dtype) == (shape, 0, v.type.dtype)
        large = view.buffer.nbytes > MOST_BYTES_OF_STEPS_AT_ONCE
        plain = view.strides == plain_strides(v, view.shape)
        unread = spec.segment.last_reads.get(old, -1) <= step
        if same and plain and large and unread and _is_last_use(plan, node, node.inputs[k], step):
            return k
    return None


def _leaves_with(spec: Specialised, plan: MemoryPlan, source: Variable, out: Variable) -> bool:
    """Have a value, and all that are in its memory, made in that of the output which overwrites it.

    Only on a CPU, and where each of them has the whole memory in its order; returns whether that is
    so.
    """
    seen = plan.views[source]
    sharing = [v for v, view in plan.views.items() if view.buffer is seen.buffer]
    whole = seen.contiguous and all(
        (view.contiguous, view.offset, byte_count(v, view.shape), v.type.dtype)
        == (True, 0, seen.buffer.nbytes, out.type.dtype)
        for v in sharing
        if (view := plan.views[v])
    )
    if spec.segment.place != HOST or not whole or any(v in plan.copied for v in sharing):
        return False
    seen.buffer.kind, seen.buffer.variable = "outside", out
    for v in sharing:
        plan.early[v] = out
        plan.views[v] = replace(plan.views[v], static=False)
    return True


def _is_transferred(buffer: Buffer) -> bool:
    """Whether it is a copy of an argument, which may be the caller's own array on the device."""
    maker = buffer.variable.owner if buffer.variable is not None else None
    return maker is not None and isinstance(maker.op, GpuFromHost)


def _is_last_use(plan: MemoryPlan, node: Apply, source: Variable, step: int) -> bool:
    """Whether this is the last use of ``source``'s buffer, and the node reads it only once."""
    buffer = plan.views[source].buffer
    if sum(1 for v in node.inputs if plan.views[v].buffer is buffer) > 1:
        return False
    return buffer.last <= step  # the last use of all views of the buffer


def _extend_lives(
    plan: MemoryPlan, node: Apply, step: int, last_use: Mapping[Variable, int]
) -> None:
    for v in node.outputs:
        buffer = plan.views[v].buffer
        buffer.last = max(buffer.last, last_use.get(v, step))

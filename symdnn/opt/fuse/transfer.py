"""Where each node runs, and the copies between host and device that follow from it.

A node runs on the device if the kernel table has a kernel for its op that does not refuse it.
Integer scalars that feed shapes, bounds and counters stay on the host, and so does what only they
are computed from. Values enter and leave the device at most once each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from symdnn.config import config
from symdnn.errors import NotLowered
from symdnn.graph.fgraph import Client, FunctionGraph
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.kernel import Call, kernels_for, sized
from symdnn.graph.place import HOST, Place, check_one_gpu
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType, TensorType, Type
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.control.control import IfElse
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.lowered import Lowered
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.vendor.transfer import GpuFromHost, HostFromGpu, Transfer
from symdnn.opt.lower.lower_cudnn import not_lowered
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite

__all__ = ["RULES", "Places", "check_wishes", "kernel_reason", "places_of"]


def kernel_reason(node: Apply, kind: str) -> str | None:
    """Why no kernel of this kind of target takes ``node``; None when one does."""
    inputs, outputs = (sized(*[v.type for v in vs]) for vs in (node.inputs, node.outputs))
    call = Call(node.op, inputs, outputs, node.hints)
    reasons = []
    for kernel in kernels_for(type(node.op), kind):
        reason = kernel.refuses(call)
        if reason is None:
            return None
        reasons.append(f"{kernel.name}: {reason}")
    return "; ".join(reasons) or f"there is no {kind} kernel for {type(node.op).__name__}"


class Places:
    """The place of each node of a graph, and of each value.

    ``takes(node)`` says whether the device has a kernel for a node. In the body of a loop
    (``inner``) what enters and leaves is on the device already.
    """

    def __init__(
        self,
        fgraph: FunctionGraph,
        target: Target,
        takes: Callable[[Apply], bool] | None = None,
        inner: bool = False,
    ) -> None:
        self.fgraph, self.target, self.inner = fgraph, target, inner
        self.takes = takes or (lambda n: kernel_reason(n, target.kind) is None)
        self.order = fgraph.toposort()
        self.read_on_host = self._read_on_host()
        self.forced: set[Apply] = set()
        self.node: dict[Apply, Place] = {}
        if target.place != HOST:  # else there is one place
            self._settle()

    def __call__(self, node: Apply) -> Place:
        """The place of a node; what the graph does not have is host work on sizes."""
        return self.node.get(node, HOST)

    # -- nodes --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Place all nodes; a kernel's own bytes keep those who share them in one place."""
        while True:
            self.node = {}
            for n in self.order:
                self.node[n] = self._place(n)
            apart = {
                n
                for n in self.order
                for v in n.inputs
                if isinstance(v.type, OpaqueType) and v.owner is not None
                and self.node[v.owner] != self.node[n]
            }  # fmt: skip
            makers = {v.owner for n in apart for v in n.inputs if isinstance(v.type, OpaqueType)}
            new = (apart | {m for m in makers if m is not None}) - self.forced
            if not new:
                return
            self.forced |= new

    def _place(self, node: Apply) -> Place:
        device = self.target.place
        if isinstance(node.op, Transfer) or is_control(node):
            return device
        if isinstance(node.op, ShapeI) or node in self.forced or node in self.read_on_host:
            return HOST
        if self._scalars_of_host(node) or not self.takes(node):
            return HOST
        return device

    def _scalars_of_host(self, node: Apply) -> bool:
        """Arithmetic on scalars that are on the host."""
        small = all(
            isinstance(v.type, TensorType)
            and (v.type.ndim == 0 or (v.type.ndim == 1 and v.type.is_discrete))
            for v in node.outputs
        )
        return (
            small
            and bool(node.inputs)
            and all(
                isinstance(v.type, TensorType) and v.type.ndim == 0 and self.home(v) in (None, HOST)
                for v in node.inputs
            )
            and not all(isinstance(v, Constant) for v in node.inputs)
        )

    def _read_on_host(self) -> set[Apply]:
        """Cheap integer work that feeds shapes, bounds and conditions."""
        wanted: set[Variable] = set()
        found: set[Apply] = set()
        for n in reversed(self.order):
            if any(v in wanted for v in n.outputs) and _cheap(n):
                found.add(n)
                wanted.update(n.inputs)
            wanted.update(n.inputs[i] for i in host_values(n))
        return found

    # -- values -------------------------------------------------------------------------------

    def home(self, v: Variable) -> Place | None:
        """Where a value is made; None for a constant, which is everywhere."""
        if isinstance(v, Constant):
            return None
        if v.owner is None:
            kept = self.inner or isinstance(v, Shared)
            return self._home_of_type(v.type) if kept else HOST
        if isinstance(v.owner.op, HostFromGpu):
            return HOST
        if is_control(v.owner):
            return self._home_of_type(v.type)
        return self(v.owner)

    def _home_of_type(self, type_: Type) -> Place:
        on_device = not isinstance(type_, TensorType) or self.target.keeps(type_)
        return self.target.place if on_device else HOST

    def wanted(self, reader: Client, v: Variable) -> Place | None:
        """Where a reader needs ``v``; None where it asks only for the shape."""
        node, index = reader
        if node is None:
            if index in self.fgraph.updates:
                return self._home_of_type(self.fgraph.updates[index].type)
            return self._home_of_type(v.type) if self.inner or index in self.fgraph.lent else HOST
        if isinstance(node.op, ShapeI):
            return None
        if index in host_values(node):
            return HOST
        if isinstance(node.op, Transfer):
            return HOST if isinstance(node.op, GpuFromHost) else self.target.place
        return self._home_of_type(v.type) if is_control(node) else self(node)

    def readers_elsewhere(self) -> Mapping[Variable, list[Client]]:
        """For each value, who needs it in the other place."""
        found: dict[Variable, list[Client]] = {}
        for v in self.fgraph.variables:
            home = self.home(v)
            if home is None or not isinstance(v.type, TensorType):
                continue
            readers = [r for r in self.fgraph.users(v) if self.wanted(r, v) not in (None, home)]
            if readers:
                found[v] = readers
        return found

    def without_kernel(self) -> dict[Apply, str]:
        """Nodes on the host because the device has no kernel for them, each with the reason."""
        return {
            n: kernel_reason(n, self.target.kind) or "it shares bytes with a node on the host"
            for n in self.order
            if self(n) == HOST
            and not isinstance(n.op, ShapeI)
            and n not in self.read_on_host
            and not self._scalars_of_host(n)
        }


def is_control(node: Apply) -> bool:
    """A lazy choice or a loop: it runs no kernel of its own."""
    return isinstance(node.op, IfElse | Scan)


def host_values(node: Apply) -> Iterable[int]:
    """Inputs whose values are read on the host."""
    if isinstance(node.op, IfElse):
        return (0,)
    return node.op.host_values if isinstance(node.op, Lowered) else node.op.host_inputs


def _cheap(node: Apply) -> bool:
    if isinstance(node.op, ShapeI):
        return False  # it reads no data
    values = (*node.inputs, *node.outputs)
    return (
        not is_control(node)
        and not isinstance(node.op, Transfer)
        and all(
            isinstance(v.type, TensorType)
            and (v.type.ndim == 0 or (v.type.ndim == 1 and v.type.is_discrete))
            for v in values
        )
    )


def places_of(fgraph: FunctionGraph, target: Target, inner: bool = False) -> Places:
    """The places of a graph that has its transfers: what a schedule asks."""
    return Places(fgraph, target, inner=inner)


def check_wishes(fgraph: FunctionGraph, target: Target) -> None:
    """Refuse transfers to or from another GPU than the target's, before they are rewritten.

    Raises :class:`~symdnn.errors.OptionError` that names both.
    """
    pending = [*fgraph.nodes]
    for node in pending:
        if isinstance(node.op, Transfer) and node.op.place is not None:
            check_one_gpu(target.place, node.op.place, f"{node.op}, made at {node.origin},")
        pending += node.op.inner.nodes if isinstance(node.op, InnerGraphOp) else ()


# -- rewrites -------------------------------------------------------------------------------------


@node_rewrite(
    Transfer, phase="canonicalize", tags=("fast_compile",), name="local_cut_gpu_transfers"
)
def wishes_are_dropped(node: Apply, context: Context) -> Variable:
    """A transfer written by hand is its input: transfers are placed at the end."""
    return node.inputs[0]


@graph_rewrite("transfer", tags=("always",), name="place_transfers")
def place_transfers(context: Context) -> None:
    """One copy for each value that is needed where it is not made."""
    if context.target.place == HOST:
        return
    places = Places(context.fgraph, context.target, inner=context.inner)
    for v, readers in places.readers_elsewhere().items():
        gpu = context.target.place
        op: Any = GpuFromHost(gpu) if places.home(v) == HOST else HostFromGpu(gpu)
        context.fgraph.redirect(readers, v, op(v), "place_transfers")
    if not context.inner:
        check_lowered(places.without_kernel(), not_lowered(context.fgraph, context.target))


def check_lowered(found: Mapping[Apply, str], by_library: Mapping[Apply, str]) -> None:
    """Do what the flags ``assert_lowered`` and ``assert_no_cpu_op`` say about nodes on the host.

    ``found`` has these nodes with the reason, ``by_library`` why cuDNN did not get them.
    """
    actions = {str(config.assert_lowered), str(config.assert_no_cpu_op)} - {"ignore"}
    if not found or not actions:
        return
    lines = [
        f"  {n.op}, made at {n.origin}: "
        + "; ".join([why, *([by_library[n]] if n in by_library else [])])
        for n, why in found.items()
    ]
    text = "\n".join([f"{len(found)} node(s) run on the host:", *lines])
    if actions != {"warn"}:
        raise NotLowered(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)


RULES = (wishes_are_dropped, place_transfers)

"""Places each node on host or device, and adds the transfers that follow from it.

A node runs on the device if the target has a kernel that does not refuse it. Integer scalars that
feed shapes, bounds and counters are computed on the host, and so are the values that only they
need, but what several ranks compute together, for which the host may have no engine. Each value is
copied to the device or to the host at most once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from symdnn.config import config
from symdnn.errors import NotLowered
from symdnn.graph.fgraph import Client, FunctionGraph
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.place import HOST, Place, check_one_gpu
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType, TensorType, Type
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.collective.base import Collective
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.lowered.positions import (
    counts_of,
    host_values,
    is_control,
    positions,
    scalar_work_for,
)
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu, Transfer
from symdnn.rewriting.rewrite import Capabilities, Context, graph_rewrite, node_rewrite


class Places:
    """The place of each node of a graph, and of each value.

    ``capabilities`` say whether the device has a kernel for a node; without them it has one for
    each. In the body of a loop (``inner``) inputs and outputs are on the device already.
    """

    def __init__(
        self,
        fgraph: FunctionGraph,
        target: Target,
        capabilities: Capabilities | None = None,
        inner: bool = False,
    ) -> None:
        self.fgraph, self.target, self.inner = fgraph, target, inner
        self.capabilities = capabilities
        self.order = fgraph.toposort()
        #: Work for shapes, bounds and conditions, and for the positions of loops.
        self.counts = {n: counts_of(n) for n in self.order}
        self.read_on_host = scalar_work_for(self.order, host_values)
        self.counted = scalar_work_for(self.order, self.counts.__getitem__)
        #: Inputs of a loop's body that only the host reads.
        self.positions = positions(fgraph.inputs, fgraph.outputs, self.order) if inner else set()
        self.sizes = _sizes(self.order)
        self.forced: set[Apply] = set()
        self.node: dict[Apply, Place] = {}
        if target.place != HOST:  # otherwise all nodes are on the host
            self._place_all()

    def __call__(self, node: Apply) -> Place:
        """The place of a node. Nodes that are not in the graph compute sizes, on the host."""
        return self.node.get(node, HOST)

    # -- nodes --------------------------------------------------------------------------------

    def _place_all(self) -> None:
        """Place all nodes. Nodes that share an opaque value (a reserve) have one place."""
        of_data: set[Apply] = set()
        while True:
            self.node = {}
            for n in self.order:
                self.node[n] = self._place(n)
            for n in reversed(self.order):
                if self._is_scalar_for_device(n):
                    self.node[n] = self.target.place
            if found := {n for n in self.read_on_host if self._is_of_data(n)}:
                of_data |= found
                self.read_on_host = scalar_work_for(self.order, host_values, of_data)
                continue
            separated = {
                n
                for n in self.order
                for v in n.inputs
                if isinstance(v.type, OpaqueType) and v.owner is not None
                and self.node[v.owner] != self.node[n]
            }  # fmt: skip
            makers = {
                v.owner for n in separated for v in n.inputs if isinstance(v.type, OpaqueType)
            }
            new = (separated | {m for m in makers if m is not None}) - self.forced
            if not new:
                return
            self.forced |= new

    def _place(self, node: Apply) -> Place:
        device = self.target.place
        if isinstance(node.op, Transfer) or is_control(node):
            return device
        if isinstance(node.op, Collective) and self._kernel_reason(node) is None:
            return device  # of scalars, too: the host may have no engine
        if isinstance(node.op, ShapeI) or node in self.forced or node in self.read_on_host:
            return HOST
        if self._is_host_scalar(node) or self._kernel_reason(node) is not None:
            return HOST
        if node in self.counted and all(self.home(v) in (None, HOST) for v in node.inputs):
            return HOST
        return device

    def _kernel_reason(self, node: Apply) -> str | None:
        """The reason why the device has no kernel for a node; None where it has one."""
        if self.capabilities is None:
            return None
        return self.capabilities.kernel_reason(node, self.target.kind)

    def _is_of_data(self, node: Apply) -> bool:
        """Whether a number for the host comes from a vector that is long: a mask, or one that the
        device computes. An element of it is read on the host, several ones in one copy.
        """
        if self.inner or isinstance(node.op, Subtensor):
            return False
        vectors = [v for v in node.inputs if v.type.ndim and not isinstance(v, Constant)]
        return any(v.type.dtype == "bool" or self.home(v) == self.target.place for v in vectors)

    def _is_host_scalar(self, node: Apply) -> bool:
        """Whether a node is arithmetic on scalars that are on the host.

        Its results are numbers, or vectors of whole ones, as short as the graph says.
        """
        small = not isinstance(node.op, Collective) and all(
            isinstance(v.type, TensorType)
            and (v.type.ndim == 0 or (v.type.ndim == 1 and v.type.is_discrete))
            and None not in v.type.shape
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

    def _is_scalar_for_device(self, node: Apply) -> bool:
        """Whether the device alone reads arithmetic on scalars of the host, as a rate by a factor.

        Its kernels take the scalars; a call has no work on the host. What follows from sizes alone
        is computed once for each plan. Nodes behind it are placed.
        """
        if self.inner or self(node) != HOST or not self._is_host_scalar(node):
            return False
        if all(isinstance(v, Constant) or v in self.sizes for v in node.inputs):
            return False
        if node in self.read_on_host or node in self.counted or self._kernel_reason(node):
            return False
        readers = [self.needed_at(r, v) for v in node.outputs for r in self.fgraph.users(v)]
        return bool(readers) and all(place == self.target.place for place in readers)

    # -- values -------------------------------------------------------------------------------

    def home(self, v: Variable) -> Place | None:
        """The place where a value is computed; None for a constant, which is on both."""
        if isinstance(v, Constant):
            return None
        if v.owner is None and v in self.positions:
            return HOST
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

    def needed_at(self, reader: Client, v: Variable) -> Place | None:
        """The place where a reader needs ``v``; None for any, or where it reads only the shape."""
        node, index = reader
        if node is None:
            if index in self.fgraph.updates:
                return self._home_of_type(self.fgraph.updates[index].type)
            return self._home_of_type(v.type) if self.inner or index in self.fgraph.lent else HOST
        if isinstance(node.op, ShapeI):
            return None
        if index in host_values(node):
            return HOST
        if index in self.counts.get(node, ()):
            return None
        if isinstance(node.op, Transfer):
            return HOST if isinstance(node.op, GpuFromHost) else self.target.place
        return self._home_of_type(v.type) if is_control(node) else self(node)

    def readers_elsewhere(self) -> Mapping[Variable, list[Client]]:
        """For each value its readers in the other place; values without such are left out."""
        found: dict[Variable, list[Client]] = {}
        for v in self.fgraph.variables:
            home = self.home(v)
            if home is None or not isinstance(v.type, TensorType):
                continue
            readers = [r for r in self.fgraph.users(v) if self.needed_at(r, v) not in (None, home)]
            if readers:
                found[v] = readers
        return found

    def without_kernel(self) -> dict[Apply, str]:
        """Nodes on the host because the device has no kernel for them, each with the reason."""
        reasons = {
            n: self._kernel_reason(n)
            or "it shares bytes with a node on the host" * (n in self.forced)
            for n in self.order
            if self(n) == HOST
            and not isinstance(n.op, ShapeI)
            and n not in self.read_on_host
            and not self._is_host_scalar(n)
        }
        return {n: reason for n, reason in reasons.items() if reason}


def _sizes(order: Sequence[Apply]) -> set[Variable]:
    """Sizes, and numbers that follow from sizes alone."""
    found: set[Variable] = set()
    for n in order:
        known = [v in found for v in n.inputs if not isinstance(v, Constant)]
        if isinstance(n.op, ShapeI) or (known and all(known)):
            found.update(n.outputs)
    return found


def check_transfer_places(fgraph: FunctionGraph, target: Target) -> None:
    """Refuse user-written transfers to or from another GPU than the target's.

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
    """A transfer in the user's program is dropped: the phase ``transfer`` places them."""
    return node.inputs[0]


@graph_rewrite("transfer", tags=("always",), name="place_transfers")
def place_transfers(context: Context) -> None:
    """One transfer for each value that is read in the other place."""
    if context.target.place == HOST:
        return
    capabilities = context.capabilities
    places = Places(context.fgraph, context.target, capabilities, context.inner)
    for v, readers in places.readers_elsewhere().items():
        gpu = context.target.place
        op: Any = GpuFromHost(gpu) if places.home(v) == HOST else HostFromGpu(gpu)
        context.fgraph.redirect(readers, v, op(v), "place_transfers")
    if not context.inner:
        by_library = capabilities.not_lowered(context.fgraph, context.target, lambda rule: True)
        check_lowered(places.without_kernel(), by_library)


def check_lowered(found: Mapping[Apply, str], by_library: Mapping[Apply, str]) -> None:
    """Act on nodes on the host as the flags ``assert_lowered`` and ``assert_no_cpu_op`` say.

    ``found`` has these nodes with the reason, ``by_library`` the reasons why no library runs them.
    Raises :class:`~symdnn.errors.NotLowered`, or warns.
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

"""Graphs of cuDNN's frontend, of any operations: described, planned and launched.

A family of kernels says what it computes in a :class:`GraphForm`. The form names the arguments of a
launch and the plans that it wants, and describes tensors and operations to a :class:`GraphBuilder`.
Plans, their cache and launches are the same for all forms.

Every pointer has to be a multiple of 16 bytes, which cuDNN's engines count on.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn.graph_plan import (
    BuiltPlan,
    GraphPlan,
    Limits,
    Planning,
    errors,
    one_line,
    replay,
)

__all__ = [
    "ALIGNMENT", "TYPES", "GraphBuilder", "GraphForm", "GraphLaunch", "launch", "new_graph",
    "plans",
]  # fmt: skip

#: Bytes of which every pointer has to be a multiple: what the frontend tells cuDNN of each tensor.
ALIGNMENT = 16

#: cuDNN's types of data by symdnn's dtypes.
TYPES = {
    "float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "bool": "BOOLEAN",
}  # fmt: skip

#: As many plans as cuDNN has.
ALL = 1 << 20

#: Plannings that are kept, with what they built: calls hold the lock of their device's context.
_MOST_PLANNINGS = 2
_recent: dict[tuple[GraphForm, int], Planning] = {}


class GraphForm(ABC):
    """What a graph computes. Subclasses are frozen dataclasses: a form is the key of its plans.

    Its fields are all that the graph, and the plans that are wanted of it, depend on.
    """

    #: What the frontend calls the graph in its logs.
    name: str = "symdnn"

    @property
    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Names of the arrays that a launch reads and writes: keys of its pointers."""

    @property
    def numbers(self) -> Mapping[str, float]:
        """Numbers that a launch reads on the host, of the dtype :attr:`between`, by their names."""
        return {}

    @property
    def between(self) -> str:
        """The dtype in which is computed, and that of values that never reach memory."""
        return "float32"

    @property
    def limits(self) -> Limits:
        """Which plans are wanted."""
        return Limits()

    def refusal(self) -> str:
        """What is known to be impossible before anyone is asked; ``""`` where nothing is."""
        return ""

    @abstractmethod
    def describe(self, graph: GraphBuilder) -> None:
        """Add tensors and operations to ``graph``. Each role is an input or an output."""


class GraphBuilder:
    """A graph of the frontend while a form describes it.

    Shapes and strides are in elements, in the order of dimensions that cuDNN documents for the
    operation; strides say the layout. Without a handle the graph is checked as far as that goes
    without a device, for a GPU of a ``capability`` where rules of the frontend ask for one.
    """

    def __init__(
        self, form: GraphForm, handle: int | None, capability: tuple[int, int] | None = None
    ) -> None:
        where = {} if handle is None else {"handle": handle}
        if capability is not None:
            where["sm_version"] = 10 * capability[0] + capability[1]
        between = self.type(form.between)
        self._form, self._handle = form, handle
        self._graph = frontend.graph_class()(
            name=form.name, io_data_type=between, intermediate_data_type=between,
            compute_data_type=between, **where,
        )  # fmt: skip

    def type(self, dtype: str) -> Any:
        """cuDNN's constant of a dtype."""
        return getattr(frontend.compiled().data_type, TYPES[dtype])

    def input(self, role: str, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        """The tensor of an array that a launch reads."""
        return self._graph.tensor(
            dim=list(shape), stride=list(strides), data_type=self.type(dtype),
            uid=_uids(self._form)[role], name=role,
        )  # fmt: skip

    def number(self, name: str, ndim: int) -> Any:
        """One of the form's numbers, with so many dimensions."""
        ones = [1] * ndim
        return self._graph.tensor(
            dim=ones, stride=ones, data_type=self.type(self._form.between),
            is_pass_by_value=True, uid=_uids(self._form)[name], name=name,
        )  # fmt: skip

    def add(self, operation: str, **settings: Any) -> Any:
        """The result (or results) of an operation, by the frontend's name and keywords of it.

        Raises :class:`~symdnn.errors.CudnnError` where this frontend has no such operation.
        """
        found = getattr(self._graph, operation, None)
        if found is None:
            raise CudnnError(
                f"the frontend {frontend.version()} has no operation {operation!r}; update it "
                f"(pip install -U {frontend.PACKAGE})"
            )
        return found(**settings)

    def virtual(
        self, value: Any, shape: Sequence[int], strides: Sequence[int], dtype: str | None = None
    ) -> Any:
        """``value``, a result that never reaches memory, with shape and strides said.

        Left to itself the frontend gives every result channels last.
        """
        value.set_dim(list(shape)).set_stride(list(strides))
        return value.set_data_type(self.type(dtype or self._form.between))

    def output(
        self, value: Any, role: str, shape: Sequence[int], strides: Sequence[int], dtype: str
    ) -> None:
        """Let a launch write ``value`` to the array of this role."""
        value.set_output(True).set_data_type(self.type(dtype)).set_uid(_uids(self._form)[role])
        value.set_dim(list(shape)).set_stride(list(strides))

    def finished(self) -> Any:
        """The frontend's graph, checked, and by cuDNN too where there is a handle."""
        self._graph.validate()
        if self._handle is not None:
            self._graph.build_operation_graph()
        return self._graph


def _uids(form: GraphForm) -> dict[str, int]:
    """Numbers of the graph's arguments: roles, then numbers of the host, from 1 on."""
    return {name: i for i, name in enumerate((*form.roles, *form.numbers), 1)}


def new_graph(
    form: GraphForm, handle: int | None, capability: tuple[int, int] | None = None
) -> Any:
    """A graph of the frontend with its operations described; plans it has none.

    ``capability`` is that of the GPU where there is no handle to ask (:class:`GraphBuilder`).
    Raises what the frontend raises where it, or cuDNN, can't express it.
    """
    builder = GraphBuilder(form, handle, capability)
    form.describe(builder)
    return builder.finished()


# --- plans ----------------------------------------------------------------------------------------


def plans(form: GraphForm, handle: Any, *, most: int = ALL) -> tuple[list[GraphPlan], str]:
    """Up to ``most`` plans that cuDNN builds, in its order of preference; why, where there is none.

    The order is that of its heuristics A, B and FALLBACK; what the form's limits rule out is left
    out. ``handle`` is a ``cudnnHandle_t`` as an int, of the device that is current.
    """
    off = frontend.unavailable()
    problem = f"the graph API is off: {off}" if off else form.refusal()
    if problem:
        return [], problem
    try:
        planning = _planning(form, int(handle))
        found = planning.first(most)
    except errors() as error:
        return [], f"cuDNN's graph API does not take it: {one_line(error)}"
    return [p.record for p in found], "" if found else planning.why_none()


def _planning(form: GraphForm, handle: int) -> Planning:
    """The planning of a form, kept for a while: what is listed is often launched next."""
    key = (form, handle)
    if key not in _recent:
        while len(_recent) >= _MOST_PLANNINGS:
            _recent.pop(next(iter(_recent)))
        _recent[key] = Planning(lambda: new_graph(form, handle), form.limits)
    return _recent[key]


# --- launches -------------------------------------------------------------------------------------


def launch(form: GraphForm, plan: GraphPlan, handle: Any) -> GraphLaunch:
    """A plan ready to run. Raises :class:`CudnnError` where this cuDNN can't build it again."""
    frontend.compiled()
    listed = _recent.get((form, int(handle)))
    found = listed.find(plan) if listed else None
    return GraphLaunch(form, found or replay(lambda: new_graph(form, int(handle)), plan))


class GraphLaunch:
    """A plan bound to its graph; a call enqueues it on the stream of the handle.

    May be captured into a CUDA graph. Keep it while such a graph is used.
    """

    def __init__(self, form: GraphForm, built: BuiltPlan) -> None:
        self.plan, self.roles = built.record, form.roles
        self._graph, self._index = built.graph, built.index
        self._execute = built.graph._execute_plan_at_index
        uids = _uids(form)
        self._uids = tuple((uids[r], r) for r in self.roles)
        # Numbers are read from the host while a launch is enqueued: they have to live as long.
        kind = ctypes.c_double if form.between == "float64" else ctypes.c_float
        self._numbers = {uids[name]: kind(value) for name, value in form.numbers.items()}
        self._pack = {uid: ctypes.addressof(value) for uid, value in self._numbers.items()}

    def __call__(self, handle: int, pointers: Mapping[str, int], workspace: int) -> None:
        """Enqueue. ``pointers`` are those of ``roles``; the workspace is as large as the plan's."""
        pack = dict(self._pack)
        for uid, role in self._uids:
            pointer = pointers[role]
            if pointer % ALIGNMENT:
                raise CudnnArgumentError(
                    f"cuDNN's plan {self.plan.name}: wanted {role} at a multiple of {ALIGNMENT} "
                    f"bytes, got {pointer:#x}. Copy it first"
                )
            pack[uid] = pointer
        self._execute(pack, workspace, self._index, handle)

"""Graphs of cuDNN's frontend with any operations: description, plans, launches.

A family of kernels describes its graph by a :class:`GraphForm`: the names of a launch's arguments,
limits for plans, and the tensors and operations, which it adds to a :class:`GraphBuilder`. Plans,
their cache and launches are the same for all forms.

Every pointer has to be a multiple of 16 bytes: cuDNN's engines rely on it.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn.graph_plan import (
    BuiltPlan,
    GraphPlan,
    Limits,
    Planning,
    errors,
    one_line,
    rebuild,
)
from symdnn.gpu.cudnn.version import with_version

#: The alignment in bytes of all pointers, which the frontend declares to cuDNN.
ALIGNMENT = 16

#: cuDNN's data types by symdnn's dtypes.
TYPES = {
    "float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "bool": "BOOLEAN",
}  # fmt: skip

#: More plans than cuDNN has.
ALL_PLANS = 1 << 20

#: Plannings that are cached, with their built plans. The lock of a device's context guards them.
_MAX_PLANNINGS = 2
_recent: dict[tuple[GraphForm, int], Planning] = {}
#: Launches that are in use, since equal layers of a network can share one.
_launches: WeakValueDictionary[tuple[GraphForm, GraphPlan, int], GraphLaunch] = (
    WeakValueDictionary()
)


class GraphForm(ABC):
    """The description of a graph, a frozen dataclass, which is the key of the graph's plans.

    The graph and the limits of its plans depend on its fields alone.
    """

    #: The graph's name in the frontend's logs.
    name: str = "symdnn"

    @property
    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Names of the arrays that a launch reads and writes: keys of its pointers."""

    @property
    def numbers(self) -> Mapping[str, float]:
        """Scalars that a launch reads on the host, by name, in :attr:`intermediate_dtype`."""
        return {}

    @property
    def intermediate_dtype(self) -> str:
        """The dtype of computation, and of values that never reach memory."""
        return "float32"

    @property
    def limits(self) -> Limits:
        """Limits for the plans."""
        return Limits()

    def refusal(self) -> str:
        """Why cuDNN can't compute it, where that is known without a query; else ``""``."""
        return ""

    @abstractmethod
    def describe(self, graph: GraphBuilder) -> None:
        """Add tensors and operations to ``graph``. Each role is an input or an output."""


class GraphBuilder:
    """A graph of the frontend while a form describes it.

    Shapes and strides are in elements, with the dimensions that cuDNN documents for the operation;
    strides define the layout. Without a handle the graph is checked without a device. Some rules of
    the frontend depend on the GPU's compute ``capability``.
    """

    def __init__(
        self, form: GraphForm, handle: int | None, capability: tuple[int, int] | None = None
    ) -> None:
        where = {} if handle is None else {"handle": handle}
        if capability is not None:
            where["sm_version"] = 10 * capability[0] + capability[1]
        between = self.type(form.intermediate_dtype)
        self._form, self._handle = form, handle
        self._graph = frontend.graph_class()(
            name=form.name, io_data_type=between, intermediate_data_type=between,
            compute_data_type=between, **where,
        )  # fmt: skip

    def type(self, dtype: str) -> Any:
        """The frontend's constant of a dtype."""
        return getattr(frontend.compiled().data_type, TYPES[dtype])

    def input(self, role: str, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        """A tensor that a launch reads from the array of this role."""
        return self._graph.tensor(
            dim=list(shape), stride=list(strides), data_type=self.type(dtype),
            uid=_uids(self._form)[role], name=role,
        )  # fmt: skip

    def number(self, name: str, ndim: int) -> Any:
        """One of the form's scalars, as a tensor of ``ndim`` dimensions."""
        ones = [1] * ndim
        return self._graph.tensor(
            dim=ones, stride=ones, data_type=self.type(self._form.intermediate_dtype),
            is_pass_by_value=True, uid=_uids(self._form)[name], name=name,
        )  # fmt: skip

    def add(self, operation: str, **settings: Any) -> Any:
        """The result (or results) of an operation, by the frontend's name and keywords.

        Raises :class:`~symdnn.errors.CudnnError` if this frontend has no such operation.
        """
        found = getattr(self._graph, operation, None)
        if found is None:
            error = CudnnError(
                f"the frontend {frontend.version()} has no operation {operation!r}; update it "
                f"(pip install -U {frontend.PACKAGE})"
            )
            raise with_version(error)
        return found(**settings)

    def virtual(
        self, value: Any, shape: Sequence[int], strides: Sequence[int], dtype: str | None = None
    ) -> Any:
        """``value``, a result that never reaches memory, with a shape and strides.

        By default the frontend would give every result NHWC strides.
        """
        value.set_dim(list(shape)).set_stride(list(strides))
        return value.set_data_type(self.type(dtype or self._form.intermediate_dtype))

    def output(
        self, value: Any, role: str, shape: Sequence[int], strides: Sequence[int], dtype: str
    ) -> None:
        """Make ``value`` an output, which a launch writes to the array of this role."""
        value.set_output(True).set_data_type(self.type(dtype)).set_uid(_uids(self._form)[role])
        value.set_dim(list(shape)).set_stride(list(strides))

    def finished(self) -> Any:
        """The frontend's graph, validated; with a handle also by cuDNN."""
        self._graph.validate()
        if self._handle is not None:
            self._graph.build_operation_graph()
        return self._graph


def _uids(form: GraphForm) -> dict[str, int]:
    """Unique ids of the graph's arguments, from 1 on: roles, then scalars."""
    return {name: i for i, name in enumerate((*form.roles, *form.numbers), 1)}


def new_graph(
    form: GraphForm, handle: int | None, capability: tuple[int, int] | None = None
) -> Any:
    """A graph of the frontend with its operations, and without plans.

    ``capability`` is the GPU's where there is no handle (:class:`GraphBuilder`). Errors of the
    frontend and of cuDNN go to the caller.
    """
    builder = GraphBuilder(form, handle, capability)
    form.describe(builder)
    return builder.finished()


# --- plans ----------------------------------------------------------------------------------------


def plans(form: GraphForm, handle: int, *, most: int = ALL_PLANS) -> tuple[list[GraphPlan], str]:
    """Up to ``most`` plans that cuDNN builds, in its order of preference, and why there are none.

    The order is that of its heuristics A, B and FALLBACK, filtered by the form's limits. ``handle``
    is a ``cudnnHandle_t`` as an int, of the current device.
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
    """The planning of a form, cached: a plan that is listed is often launched next."""
    key = (form, handle)
    if key not in _recent:
        while len(_recent) >= _MAX_PLANNINGS:
            _recent.pop(next(iter(_recent)))
        _recent[key] = Planning(lambda: new_graph(form, handle), form.limits)
    return _recent[key]


# --- launches -------------------------------------------------------------------------------------


def launch(form: GraphForm, plan: GraphPlan, handle: int) -> GraphLaunch:
    """A plan ready to run. Raises :class:`CudnnError` if this cuDNN can't build it again.

    Building a plan takes cuDNN up to some 0.3 s, so that one that is in use is returned again.
    """
    frontend.compiled()
    key = (form, plan, int(handle))
    ready = _launches.get(key)
    if ready is None:
        listed = _recent.get((form, int(handle)))
        found = listed.find(plan) if listed else None
        built = found or rebuild(lambda: new_graph(form, int(handle)), plan)
        ready = _launches[key] = GraphLaunch(form, built)
    return ready


class GraphLaunch:
    """A plan bound to its graph; a call enqueues it on the handle's stream.

    It may be captured into a CUDA graph, and must then live as long as that.
    """

    def __init__(self, form: GraphForm, built: BuiltPlan) -> None:
        self.plan, self.roles = built.record, form.roles
        self._graph, self._index = built.graph, built.index
        self._execute = built.graph._execute_plan_at_index
        uids = _uids(form)
        self._uids = tuple((uids[r], r) for r in self.roles)
        # A launch reads the scalars' addresses on the host, so this object keeps them alive.
        kind = ctypes.c_double if form.intermediate_dtype == "float64" else ctypes.c_float
        self._numbers = {uids[name]: kind(value) for name, value in form.numbers.items()}
        self._pack = {uid: ctypes.addressof(value) for uid, value in self._numbers.items()}

    def __call__(self, handle: int, pointers: Mapping[str, int], workspace: int) -> None:
        """Enqueue the plan. ``pointers`` are by role; the workspace has the plan's size."""
        pack = dict(self._pack)
        for uid, role in self._uids:
            pointer = pointers[role]
            if pointer % ALIGNMENT:
                raise CudnnArgumentError(
                    f"cuDNN's plan {self.plan.name}: wanted {role} at a multiple of {ALIGNMENT} "
                    f"bytes, got {pointer:#x}. Copy it first"
                )
            pack[uid] = pointer
        try:
            self._execute(pack, workspace, self._index, handle)
        except errors() as error:
            failed = CudnnError(f"cuDNN's plan {self.plan.name} failed: {one_line(error)}")
            raise with_version(failed) from error

"""Convolution by cuDNN's graph API: its plans for a signature, and their launches.

All three directions; images and volumes; NCHW and NHWC; and forward with an epilogue, which cuDNN
computes in the same kernel before the result is rounded to its dtype and written.

Without TF32 only engines without tensor cores are taken for float32, so that float32 means float32.
With it, those that round to 16 bits stay out. Sums in less than the signature's ``compute`` are
refused always. Every pointer has to be a multiple of 16 bytes, which cuDNN's engines count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.errors import CudnnArgumentError
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.graph_build import (
    ACTIVATIONS,
    ALIGNMENT,
    TYPES,
    UIDS,
    Epilogue,
    factor_values,
    new_graph,
)
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph_plan import (
    BuiltPlan,
    GraphPlan,
    Limits,
    Planning,
    errors,
    one_line,
    replay,
)

__all__ = ["ACTIVATIONS", "ALIGNMENT", "Epilogue", "GraphLaunch", "GraphPlan", "launch", "plans"]

#: As many as cuDNN has.
ALL = 1 << 20


#: Plannings that are kept, with what they built: calls hold the lock of their device's context.
_KEPT = 2
_recent: dict[tuple[ConvSignature, int, Epilogue], Planning] = {}


def plans(
    signature: ConvSignature, handle: Any, epilogue: Epilogue | None = None, *, most: int = ALL
) -> tuple[list[GraphPlan], str]:
    """Up to ``most`` plans that cuDNN builds, in its order of preference; why, where there is none.

    The order is that of its heuristics A, B and FALLBACK. Plans that want more workspace than the
    signature's limit are left out, and those that are not deterministic where it asks for that.
    ``handle`` is a ``cudnnHandle_t`` as an int, of the device that is current.
    """
    problem = _refusal(signature, epilogue)
    if problem:
        return [], problem
    try:
        planning = _planning(_key(signature), int(handle), epilogue or Epilogue())
        found = planning.first(most)
    except errors() as error:
        return [], f"cuDNN's graph API does not take it: {one_line(error)}"
    return [p.record for p in found], "" if found else planning.why_none()


def launch(
    signature: ConvSignature, plan: GraphPlan, handle: Any, epilogue: Epilogue | None = None
) -> GraphLaunch:
    """A plan ready to run. Raises :class:`CudnnError` where this cuDNN can't build it again."""
    frontend.compiled()
    made = epilogue or Epilogue()
    key = _key(signature)
    built = _built(key, int(handle), made, plan)
    return GraphLaunch(key, made, built)


class GraphLaunch:
    """A plan bound to its graph; a call enqueues it on the stream of the handle.

    May be captured into a CUDA graph. Keep it while such a graph is used.
    """

    def __init__(self, signature: ConvSignature, epilogue: Epilogue, built: BuiltPlan) -> None:
        self.plan = built.record
        self.roles = ("x", "w", "y", *epilogue.roles)
        self._graph, self._index = built.graph, built.index
        self._execute = built.graph._execute_plan_at_index
        self._uids = tuple((UIDS[r], r) for r in self.roles)
        # Factors are read from the host while a launch is enqueued: they have to live as long.
        self._factors = factor_values(signature, epilogue)
        self._pack = {uid: addressof(value) for uid, value in self._factors.items()}

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


# --- planning -------------------------------------------------------------------------------------


def _refusal(s: ConvSignature, epilogue: Epilogue | None) -> str:
    """What is known to be impossible before anyone is asked."""
    problem = frontend.unavailable()
    if problem:
        return f"the graph API is off: {problem}"
    if s.dtype not in TYPES or s.compute not in TYPES:
        return f"no dtype of cuDNN: {s.dtype}, summed in {s.compute}"
    if any(prod(shape) == 0 for shape in (s.x, s.w, s.y)):
        return "it is empty"
    if epilogue is None or epilogue.is_empty:
        return ""
    if s.direction != "fwd":
        return f"an epilogue follows a forward convolution, not {s.direction}"
    if epilogue.alpha != 1 and epilogue.residual and epilogue.beta != 1:
        # cuDNN 9.19 on an H200: its engine 0 takes such a graph, and reads the factors, which are
        # on the host, as if they were on the device. One factor alone it leaves to other engines.
        return "an epilogue has one factor, alpha or beta, not both"
    return ""


def _key(s: ConvSignature) -> ConvSignature:
    """The signature without what does not concern a plan."""
    return replace(s, wanted="", on_unsupported="")


def _planning(signature: ConvSignature, handle: int, epilogue: Epilogue) -> Planning:
    """The planning of a signature, kept for a while: what is listed is often launched next."""
    key = (signature, handle, epilogue)
    if key not in _recent:
        while len(_recent) >= _KEPT:
            _recent.pop(next(iter(_recent)))
        _recent[key] = Planning(lambda: new_graph(signature, handle, epilogue), limits(signature))
    return _recent[key]


def _built(key: ConvSignature, handle: int, epilogue: Epilogue, plan: GraphPlan) -> BuiltPlan:
    """The plan as it was built when it was listed, else built from its record."""
    listed = _recent.get((key, handle, epilogue))
    found = listed.find(plan) if listed else None
    return found or replay(lambda: new_graph(key, handle, epilogue), plan)


def limits(s: ConvSignature) -> Limits:
    """The plans that a signature allows, by cuDNN's numerical notes and by workspace."""
    unwanted = []
    if s.dtype == "float32":
        unwanted.append("DOWN_CONVERT_INPUTS")
        if not s.allow_tf32:
            unwanted.append("TENSOR_CORE")
    if s.compute != "float16":
        unwanted.append("REDUCED_PRECISION_REDUCTION")
    return Limits(tuple(unwanted), s.workspace_limit, s.deterministic)

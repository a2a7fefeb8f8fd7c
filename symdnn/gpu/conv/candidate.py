"""One way to run a convolution: an algorithm of cuDNN's legacy API, a plan of its graph API, or
products of matrices.

:class:`Candidate` is the value and :class:`CandidateRun` the launch of all. If cuDNN supports a
candidate for cross-correlation only, the filters are mirrored by a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from symdnn.gpu.conv import folded, fourier, pointwise
from symdnn.gpu.conv.graph_conv import conv_graph
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.cudnn.kernel import aligned, factor
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.kernels.copy import strided_copy

#: The API of candidates of ours, which are products of matrices by cuBLASLt behind our kernels.
OWN_API = "cublaslt"
#: Their modules, by number: each has a name, what it refuses, its workspace and its launch.
OWN = (pointwise, fourier)

#: A candidate's key for all shapes, and on disk: API, number or plan, filters mirrored by a copy.
Key = tuple[str, Any, bool]


@dataclass(frozen=True)
class Candidate:
    """An algorithm (``number`` in cuDNN's enum), a ``plan``, or one of ours (:data:`OWN`).

    A plan may be of the folded convolution (:mod:`symdnn.gpu.conv.folded`), which its API says;
    then ``number`` is that of the variant.

    ``name`` is the flags' word or the plan's name. ``workspace_bytes`` is cuDNN's workspace alone.
    ``flip_by_copy`` says that the filters are mirrored by a copy.
    """

    api: str
    name: str
    workspace_bytes: int
    deterministic: bool
    number: int = -1
    plan: GraphPlan | None = None
    flip_by_copy: bool = False

    @classmethod
    def of_plan(cls, plan: GraphPlan, flip_by_copy: bool) -> Candidate:
        """A plan of the graph API as a candidate."""
        return cls(
            "graph", plan.name, plan.workspace_bytes, plan.deterministic, plan=plan,
            flip_by_copy=flip_by_copy,
        )  # fmt: skip

    @classmethod
    def of_folded(cls, s: ConvSignature, number: int, plan: GraphPlan) -> Candidate:
        """A plan of a variant of the convolution without strides."""
        nbytes = folded.workspace_bytes(s, number, plan)
        name = f"{folded.NAME} {number} {plan.name}"
        return cls(folded.NAME, name, nbytes, plan.deterministic, number, plan)

    @classmethod
    def of_ours(cls, s: ConvSignature, number: int) -> Candidate:
        """One of :data:`OWN` for a convolution that it takes.

        Raises :class:`~symdnn.gpu.binding.libcublaslt.CublasError` where there is no room.
        """
        own = OWN[number]
        return cls(OWN_API, own.NAME, own.workspace_bytes(s), True, number)

    @property
    def key(self) -> Key:
        """The key, which is the same for all shapes."""
        which: Any = self.number
        if self.plan is not None:
            which = self.plan.engine, self.plan.knobs
        if self.api == folded.NAME:
            which = self.number, *which
        return self.api, which, self.flip_by_copy

    def form(self, s: ConvSignature) -> ConvSignature:
        """The signature for cuDNN: with mirrored filters it is a cross-correlation."""
        return replace(s, flip=False) if self.flip_by_copy else s

    def total_bytes(self, s: ConvSignature) -> int:
        """The workspace with room for mirrored filters."""
        if not self.flip_by_copy:
            return self.workspace_bytes
        return aligned(self.workspace_bytes) + s.nbytes("w")

    def prepared(self, s: ConvSignature, handle: Any) -> CandidateRun:
        """A launch for which only addresses are missing."""
        form = self.form(s)
        if self.api == OWN_API:
            ours = OWN[self.number].launch_of(form)
            return CandidateRun(self, s, ours, ours.load)
        if self.api == folded.NAME and self.plan is not None:
            copied = folded.FoldedLaunch(s, self.number, self.plan, handle)
            return CandidateRun(self, s, copied, copied.load)
        if self.plan is not None:
            return CandidateRun(self, s, _graph_launch(form, self.plan, handle))
        return CandidateRun(self, s, _LegacyLaunch(form, self.number, self.workspace_bytes))


#: launch(env, pointer of each role, alpha, beta)
_Launch = Callable[[Any, Mapping[str, int], float, float], Any]


class _LegacyLaunch:
    """``cudnnConvolution...`` with its descriptors."""

    def __init__(self, form: ConvSignature, number: int, workspace_bytes: int) -> None:
        direction = DIRECTIONS[form.direction]
        self.run, self.roles, self.dtype = direction.run, direction.roles, form.dtype
        self.number, self.workspace_bytes = number, workspace_bytes
        self.descriptors = form.descriptors

    def __call__(self, env: Any, at: Mapping[str, int], alpha: float, beta: float) -> None:
        a, b, c = (at[r] for r in self.roles)
        first, second, convolution, result = self.descriptors
        self.run(
            env.cudnn, factor(self.dtype, alpha), first.handle, a, second.handle, b,
            convolution.handle, self.number, env.workspace, self.workspace_bytes,
            factor(self.dtype, beta), result.handle, c,
        )  # fmt: skip


def _graph_launch(form: ConvSignature, plan: GraphPlan, handle: int) -> _Launch:
    run = graph.launch(conv_graph(form), plan, handle)

    def launch(env: Any, at: Mapping[str, int], alpha: float, beta: float) -> None:
        assert (alpha, beta) == (1.0, 0.0), "plans of the graph API neither scale nor add"
        run(env.cudnn, at, env.workspace)

    return launch


class CandidateRun:
    """A launch of a candidate: ``run(env, arrays by role, alpha, beta)``.

    ``load(env)`` compiles kernels of ours before a first run, whose time may be taken.
    """

    def __init__(
        self, candidate: Candidate, s: ConvSignature, launch: _Launch,
        load: Callable[[Any], None] = lambda env: None,
    ) -> None:  # fmt: skip
        self.candidate, self.launch, self.load = candidate, launch, load
        self.result = DIRECTIONS[s.direction].roles[2]
        self.layout = s.layout
        self.scratch_at = aligned(candidate.workspace_bytes)

    def __call__(
        self, env: Any, arrays: Mapping[str, RawArray], alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Enqueue ``alpha * convolution + beta * result``; ``env`` has the workspace."""
        at = {role: array.ptr for role, array in arrays.items()}
        if not self.candidate.flip_by_copy:
            self.launch(env, at, alpha, beta)
            return
        w = arrays["w"]
        scratch = RawArray(env.workspace + self.scratch_at, w.shape, w.dtype)
        if self.result != "w" or beta:
            strided_copy(env, mirrored(w, self.layout), scratch)
        self.launch(env, {**at, "w": scratch.ptr}, alpha, beta)
        if self.result == "w":
            strided_copy(env, mirrored(scratch, self.layout), w)


def mirrored(w: RawArray, layout: str = "NCHW") -> RawArray:
    """A view of contiguous filters with reversed spatial dimensions."""
    inner = range(2, w.ndim) if layout == "NCHW" else range(1, w.ndim - 1)
    last = sum((w.shape[i] - 1) * w.strides[i] for i in inner)
    strides = tuple(-s if i in inner else s for i, s in enumerate(w.strides))
    return replace(w, ptr=w.ptr + last, strides=strides)

"""The measured choice for a convolution: of an earlier process, or made now and kept.

The record is the algorithm's number, or the plan's engine and knobs. It is taken only after cuDNN
was asked again whether it takes it, with how much workspace; else it is dropped and measured anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from symdnn.config import config
from symdnn.errors import CudnnError, SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.binding import frontend
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.measure import measure
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.device.cudnn_device import queried_context
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import Answer, Question, answer, plain

__all__ = ["ConvQuestion", "key_of", "machine", "measured", "plan_of", "plan_record"]

#: Fields of a signature that say what to do with a result, not what is measured.
_NO_MATTER = ("wanted", "on_unsupported", "named")


def measured(search: Search) -> Answer[Candidate] | None:
    """The best measured candidate; None where nothing could be measured, or may be.

    With ``deterministic=more`` a choice must be the same in all processes: what can't be kept on
    disk is not measured.
    """
    return answer(ConvQuestion(search))


class ConvQuestion(Question[Candidate]):
    """The best algorithm of one convolution alone."""

    family = "convolution"

    def __init__(self, search: Search) -> None:
        self.search, self.by = search, str(config.dnn.conv.choose_by)
        self.deterministic = search.signature.deterministic

    def key(self) -> dict[str, Any]:
        """The signature, the machine, and how it is measured."""
        return key_of(self.search.signature, self.by)

    def measured(self) -> tuple[list[Attempt[Candidate]], str]:
        """Within the limits of the flags."""
        return measure(
            queried_context(), self.search.signature, self.search.guesses(),
            float(config.dnn.conv.time_budget), self.by, _patience(self.by),
        )  # fmt: skip

    def record(self, best: Attempt[Candidate]) -> dict[str, Any]:
        """The algorithm's number, or the plan's engine and knobs."""
        c = best.candidate
        return {
            "api": c.api, "name": c.name, "number": c.number, "flip_by_copy": c.flip_by_copy,
            "workspace_bytes": c.workspace_bytes, "ms": best.ms, "error": best.error,
            "plan": None if c.plan is None else plan_record(c.plan),
        }  # fmt: skip

    def revived(self, record: dict[str, Any]) -> Attempt[Candidate] | None:
        """The candidate of a record, if cuDNN still takes it within the limits."""
        try:
            candidate = _candidate(self.search, record)
            ms = record["ms"]
        except (KeyError, TypeError, ValueError, SymdnnError) as error:
            why = str(error).splitlines()[0]
            self.search.refused.setdefault(str(record.get("name")), []).append(why)
            return None
        return None if candidate is None else Attempt(candidate, ms)

    def refused(self, reasons: Sequence[str]) -> None:
        """Said, and noted among the search's reasons."""
        self.search.refused.setdefault("timing", []).extend(reasons)
        super().refused(reasons)

    def not_allowed(self, reason: str) -> None:
        """Among the search's reasons."""
        self.search.refused.setdefault("timing", []).append(reason)


def key_of(s: ConvSignature, by: str) -> dict[str, Any]:
    """What a measurement depends on, as JSON has it."""
    asked_for = {"chosen_by": by, "patience": _patience(by)}
    return {**machine(queried_context().index), **_asked_of(s), **asked_for}


def _patience(by: str) -> int:
    """After how many candidates in vain a measurement ends; 0: it tries all."""
    return int(config.dnn.conv.time_patience) if by == "time" else 0


def _asked_of(s: ConvSignature) -> dict[str, Any]:
    return {name: plain(value) for name, value in asdict(s).items() if name not in _NO_MATTER}


@cache
def machine(index: int) -> dict[str, Any]:
    """The card, its driver, cuDNN and its front end."""
    off = frontend.unavailable()
    return {
        "gpu": queried_context().name,
        "driver": list(driver().version or ()),
        "cudnn": int(libcudnn.cudnnGetVersion()),
        "frontend": "" if off else frontend.version(),
    }


def _candidate(search: Search, record: dict[str, Any]) -> Candidate | None:
    flip = bool(record["flip_by_copy"])
    if record["plan"] is None:
        return search.again(("legacy", int(record["number"]), flip))
    candidate = search.of_plan(plan_of(record["plan"]), flip)
    if candidate is None:
        return None
    try:
        candidate.prepared(search.signature, search.handle)  # builds it
    except RuntimeError as error:
        raise CudnnError(str(error)) from error
    return candidate


def plan_record(plan: GraphPlan) -> dict[str, Any]:
    """A plan of the graph API, as JSON has it."""
    fields = asdict(plan)
    return {**fields, "knobs": [list(k) for k in plan.knobs], "notes": list(plan.notes)}


def plan_of(record: dict[str, Any]) -> GraphPlan:
    """The plan of a record."""
    fields = dict(record)
    fields["knobs"] = tuple((str(k), int(v)) for k, v in fields["knobs"])
    fields["notes"] = tuple(map(str, fields["notes"]))
    return GraphPlan(**fields)

"""The measured choice for a convolution: a record on disk, or a new measurement.

A record has the algorithm's number, or the plan's engine and knobs. It is used only if cuDNN still
supports the candidate within the limits of workspace. Otherwise the choice is measured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from symdnn.config import config
from symdnn.errors import CudnnError, SymdnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv import blocklist, folded
from symdnn.gpu.conv.candidate import OWN, Candidate
from symdnn.gpu.conv.measure import measure
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.cudnn.version import version_number, with_version
from symdnn.gpu.device.cudnn_device import device_key, queried_context
from symdnn.tuning.attempts import Attempt, short
from symdnn.tuning.question import Answer, Question, answer, plain, table
from symdnn.tuning.replay import Recorded

#: Fields of a signature that a measurement does not depend on, left out of its key.
_FIELDS_NOT_MEASURED = ("wanted", "on_unsupported", "named")


def measured(search: Search) -> Answer[Candidate] | None:
    """The best measured candidate; None if nothing can be measured, or must not be.

    With ``deterministic=more`` a choice must be the same in all processes, so nothing is measured
    that can't be kept on disk.
    """
    return answer(ConvQuestion(search))


def kept(search: Search) -> Answer[Candidate] | None:
    """The best candidate of an earlier measurement; None if none is kept on disk."""
    return answer(ConvQuestion(search, only_kept=True))


def all_measured(search: Search) -> list[Attempt[Candidate]]:
    """The measured candidates of which none is better in all respects than another."""
    return table(ConvQuestion(search, all_candidates=True))


class ConvQuestion(Question[Candidate]):
    """The best algorithm of one convolution ``by`` an objective, by default the flag's.

    With ``all_candidates`` a measurement does not end before all were tried. With ``only_kept`` the
    answer is that of an earlier measurement: nothing is measured.
    """

    family = "convolution"
    key: dict[str, Any]

    def __init__(
        self, search: Search, by: str = "", all_candidates: bool = False, only_kept: bool = False
    ) -> None:
        self.search, self.by = search, by or str(config.dnn.conv.objective)
        self.only_kept = only_kept
        self.waits = self.warns = not only_kept
        self.ends = _ends("" if all_candidates else self.by)
        self.deterministic = search.signature.deterministic
        self.key = {**key_of(search.signature, self.by), **self.ends}
        self.fault = blocklist.question(search.signature)

    def measured(self) -> tuple[list[Attempt[Candidate]], str]:
        """Attempts of all candidates within the limits of the flags."""
        if self.only_kept:
            return [], "no earlier measurement is kept"
        return measure(
            queried_context(), self.search.signature, self.search.guesses(),
            float(config.dnn.conv.time_budget), self.by, **self.ends,
        )  # fmt: skip

    def identity(self, candidate: Candidate) -> Any:
        """The candidate's key."""
        return plain(candidate.key)

    def record(self, best: Attempt[Candidate]) -> dict[str, Any]:
        """The algorithm's number, or the plan's engine and knobs."""
        more = {"ms": best.ms, "error": best.error, "millijoules": best.millijoules,
                "too_large": self.search.too_large}  # fmt: skip
        return {**candidate_record(best.candidate), **plain(more)}

    def revived(self, record: dict[str, Any]) -> Attempt[Candidate] | None:
        """The candidate of a record, if cuDNN still supports it within the limits."""
        try:
            candidate = candidate_of(self.search, record)
            ms, error, energy = record["ms"], record["error"], record.get("millijoules")
            larger = record.get("too_large")
            self.search.too_large = None if larger is None else tuple(larger)
        except (KeyError, TypeError, ValueError, SymdnnError) as reason:
            why = str(reason).splitlines()[0]
            self.search.refused.setdefault(str(record.get("name")), []).append(why)
            return None
        return None if candidate is None else Attempt(candidate, ms, error, energy)

    def refused(self, reasons: Sequence[str]) -> None:
        """Report it, and add it to the search's reasons."""
        self.search.refused.setdefault("timing", []).extend(reasons)
        super().refused(reasons)

    def not_allowed(self, reason: str) -> None:
        """Add it to the search's reasons."""
        self.search.refused.setdefault("timing", []).append(reason)


def key_of(s: ConvSignature, by: str) -> dict[str, Any]:
    """The key of a measurement in JSON's types, with the versions of cuDNN and its frontend."""
    measured_by: dict[str, Any] = {"chosen_by": by, **_ends(by)}
    if own := [one.NAME for one in (*OWN, folded) if not one.refusal(s)]:
        measured_by["own"] = own
    graph_api = "" if frontend.unavailable() else frontend.version()
    measured_by |= s.fields(*_FIELDS_NOT_MEASURED)
    found = device_key(cudnn=version_number(), frontend=graph_api, **measured_by)
    assert found is not None, "no device is being queried"
    return found


def _ends(by: str) -> dict[str, int]:
    """After how many candidates without a gain, and how many runs of the best one, a measurement
    ends; 0: never.
    """
    patience = int(config.dnn.conv.time_patience) if by == "time" else 0
    return {"patience": patience, "runs": int(config.dnn.conv.time_runs) if patience else 0}


def candidate_record(c: Candidate) -> dict[str, Any]:
    """A candidate in JSON's types: an algorithm's number, or a plan's engine and knobs."""
    return plain(asdict(c))


def candidate_of(search: Search, record: Mapping[str, Any]) -> Candidate | None:
    """The candidate of a record, if cuDNN supports it within the limits.

    Raises :class:`~symdnn.errors.CudnnError` if a plan can't be built again.
    """
    flip = bool(record["flip_by_copy"])
    if record["plan"] is None:
        return search.again((str(record["api"]), int(record["number"]), flip))
    plan = GraphPlan.of_record(record["plan"])
    variant = int(record["number"]) if record["api"] == folded.NAME else None
    candidate = search.of_plan(plan, flip, variant)
    if candidate is None:
        return None
    try:
        candidate.prepared(search.signature, search.handle)  # builds it
    except RuntimeError as error:
        raise with_version(CudnnError(str(error))) from error
    return candidate


def replayed(search: Search, wanted: Recorded) -> Candidate | None:
    """The algorithm of a report's row, if cuDNN still supports it; else the search says why not."""
    try:
        return candidate_of(search, wanted.record)
    except SymdnnError as error:
        search.refused.setdefault(wanted.name, []).append(short(error))
        return None

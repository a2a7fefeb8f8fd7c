"""The measured choice for a convolution: of an earlier process, or made now and kept.

The record is the algorithm's number, or the plan's engine and knobs. It is taken only after cuDNN
was asked again whether it takes it, with how much workspace; else it is dropped and measured anew.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from functools import cache
from typing import Any

from symdnn.config import config
from symdnn.errors import CudnnError, SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.binding import frontend
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.measure import Measured, best_of, measure
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.device.cudnn_device import asked
from symdnn.gpu.tuning import store

__all__ = ["key_of", "measured"]

#: Fields of a signature that say what to do with a result, not what is measured.
_NO_MATTER = ("wanted", "on_unsupported", "named")

#: The choice, where it comes from, and the table of what was measured.
Found = tuple[Measured, str, tuple[Measured, ...]]


def measured(search: Search) -> Found | None:
    """The best measured candidate; None where nothing could be measured, or may be.

    With ``deterministic=more`` a choice must be the same in all processes: what can't be kept on
    disk is not measured.
    """
    s, by = search.signature, str(config.dnn.conv.choose_by)
    key = key_of(s, by)
    record = store.recall(key)
    if record is not None:
        known = _revived(search, record)
        if known is not None:
            return known, f"fastest when it was measured before{_by(by)}", ()
        store.forget(key)
    if s.deterministic and store.folder() is None:
        search.refused.setdefault("timing", []).append(
            "deterministic=more needs measured choices on disk, and dnn.conv.tuning_cache is off"
        )
        return None
    return _made(search, key, by)


def _made(search: Search, key: dict[str, Any], by: str) -> Found | None:
    """Measure, keep, and take what is kept: another process may have been first."""
    table, problem = measure(
        asked(), search.signature, search.guesses(), float(config.dnn.conv.time_budget), by,
        _patience(by),
    )  # fmt: skip
    best = best_of(table, by)
    if best is None:
        reasons = [problem] if problem else [f"{m.candidate.name}: {m.problem}" for m in table]
        search.refused.setdefault("timing", []).extend(reasons)
        _say_once(f"nothing could be measured, so it is guessed: {'; '.join(reasons)[:300]}")
        return None
    kept = store.remember(key, _record(best))
    if kept is not None and kept != _record(best):
        other = _revived(search, kept)
        if other is not None:
            return other, f"fastest when another process measured it{_by(by)}", tuple(table)
    if kept is None and search.signature.deterministic:
        return None
    return best, f"fastest of {sum(m.usable for m in table)} measured{_by(by)}", tuple(table)


def _by(by: str) -> str:
    return "" if by == "time" else f" (by {by})"


def key_of(s: ConvSignature, by: str) -> dict[str, Any]:
    """What a measurement depends on, as JSON has it."""
    asked_for = {"chosen_by": by, "patience": _patience(by)}
    return {**_machine(asked().index), **_plain(s), **asked_for}


def _patience(by: str) -> int:
    """After how many candidates in vain a measurement ends; 0: it tries all."""
    return int(config.dnn.conv.time_patience) if by == "time" else 0


def _plain(s: ConvSignature) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(s).items()
        if name not in _NO_MATTER
    }


@cache
def _machine(index: int) -> dict[str, Any]:
    off = frontend.unavailable()
    return {
        "gpu": asked().name,
        "driver": list(driver().version or ()),
        "cudnn": int(libcudnn.cudnnGetVersion()),
        "frontend": "" if off else frontend.version(),
    }


def _record(one: Measured) -> dict[str, Any]:
    """What is kept of a choice, as JSON has it."""
    c = one.candidate
    plan = None if c.plan is None else asdict(c.plan)
    if plan is not None:
        plan["knobs"], plan["notes"] = [list(k) for k in plan["knobs"]], list(plan["notes"])
    return {
        "api": c.api, "name": c.name, "number": c.number, "flip_by_copy": c.flip_by_copy,
        "workspace_bytes": c.workspace_bytes, "ms": one.ms, "error": one.error, "plan": plan,
    }  # fmt: skip


def _revived(search: Search, record: dict[str, Any]) -> Measured | None:
    """The candidate of a record, if cuDNN still takes it within the limits."""
    try:
        candidate = _candidate(search, record)
        ms = record["ms"]
    except (KeyError, TypeError, ValueError, SymdnnError) as error:
        search.refused.setdefault(str(record.get("name")), []).append(str(error).splitlines()[0])
        return None
    return None if candidate is None else Measured(candidate, ms)


def _candidate(search: Search, record: dict[str, Any]) -> Candidate | None:
    flip = bool(record["flip_by_copy"])
    if record["plan"] is None:
        return search.again(("legacy", int(record["number"]), flip))
    fields = dict(record["plan"])
    fields["knobs"] = tuple((str(k), int(v)) for k, v in fields["knobs"])
    fields["notes"] = tuple(map(str, fields["notes"]))
    plan = GraphPlan(**fields)
    candidate = search.of_plan(plan, flip)
    if candidate is None:
        return None
    try:
        candidate.prepared(search.signature, search.handle)  # builds it
    except RuntimeError as error:
        raise CudnnError(str(error)) from error
    return candidate


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)

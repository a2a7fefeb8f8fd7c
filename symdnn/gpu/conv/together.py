"""The ways to run one convolution among which a plan chooses for all of its convolutions together.

That is with the flag ``dnn.workspace_budget``. A way is a candidate, or a division of the batch
into parts, each with a candidate (:mod:`symdnn.tuning.division`). Parts are measured only if the
fastest candidate of the whole batch has no room. The gradient of the filters is summed over parts,
which cuDNN's legacy API does in place. Sums of 16 bits would be rounded, so those are not divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symdnn.config import config
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.blocklist import tolerance
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph import ALIGNMENT
from symdnn.gpu.device.cudnn_device import free_bytes
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.division import Division, Part, divisions, sizes


def is_chosen_together(s: ConvSignature) -> bool:
    """Whether the algorithm is chosen with those of other convolutions: the user named none."""
    return bool(config.dnn.workspace_budget) and not s.names_one


def cut(s: ConvSignature, count: int) -> ConvSignature:
    """The signature for ``count`` samples."""
    return s if count == s.x[0] else replace(s, x=(count, *s.x[1:]), y=(count, *s.y[1:]))


def runs_plans_in_parts(s: ConvSignature, count: int) -> bool:
    """Whether the graph API may run parts of ``count`` samples.

    It can't sum them, and needs aligned addresses.
    """
    rows_at = [s.nbytes(role) // s.x[0] * count for role in ("x", "y")]
    return s.direction != "bwd_filter" and not any(n % ALIGNMENT for n in rows_at)


def ways(
    s: ConvSignature, handle: int, room_bytes: int, most: int
) -> list[Division[tuple[ConvSignature, Candidate]]]:
    """All measured ways of which none is better in time, workspace, error and energy than another.

    A call has at most ``most`` samples. Empty if nothing can be measured.
    """
    total, table = s.x[0], []
    for counts in ((total,), *sizes(total)):
        if counts[0] > most:
            continue
        if counts != (total,) and s.rounds_sums:
            break
        parts = [part for count in counts for part in _parts(_part_of(s, count), handle)]
        table += parts
        fastest = min(parts, key=lambda part: part.ms, default=None)
        if fastest is None or fastest.workspace_bytes <= room_bytes:
            break
    return divisions(total, table)


def first_with_room(
    s: ConvSignature, handle: int, room_bytes: int
) -> tuple[ConvSignature, Candidate] | None:
    """The first guess for the whole batch that has room, else the one with the least workspace."""
    guesses = list(_search(s, handle).guesses())
    fitting = (c for c in guesses if c.total_bytes(s) <= room_bytes)
    least = min(guesses, key=lambda c: c.total_bytes(s), default=None)
    found = next(fitting, least)
    return None if found is None else (s, found)


def _part_of(s: ConvSignature, count: int) -> ConvSignature:
    """The signature of a part of ``count`` samples, or of the whole batch.

    Parts of several sizes follow each other, so plans need samples of aligned sizes.
    """
    divided = count != s.x[0] and not runs_plans_in_parts(s, 1)
    return replace(cut(s, count), legacy_only=s.legacy_only or divided)


def _parts(s: ConvSignature, handle: int) -> Iterator[Part[tuple[ConvSignature, Candidate]]]:
    for found in conv_tuning.all_measured(_search(s, handle)):
        assert found.ms is not None
        c = found.candidate
        yield Part(
            s.x[0], (s, c), c.total_bytes(s), found.ms, found.millijoules, error_of(found, s)
        )


def error_of(found: Attempt[Candidate], s: ConvSignature) -> float:
    """The error of an attempt; the largest that is allowed if it was not measured."""
    return tolerance(s) if found.error is None else found.error


def _search(s: ConvSignature, handle: int) -> Search:
    return Search(s, handle, 0 if s.deterministic else free_bytes())

"""The block list (:mod:`symdnn.tuning.blocked`) for cuDNN's convolutions.

An entry holds for cuDNN's version, the card's architecture, and the convolution with its shapes:
cuDNN's faults came with single sizes (inputs of over 1 GB), and each shape is checked anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.version import version_number
from symdnn.gpu.device.cudnn_device import library_key
from symdnn.tuning import blocked
from symdnn.tuning.question import plain

#: The largest relative error of an algorithm that the user named. Transforms lose digits, which
#: one who names them accepts: 4e-3 in float32 for 5x5 filters. Beyond that a result is wrong.
_NAMED_LIMIT = {"float16": 1e-1, "bfloat16": 1e-1, "float32": 2e-2, "float64": 1e-6}


def tolerance(s: ConvSignature) -> float:
    """The largest relative error in the 2-norm of a right result, for random operands.

    It is a few times the rounding error. For float32 it is a third of TF32's error (3e-4), so that
    TF32 is detected where it is not allowed.
    """
    if s.compute == "float16":
        return 5e-2
    if s.dtype == "float32":
        return 5e-3 if s.allow_tf32 else 1e-4
    return {"float16": 5e-3, "bfloat16": 2e-2, "float64": 1e-9}[s.dtype]


def limit(s: ConvSignature) -> float:
    """The largest relative error that is allowed: of a named algorithm, else :func:`tolerance`."""
    return _NAMED_LIMIT[s.dtype] if s.names_one else tolerance(s)


def why_wrong(s: ConvSignature, error: float) -> str:
    """What is wrong with a result of this error, in words."""
    return f"its result was off by {error:.2g}, {limit(s):.2g} allowed"


def asked(s: ConvSignature) -> ConvSignature:
    """The signature without fields on which a result does not depend."""
    return replace(
        s, wanted="", workspace_limit=0, deterministic=False, on_unsupported="", legacy_only=False,
        named=False,
    )  # fmt: skip


def question(s: ConvSignature) -> dict[str, Any]:
    """The question of an entry, as JSON values: cuDNN's version, architecture, convolution."""
    found = library_key("cudnn", version_number(), **s.question)
    assert found is not None, "no device is being queried"
    return found


def block(s: ConvSignature, candidate: Candidate, error: float) -> None:
    """Put a candidate on the list for this convolution."""
    blocked.add(question(s), plain(candidate.key), candidate.name, error, why_wrong(s, error))


def why_blocked(s: ConvSignature, candidate: Candidate) -> str:
    """Why a candidate must not be used; empty if it may be."""
    if blocked.is_empty():
        return ""
    error = blocked.error_of(question(s), plain(candidate.key))
    if error is None or error <= limit(s):
        return ""
    return f"it is on the block list: {why_wrong(s, error)}"

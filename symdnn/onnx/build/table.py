"""The table of ops: for each domain and name, what builds it from which version on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from symdnn.onnx.model.node import Builder
from symdnn.onnx.ops import (
    arithmetic,
    attention,
    control,
    conv,
    elementwise,
    gather,
    grams,
    indexing,
    linear,
    norms,
    pooling,
    quantize,
    random,
    recurrent,
    reductions,
    regions,
    resize,
    sequences,
    shaping,
    signal,
    training,
)
from symdnn.onnx.ops.microsoft import attention as ms_attention
from symdnn.onnx.ops.microsoft import blocks, experts, plain, quantized

_DEFAULT = (
    arithmetic, attention, control, conv, elementwise, gather, grams, indexing, linear, norms,
    pooling, quantize, random, recurrent, reductions, regions, resize, sequences, shaping, signal,
)  # fmt: skip
_DOMAINS = {
    "": _DEFAULT,
    "com.microsoft": (plain, ms_attention, blocks, experts, quantized),
    "ai.onnx.preview": (),
    "ai.onnx.preview.training": (training,),
}


@cache
def _table() -> dict[tuple[str, str], dict[int, Builder]]:
    found: dict[tuple[str, str], dict[int, Builder]] = {}
    for domain, modules in _DOMAINS.items():
        for module in modules:
            for op, entry in module.OPS.items():
                assert (domain, op) not in found, f"{op} has two builders"
                found[domain, op] = dict(entry) if isinstance(entry, Mapping) else {1: entry}
    return found


def builder_of(domain: str, op: str, version: int) -> Builder | None:
    """What builds an op in the meaning of ``version``; None if symdnn has no builder."""
    versions = _table().get((domain, op), {})
    since = max((v for v in versions if v <= version), default=None)
    return None if since is None else versions[since]


def known_ops() -> dict[tuple[str, str], list[int]]:
    """All ops with builders: (domain, name) -> the versions from which each builder holds."""
    return {key: sorted(versions) for key, versions in _table().items()}

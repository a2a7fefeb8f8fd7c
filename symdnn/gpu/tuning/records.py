"""Measured choices of matrix products and recurrent nets, kept on disk as convolutions' are.

What is kept is enough to know the choice again, and is asked for anew: a product's algorithm has to
be among those that cuBLASLt's heuristics give, a recurrent net's has to give right results.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.binding import libcublaslt
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.device.context import existing
from symdnn.gpu.tuning import store

if TYPE_CHECKING:
    from symdnn.gpu.gemm.plan import GemmAlgorithm, GemmSignature
    from symdnn.gpu.rnn.net import Net

__all__ = ["gemm_record", "recall_gemm", "recall_rnn", "remember_gemm", "remember_rnn"]

Record = dict[str, Any]


@cache
def _card(index: int, name: str) -> Record:
    return {"gpu": name, "driver": list(driver().version or ())}


def _key(what: str, version: int, question: Any) -> Record | None:
    """What a measurement depends on, as JSON has it; None where there is no device."""
    found = existing()
    if found is None:
        return None
    return {**_card(found.index, found.name), "what": what, "version": version, **question}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


# -- products --------------------------------------------------------------------------------------


def _gemm_key(s: GemmSignature, candidates: int) -> Record | None:
    if existing() is None:
        return None
    question = {**_plain(asdict(s)), "candidates": candidates}
    return _key("matrix product", libcublaslt.version(), question)


def gemm_record(algorithm: GemmAlgorithm, ms: tuple[float | None, ...]) -> Record:
    """A product's algorithm, and the times of all that were measured."""
    words = [int(w) for w in algorithm.data.data]
    return {"algorithm": words, "workspace_bytes": algorithm.workspace_bytes, "ms": list(ms)}


def recall_gemm(s: GemmSignature, candidates: int) -> Record | None:
    """What an earlier process chose for a product among so many; None where there is nothing."""
    key = _gemm_key(s, candidates)
    return None if key is None else store.recall(key)


def remember_gemm(s: GemmSignature, candidates: int, record: Record) -> None:
    """Keep the choice for a product."""
    key = _gemm_key(s, candidates)
    if key is not None:
        store.remember(key, record)


# -- recurrent nets --------------------------------------------------------------------------------


def _rnn_key(net: Net, lengths: bool) -> Record | None:
    if existing() is None:
        return None
    question = {"net": _plain(asdict(net)), "lengths": lengths}
    return _key("recurrent net", int(libcudnn.cudnnGetVersion()), question)


def recall_rnn(net: Net, lengths: bool) -> Record | None:
    """The word and milliseconds of the algorithm that an earlier process chose; None: nothing."""
    key = _rnn_key(net, lengths)
    return None if key is None else store.recall(key)


def remember_rnn(net: Net, lengths: bool, word: str, ms: float) -> None:
    """Keep the choice for a recurrent net."""
    key = _rnn_key(net, lengths)
    if key is not None:
        store.remember(key, {"algorithm": word, "ms": ms})

"""Attention and its gradient in tiles, without stored scores: what cuDNN does not take.

Products are made on tensor cores, of parts in float16 that are as exact as float32, or where these
are missing by float32's own. Sums have an order, so bits do not change from run to run. The random
numbers of dropout are the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, scratch
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.context import existing_context, most_shared_bytes
from symdnn.graph.kernel import Call, Row
from symdnn.ops.attention.attention import Attention, AttentionGrad

#: Rows of a small block.
_SIDE = 64
#: Threads of a block by the terms of a product: 0 without tensor cores, 1 in the digits of TF32, 3
#: in those of float32.
_THREADS = {0: 256, 1: 128, 3: 128}
_TENSOR_CORES = (8, 0)
#: Features of a tile in shared memory, and the bytes of a number of each of its parts.
_PIECE, _PART_BYTES = 64, 2
#: Rows and columns of a step, blocks of a multiprocessor, whether tiles of the rows stay in shared
#: memory, and whether all of the columns are there at once: by the pieces of the features.
_FORMS: dict[str, dict[int, tuple[tuple[int, ...], ...]]] = {
    "result": {1: ((128, 64, 2, 1, 1), (64, 64, 3, 1, 1)), 2: ((64, 64, 2, 1, 1),)},
    "gradient": {1: ((64, 64, 2, 1, 1),), 2: ((64, 32, 2, 1, 1),)},
}
_IN_PIECES = (64, 64, 1, 1, 0), (64, 64, 1, 0, 0)
#: A thread holds a 16th of the features of 4 rows, or a quarter of those of 2.
_MAX_FEATURES = 256
#: A window without an end.
_NO_END = 1 << 40
_MASKS = ("bool", "float16", "bfloat16", "float32")
#: Operands of both ops before the extras, and their results, by the fields of the kernel.
_FORWARD = ("q", "k", "v"), ("result", "new_lse", "next_state")
_BACKWARD = ("q", "k", "v", "out", "lse", "dout", "dlse"), ("q", "k", "v")
_POINTERS = (
    "q", "k", "v", "dout", "out", "lse", "dlse", "delta", "result", "values", "new_lse", "mask",
)  # fmt: skip
_MORE_POINTERS = ("key_lengths", "query_lengths", "state", "rate", "next_state")
_STRIDED = ("q", "k", "v", "dout", "out", "result", "values")
_ROLES = {"result": 0, "q": 1, "k": 2, "v": 3}


class AttentionTile(CudaKernel[Attention | AttentionGrad]):
    """Tiles of 64 queries and 64 keys.

    The gradient is a kernel for each operand, or one for keys and values where their tiles fit.
    """

    name = "cuda.attention"
    contiguous_inputs = True

    def refuses(self, call: Call[Attention | AttentionGrad]) -> str | None:
        """Needs float32 and at most 256 features; it has no gradient of a mask."""
        op, types, first = call.op, call.inputs, _first_extra(call.op)
        mask = op.how.named(types[first:]).get("mask")
        if any(t.dtype != "float32" for t in types[:first]):
            return "it computes in float32"
        if isinstance(op, AttentionGrad) and op.of_mask and mask is not None and mask.is_float:
            return "it has no gradient of a mask"
        if mask is not None and mask.dtype not in _MASKS:
            return f"a mask is one of {', '.join(_MASKS)}"
        for size in (types[0].shape[3], types[2].shape[3]):
            if size is None or not 0 < size <= _MAX_FEATURES:
                return f"its registers hold a known number of features up to {_MAX_FEATURES}"
        if "state" in op.how.extras and 0 in types[0].shape[:3]:
            return "it draws nothing"
        return None

    def accepts(self, index: int, array: RawArray) -> bool:
        """Rows of contiguous features; all but arrays of 4 dimensions are contiguous."""
        if array.ndim != 4:
            return bool(array.contiguous)
        return array.shape[3] == 1 or array.strides[3] == array.itemsize

    def workspace_bytes(self, call: Call[Attention | AttentionGrad]) -> int:
        """A number for each query in the gradient."""
        backward = isinstance(call.op, AttentionGrad)
        return 4 * prod(call.inputs[0].shape[:3]) if backward else 0

    def launches(
        self,
        call: Call[Attention | AttentionGrad],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel, or two or three of a gradient: that of the query is the first."""
        op, given, terms = call.op, _named(call.op, inputs), _terms()
        if isinstance(op, Attention):
            return [_launch(op, given | dict(zip(_FORWARD[1], outputs)), "result", terms)]
        given["delta"] = scratch(0, "float32", given["lse"].shape)
        results = dict(zip(_BACKWARD[1], outputs))
        if _tiles(terms, given, "k")["WHOLE"]:  # with the keys'
            given["values"] = results.pop("v")
        found = [_launch(op, given | {"result": r}, name, terms) for name, r in results.items()]
        return [k for k in found if k.grid[0]]


def _first_extra(op: Attention | AttentionGrad) -> int:
    return op.first_extra if isinstance(op, AttentionGrad) else len(_FORWARD[0])


def _named(op: Attention | AttentionGrad, inputs: Views) -> dict[str, View]:
    names = _BACKWARD[0] if isinstance(op, AttentionGrad) else _FORWARD[0]
    return dict(zip((*names[: _first_extra(op)], *op.how.extras), inputs, strict=True))


def _terms() -> int:
    """How products are made."""
    device = existing_context()
    if device is not None and device.capability < _TENSOR_CORES:
        return 0
    return 1 if config.dnn.conv.allow_tf32 else 3


def _tiles(terms: int, given: dict[str, View], role: str) -> dict[str, int]:
    """The first form whose tiles fit into shared memory, as macros: see ``attention_tiles.cu``."""
    if not terms:
        return {"SIDE": _SIDE, "ACROSS": _SIDE, "PITCH": _SIDE + 4, "WHOLE": 0, "BLOCKS": 1}
    wide = [given[n].shape[3] for n in ("q", "v")]
    pieces = [-(-w // _PIECE) for w in wide]
    own = pieces[0] + pieces[1] * (role in ("q", "k"))
    found = {"PITCH": -(-min(max(wide), _PIECE) // 16) * 16 + 8}
    forms = _FORMS["result" if role == "result" else "gradient"].get(max(pieces), ())
    for side, across, blocks, kept, whole in (*forms, *_IN_PIECES):
        found |= {"SIDE": side, "ACROSS": across, "KEPT": kept, "WHOLE": whole, "BLOCKS": blocks}
        found |= {"LEFTS": own if kept else 1, "RIGHTS": sum(pieces) if whole else 1}
        short = side > _SIDE and given["q"].shape[2] <= _SIDE
        if not short and _shared_bytes(terms, found) <= most_shared_bytes():
            break
    return found


def _shared_bytes(terms: int, tiles: dict[str, int]) -> int:
    """Of the tiles: parts of numbers, with a factor of each row; and two numbers of each column."""
    if not terms:
        return 0
    line = _PART_BYTES * (2 if terms > 1 else 1) * tiles["PITCH"] + 4
    rest = (_PART_BYTES * 8 if terms == 1 else 0) * (tiles["LEFTS"] + tiles["RIGHTS"])
    rows = tiles["LEFTS"] * tiles["SIDE"] + tiles["RIGHTS"] * tiles["ACROSS"]
    return rows * line + rest + 8 * tiles["ACROSS"]


def _launch(
    op: Attention | AttentionGrad, given: dict[str, View], role: str, terms: int
) -> KernelLaunch:
    """The kernel of a role; its result is ``given["result"]``."""
    (batch, heads, queries, features), (_, groups, keys, _) = given["q"].shape, given["k"].shape
    how, wide = op.how, given["v"].shape[3]
    scale = features**-0.5 if how.scale is None else how.scale
    rows, own = (keys, groups) if _ROLES[role] > 1 else (queries, heads)
    tiles = _tiles(terms, given, role)
    blocks = -(-rows // tiles["SIDE"]) * own * batch
    ends = [_NO_END if end is None else min(end, _NO_END) for end in (how.left, how.right)]
    if "mask" in given:
        given = given | {"mask": given["mask"].broadcast_to((batch, heads, queries, keys))}
    pointers = [given[n].pointer if n in given else 0 for n in (*_POINTERS, *_MORE_POINTERS)]
    steps = [s for n in _STRIDED for s in (given[n].steps[:3] if n in given else (0, 0, 0))]
    steps += given["mask"].steps if "mask" in given else (0, 0, 0, 0)
    parameters = (
        *pointers, batch, heads, groups, queries, keys, *ends, float(scale), float(how.softcap),
        *steps,
    )  # fmt: skip
    source = _source(op, given, role, terms, D=features, E=wide, **tiles)
    shared = _shared_bytes(terms, tiles)
    return KernelLaunch(source, "attention", (blocks,), (_THREADS[terms],), parameters, shared)


def _vector(given: dict[str, View]) -> int:
    """How many features are read at once."""
    read = [given[n] for n in ("q", "k", "v", "dout", "out") if n in given]
    whole = all(v.shape[3] % 4 == 0 and not any(s % 4 for s in v.steps[:3]) for v in read)
    return 4 if whole and all(v.aligned_to(16) for v in read) else 1


def _source(
    op: Attention | AttentionGrad, given: dict[str, View], role: str, terms: int, **sizes: int
) -> str:
    def ctype(name: str, missing: str) -> str:
        return CTYPES[given[name].dtype] if name in given else missing

    mask = 0 if "mask" not in given else 1 if given["mask"].dtype == "bool" else 2
    return specialised(
        "scalar.cuh", "lanes.cuh", "philox.cuh", *(["mma.cuh"] if terms else []),
        "attention_tiles.cu", "attention.cu",
        ROLE=_ROLES[role], **sizes, TERMS=terms, VEC=_vector(given), M=ctype("mask", "bool"),
        KL=ctype("key_lengths", "i32"), QL=ctype("query_lengths", "i32"), MASK=mask,
        DROPS=int("state" in given),
        HAS_KEY_LENGTHS=int("key_lengths" in given),
        HAS_QUERY_LENGTHS=int("query_lengths" in given), CAPPED=int(bool(op.how.softcap)),
        FROM_LAST=int(op.how.bottom_right),
        OF_LSE=int(isinstance(op, AttentionGrad) and op.of_lse),
    )  # fmt: skip


KERNELS: tuple[Row, ...] = (((Attention, AttentionGrad), (AttentionTile(),)),)

"""Softmax along columns that are too long for a block's registers, read once.

The blocks of a cluster keep some neighbouring columns in shared memory. On a Hopper GPU 8 blocks
hold columns of up to 57 thousand elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import KernelLaunch, View, Views
from symdnn.gpu.device.context import most_cluster_blocks, most_shared_bytes
from symdnn.graph.values.strides import merged
from symdnn.ops.core.dtype import work_dtype

__all__ = ["columns_kept"]

#: Bytes of neighbours in a line: of two sectors at least where a multiprocessor holds two blocks.
_LINE_BYTES, _LEAST_LINE_BYTES = 128, 32
#: A multiprocessor's shared memory for two blocks each, less their other needs.
_HALF_SHARED_BYTES = 110 << 10
_THREADS = 512
#: Blocks that keep a large device busy.
_MIN_BLOCKS = 264


@dataclass(frozen=True)
class _Columns:
    """``lead`` groups of ``count`` neighbouring columns of ``length`` elements.

    ``leads`` and ``lines`` are the steps of each operand from one group, and one line, to the next.
    A vector has ``width`` elements.
    """

    lead: int
    length: int
    count: int
    leads: tuple[int, ...]
    lines: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class _Division:
    """Blocks of a cluster, threads that share a line, lines of a block, bytes it keeps."""

    cluster: int
    near: int
    share: int
    nbytes: int


def columns_kept(kind: int, axis: int, views: Views, y: View) -> list[KernelLaunch]:
    """The kernel for a softmax of ``views`` along ``axis``; none where columns are too long, too
    few, or no neighbours in memory. ``kind`` is that of ``softmax.cu``."""
    columns = _columns(axis, (*views, y))
    found = None if columns is None else _division(columns, y.itemsize, 1 + (kind == 2))
    if columns is None or found is None:
        return []
    tiles = -(-columns.count // (found.near * columns.width))
    macros = {
        "T": CTYPES[y.dtype], "W": CTYPES[work_dtype(y.dtype)], "KIND": kind, "V": columns.width,
        "GX": found.near, "SHARE": found.share, "THREADS": _THREADS, "CLUSTER": found.cluster,
        "RESIDENT": 2 if found.nbytes <= _HALF_SHARED_BYTES else 1,
    }  # fmt: skip
    source = specialised(
        "scalar.cuh", "reduce.cuh", "lanes.cuh", "cluster.cu", "softmax_kept.cu",
        **macros,
    )  # fmt: skip
    x, dy = (*views, views[0])[:2]
    parameters: list[Any] = [x.pointer, dy.pointer, y.pointer, columns.length, columns.count, tiles]
    for steps in (columns.leads, columns.lines):
        parameters += [steps[0], steps[len(views) - 1], steps[-1]]
    grid = (columns.lead * tiles * found.cluster,)
    return [
        KernelLaunch(source, "softmax_kept", grid, (_THREADS,), tuple(parameters), found.nbytes)
    ]


def _columns(axis: int, views: Views) -> _Columns | None:
    """The columns, whose neighbours are neighbours in memory in all operands."""
    shape, steps = views[0].shape, [v.steps for v in views]
    others = [d for d in range(len(shape)) if d != axis]
    others.sort(key=lambda d: -steps[-1][d])
    sizes, found = merged([shape[d] for d in others], [[s[d] for d in others] for s in steps])
    if len(sizes) > 2 or any(s[-1] != 1 for s in found):
        return None
    lines = tuple(s[axis] for s in steps)
    leads = tuple(s[0] if len(sizes) > 1 else 0 for s in found)
    width = 16 // views[0].itemsize
    while width > 1 and not all(v.aligned_to(width * v.itemsize) for v in views):
        width //= 2
    width = gcd(width, sizes[-1], *lines, *leads)
    return _Columns(prod(sizes[:-1]), shape[axis], sizes[-1], leads, lines, width)


def _division(columns: _Columns, itemsize: int, arrays: int) -> _Division | None:
    """Lines as wide as possible with two blocks on a multiprocessor, else with one."""
    vector = columns.width * itemsize
    for most in (_HALF_SHARED_BYTES, most_shared_bytes()):
        width = _LINE_BYTES
        while width >= _LEAST_LINE_BYTES:
            near = max(1, min(width // vector, 32))
            found = _smallest(columns.length, near, vector * arrays, most)
            if found is not None:
                groups = columns.lead * -(-columns.count // (near * columns.width))
                return found if groups * found.cluster >= _MIN_BLOCKS else None
            width //= 2
    return None


def _smallest(length: int, near: int, nbytes: int, most: int) -> _Division | None:
    """The smallest cluster whose blocks have room."""
    deep, cluster = _THREADS // near, 1
    while cluster <= most_cluster_blocks():
        share = -(-length // cluster)
        kept = -(-share // deep) * _THREADS * nbytes
        if kept <= most:
            return _Division(cluster, near, share, kept)
        cluster *= 2
    return None

"""Batch normalisation in NCHW by one kernel that reads memory once.

A block, or a cluster of up to 8 blocks, keeps a channel's elements in shared memory. It computes
their mean and variance (or the gradient's two sums) while it loads them, then the result from
shared memory. On a Hopper GPU 8 blocks hold 1.8 MB: a channel of 64 samples of 84 x 84 in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import KernelLaunch, View, Views
from symdnn.gpu.device.context import most_cluster_blocks, most_shared_bytes
from symdnn.ops.core.dtype import work_dtype

__all__ = ["Planes", "planes_gradient", "planes_norm", "planes_of"]

#: Half of a multiprocessor's shared memory, less a block's other needs.
_HALF_SHARED_BYTES = 112 << 10
#: Smaller planes, and fewer blocks, are slower by this kernel.
_MIN_PLANE_BYTES, _MIN_BLOCKS = 64, 32
#: Vectors of a thread, if there are so many; threads of a block with half of the shared memory;
#: passes over a plane.
_THREAD_VECTORS, _HALF_THREADS, _MAX_PASSES = 4, 512, 8


@dataclass(frozen=True)
class Planes:
    """The division of a channel among blocks and threads.

    A channel has ``samples`` planes of ``vectors`` vectors of ``width`` elements. ``cluster``
    blocks have ``per_block`` each. A plane takes ``passes`` passes of ``active`` threads,
    or one pass takes ``per_pass`` planes. A block has ``nbytes`` of shared memory.
    """

    samples: int
    channels: int
    vectors: int
    width: int
    cluster: int
    per_block: int
    passes: int
    per_pass: int
    nbytes: int

    @property
    def active(self) -> int:
        """Threads that have a vector in each pass but the last."""
        return (
            self.vectors * self.per_pass if self.per_pass > 1 else -(-self.vectors // self.passes)
        )

    @property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return -(-self.active // 32) * 32

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor, which share its registers."""
        return max(1, min(2 * _HALF_SHARED_BYTES // self.nbytes, 1024 // self.threads))


def planes_of(x: View, axes: Sequence[int], arrays: int, alignment: int) -> Planes | None:
    """The division for ``arrays`` arrays like ``x`` in shared memory; None if they do not fit."""
    if len(x.shape) < 3 or tuple(axes) != (0, *range(2, len(x.shape))) or not x.contiguous:
        return None
    samples, channels, plane = x.shape[0], x.shape[1], prod(x.shape[2:])
    width = gcd(plane, alignment // x.itemsize)
    if plane * x.itemsize < _MIN_PLANE_BYTES or width * x.itemsize < 4 or x.size >= 2**31:
        return None
    vectors, most_blocks, most_bytes = (plane // width, most_cluster_blocks(), most_shared_bytes())
    for cluster in (1, 2, 4, 8):
        per_block = -(-samples // cluster)
        if cluster > most_blocks or (cluster > 1 and cluster > samples):
            return None
        most = (
            _HALF_THREADS if per_block * plane * x.itemsize * arrays <= _HALF_SHARED_BYTES else 1024
        )
        passes = -(-vectors // most)
        if passes > _MAX_PASSES:
            return None
        per_pass = (
            1 if passes > 1 else max(1, min(most // vectors, -(-per_block // _THREAD_VECTORS)))
        )
        kept = -(-vectors // passes) * passes * -(-per_block // per_pass) * per_pass
        nbytes = kept * width * x.itemsize * arrays
        last = cluster == most_blocks or 2 * cluster > samples
        if nbytes > (most_bytes if last else _HALF_SHARED_BYTES):
            continue
        if channels * cluster < _MIN_BLOCKS and not last:
            continue
        return Planes(
            samples, channels, vectors, width, cluster, per_block, passes, per_pass, nbytes
        )
    return None


def planes_norm(
    x: View, gamma: View, beta: View, axes: Sequence[int], epsilon: float,
    outputs: Views, running: Views, factor: View | float,
) -> list[KernelLaunch] | None:  # fmt: skip
    """Launches for (y, mean, invstd, new running values); None if shared memory is too small."""
    y, *statistics = outputs
    each = (gamma, beta, *statistics, *running)
    planes = _planes(x, axes, (x, y), each)
    if planes is None:
        return None
    count = float(planes.samples * planes.vectors * planes.width)
    unbiased = count / max(count - 1, 1.0)
    given = isinstance(factor, View)
    pointers: list[Any] = [v.pointer for v in statistics]
    old: list[Any] = [v.pointer for v in running] or [0, 0]
    parameters = [
        x.pointer, 0, y.pointer, gamma.pointer, beta.pointer, *pointers[:2], 0, 0, *old,
        *(pointers[2:] or [0, 0]), factor.pointer if isinstance(factor, View) else 0,
        0.0 if given else float(factor), float(epsilon), unbiased,  # type: ignore[arg-type]
    ]  # fmt: skip
    return _launch(planes, x.dtype, 0, bool(running), parameters)


def planes_gradient(
    x: View, dy: View, gamma: View, mean: View, invstd: View, axes: Sequence[int],
    outputs: Views,
) -> list[KernelLaunch] | None:  # fmt: skip
    """Launches for (dx, dgamma, dbeta); None if shared memory is too small."""
    dx, dgamma, dbeta = outputs
    planes = _planes(x, axes, (x, dy, dx), (gamma, mean, invstd, dgamma, dbeta), 2)
    if planes is None:
        return None
    parameters = [
        x.pointer, dy.pointer, dx.pointer, gamma.pointer, 0, mean.pointer, invstd.pointer,
        dgamma.pointer, dbeta.pointer, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0,
    ]  # fmt: skip
    return _launch(planes, x.dtype, 1, False, parameters)


def _planes(
    x: View, axes: Sequence[int], whole: Views, each: Views, arrays: int = 1
) -> Planes | None:
    """The division, if arrays (``whole``) and values per channel (``each``) are contiguous."""
    if any(v.shape != x.shape or v.dtype != x.dtype or not v.contiguous for v in whole):
        return None
    work = work_dtype(x.dtype)
    kept = prod(n for i, n in enumerate(x.shape) if i not in axes)
    if any(v.size != kept or v.dtype != work or not v.contiguous for v in each):
        return None
    alignment = min(next(a for a in (16, 8, 4, 2) if v.aligned_to(a)) for v in whole)
    return planes_of(x, axes, arrays, alignment)


def _launch(
    planes: Planes, dtype: str, gradient: int, running: bool, parameters: Sequence[Any]
) -> list[KernelLaunch]:
    macros = {
        "T": CTYPES[dtype], "W": CTYPES[work_dtype(dtype)], "V": planes.width,
        "CLUSTER": planes.cluster, "THREADS": planes.threads, "RESIDENT": planes.resident,
        "GRADIENT": gradient, "RUNNING": int(running), "PASSES": planes.passes,
        "BESIDE": planes.per_pass, "SHARE": planes.per_block,
    }  # fmt: skip
    source = specialised(
        "scalar.cuh", "reduce.cuh", "copies.cuh", "cluster.cu", "norm_planes.cu", **macros
    )
    sizes = (planes.samples, planes.channels, planes.vectors, planes.active)
    grid = (planes.channels * planes.cluster,)
    return [
        KernelLaunch(
            source, "norm_planes", grid, (planes.threads,), (*parameters, *sizes), planes.nbytes
        )
    ]

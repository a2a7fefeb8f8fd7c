"""All kernels of the CPU, in order of preference, entered into the kernel table."""

from __future__ import annotations

from functools import cache

from symdnn.cpu import prefer_generated
from symdnn.cpu.attention import attention
from symdnn.cpu.collective import kernels as collective
from symdnn.cpu.conv import conv_moments, depthwise, direct, winograd, winograd_grad
from symdnn.cpu.elementwise import (
    boxes,
    compress,
    copies,
    counted,
    elementwise,
    gather,
    padding,
    placed,
    random_draws,
    reorder,
    scatter,
    sets,
)
from symdnn.cpu.fourier import pocketfft
from symdnn.cpu.gemm import few_results, gemm, small_stacks, stacked_vectors
from symdnn.cpu.lapack import kernels as lapack
from symdnn.cpu.lapack import spectra
from symdnn.cpu.nest import kernels as nest
from symdnn.cpu.nest import line_kernels, norms, unique
from symdnn.cpu.onednn import kernels as onednn
from symdnn.cpu.pool import lrn, pool, pool_nhwc
from symdnn.cpu.reduce import batch_norm, ctc, filters, pixel_sums, softmax
from symdnn.cpu.reference import kernels as reference
from symdnn.cpu.rnn import recurrent
from symdnn.cpu.sparse import products as sparse
from symdnn.graph.kernel import Row, enter, register_default_kernel

__all__ = ["KERNELS", "load"]

KERNELS: tuple[Row, ...] = (
    # Compiled kernels for ops of oneDNN, where they are faster.
    *depthwise.KERNELS,
    *winograd.KERNELS,
    *winograd_grad.KERNELS,
    *direct.KERNELS,
    *pool_nhwc.KERNELS,
    *prefer_generated.KERNELS,
    *few_results.KERNELS,
    *small_stacks.KERNELS,
    *stacked_vectors.KERNELS,
    *gemm.KERNELS,
    *onednn.KERNELS,
    # Compiled kernels for neutral ops.
    *elementwise.KERNELS,
    *pool.KERNELS,
    *nest.KERNELS,
    *line_kernels.KERNELS,
    *unique.KERNELS,
    *norms.KERNELS,
    *batch_norm.KERNELS,
    *softmax.KERNELS,
    *ctc.KERNELS,
    *recurrent.KERNELS,
    *filters.KERNELS,
    *pixel_sums.KERNELS,
    *scatter.KERNELS,
    *random_draws.KERNELS,
    *attention.KERNELS,
    *copies.KERNELS,
    *padding.KERNELS,
    *reorder.KERNELS,
    *placed.KERNELS,
    *gather.KERNELS,
    *compress.KERNELS,
    *counted.KERNELS,
    *sets.KERNELS,
    *boxes.KERNELS,
    *lrn.KERNELS,
    *conv_moments.KERNELS,
    *pocketfft.KERNELS,
    *sparse.KERNELS,
    *lapack.KERNELS,
    *spectra.KERNELS,
    *collective.KERNELS,
    # NumPy's, for calls that are too small to be worth compiling.
    *reference.KERNELS,
)


@cache
def load() -> None:
    """Enter the kernels into the table, once."""
    enter("cpu", KERNELS)
    register_default_kernel("cpu", reference.ReferenceKernel())

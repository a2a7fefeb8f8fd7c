"""Fourier transforms by SciPy's pocketfft, in threads, written straight into the plan's buffers.

SciPy's public functions return arrays of their own. The C++ module under them takes ``out=``, for
any strides. It is no public name: a SciPy without it has the public functions, and a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from symdnn.cpu.fourier.short_lines import ShortLinesKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row, Traits
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.fourier.transform import FFT, InverseRealFFT, RealFFT, Transform

#: Elements for which another thread pays.
_ELEMENTS_PER_THREAD = 1 << 14
_FACTORS = {"none": 0, "ortho": 1, "full": 2}


@cache
def module() -> Any:
    """``pypocketfft``; None where SciPy does not have it under this name (it does from 1.4 on)."""
    try:
        from scipy.fft._pocketfft import pypocketfft
    except ImportError:
        return None
    return pypocketfft


class PocketfftKernel(Kernel[Transform]):
    """A transform by ``scipy.fft``; several lines at a time are the lanes of a vector."""

    name = "scipy.pocketfft"
    traits = Traits("pocketfft")

    def refuses(self, call: Call[Transform]) -> str | None:
        """Needs elements, and pypocketfft."""
        if call.has_sizes and not prod(call.outputs[0].shape):
            return "there are no elements"
        return None if module() is not None else "SciPy has no scipy.fft._pocketfft.pypocketfft"

    def bind(self, call: Call[Transform]) -> Launch[Array]:
        """The function with its axes and factor."""
        (y,) = call.outputs
        work = max(prod(call.inputs[0].shape), prod(y.shape))
        run = _function(call.op, y.shape)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            # The number of threads is asked for at each call, since it may be limited.
            run(inputs[0], outputs[0], threads.threads(work, _ELEMENTS_PER_THREAD))

        return launch


def _function(op: Transform, shape: Sequence[int]) -> Callable[[Array, Array, int], Any]:
    """``run(x, out, threads)`` of an op with a result of this shape."""
    fft, axes, factor = module(), op.axes, _FACTORS[op.norm]
    if isinstance(op, FFT):
        forward = not op.inverse
        return lambda x, out, count: fft.c2c(x, axes, forward, factor, out, count)
    if isinstance(op, RealFFT):
        return lambda x, out, count: fft.r2c(x, axes, True, factor, out, count)
    size = shape[axes[-1]]

    def inverse(x: Array, out: Array, count: int) -> None:
        fft.c2r(x, axes, size, False, factor, out, count)

    return inverse


KERNELS: tuple[Row, ...] = (
    ((FFT, RealFFT, InverseRealFFT), (ShortLinesKernel(), PocketfftKernel())),
)

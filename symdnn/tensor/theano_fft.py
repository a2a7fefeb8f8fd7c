"""``theano.tensor.fft``: transforms of batches, with real and imaginary parts in a last axis."""

from symdnn.ops.fourier.theano_fft import irfft, rfft

__all__ = ["cuirfft", "curfft", "irfft", "rfft"]

curfft, cuirfft = rfft, irfft  # as theano.gpuarray.fft has them

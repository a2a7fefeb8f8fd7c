from __future__ import annotations

import numpy as np
import scipy.signal

from symdnn.ops.elementwise import complexes as C
from symdnn.ops.fourier import convolve as V
from symdnn.ops.fourier import functions as F
from symdnn.ops.fourier import theano_fft as TF
from symdnn.ops.fourier.transform import FFT, InverseRealFFT, RealFFT
from tests.op_table.arithmetic import parts, parts_numpy
from tests.op_table.record import OpCase, integers, normal

X, Y = normal(3, 6), normal(3, 6)
ODD = normal(2, 5, 3)


def complex_numbers(*shape, dtype="complex128"):
    return lambda rng: (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def both(name, **words):
    """A function of complex numbers and NumPy's, of real and imaginary parts."""
    ours, numpys = getattr(F, name), getattr(np.fft, name)
    return parts(lambda z: ours(z, **words)), parts_numpy(lambda z: numpys(z, **words))


def real_part_of(name, **words):
    """``(real, imag)`` of a function of real numbers, as one real tensor."""
    ours, numpys = getattr(F, name), getattr(np.fft, name)

    def build(x):
        z = ours(x, **words)
        return C.real(z) + 2 * C.imag(z)

    return build, lambda x: (lambda z: z.real + 2 * z.imag)(numpys(x, **words))


def of_complex(id, name, draws=(X, Y), **words):
    ops = (FFT,) if name in ("fft", "ifft", "fftn", "ifftn", "fft2", "ifft2") else (InverseRealFFT,)
    return OpCase(id, ops, both(name, **words)[0], draws, both(name, **words)[1])


def of_real(id, name, draw=X, **words):
    build, expected = real_part_of(name, **words)
    ops = (RealFFT,) if "rfft" in name or name == "ihfft" else (FFT,)
    return OpCase(id, ops, build, (draw,), expected)


def back(id, name, draws=(X, Y), **words):
    ours, numpys = getattr(F, name), getattr(np.fft, name)
    return OpCase(
        id, (InverseRealFFT,), lambda a, b: ours(C.complex(a, b), **words), draws,
        lambda a, b: numpys(a + 1j * b, **words),
    )  # fmt: skip


def pairs(z):
    return np.stack([z.real, z.imag], axis=-1)


def convolved(id, draws, ops=(RealFFT,), **words):
    name = id.partition("_")[0]
    ours, scipys = getattr(V, name), getattr(scipy.signal, name)
    return OpCase(
        id, ops, lambda x, y: ours(x, y, **words), draws, lambda x, y: scipys(x, y, **words),
    )  # fmt: skip


def dtype_of(id, ops, name, draw, wanted):
    ours, numpys = getattr(F, name), getattr(np.fft, name)
    return OpCase(
        id, ops, ours, (draw,), lambda x: numpys(x.astype("float64")).astype(wanted),
        grad=False, rtol=1e-5,
    )  # fmt: skip


CASES = [
    of_complex("fft", "fft"),
    of_complex("fft_first_axis_ortho", "fft", axis=0, norm="ortho"),
    of_complex("fft_padded", "fft", n=9),
    of_complex("fft_cropped_forward", "fft", n=4, norm="forward"),
    of_complex("ifft", "ifft"),
    of_complex("ifft_forward", "ifft", norm="forward"),
    of_complex("fftn", "fftn", (ODD, normal(2, 5, 3)), axes=(2, 0)),
    of_complex("ifftn_sizes", "ifftn", (ODD, normal(2, 5, 3)), s=(4, 4), axes=(1, 0)),
    of_complex("fft2_ortho", "fft2", (ODD, normal(2, 5, 3)), norm="ortho"),
    of_complex("ifft2", "ifft2", (ODD, normal(2, 5, 3))),
    of_real("fft_of_real", "fft"),
    of_real("fftn_of_real", "fftn", ODD),
    of_real("rfft", "rfft"),
    of_real("rfft_odd", "rfft", normal(5)),
    of_real("rfft_of_one", "rfft", normal(3, 1)),
    of_real("rfft_padded_ortho", "rfft", n=11, norm="ortho"),
    of_real("rfft_cropped_first_axis", "rfft", n=2, axis=0, norm="forward"),
    of_real("rfftn", "rfftn", ODD),
    of_real("rfftn_last_axis_first", "rfftn", ODD, axes=(1, 0), norm="ortho"),
    of_real("rfft2_sizes", "rfft2", ODD, s=(3, 8)),
    of_real("ihfft", "ihfft", norm="ortho"),
    back("irfft", "irfft"),
    back("irfft_odd", "irfft", n=7),
    back("irfft_cropped_first_axis", "irfft", n=3, axis=0, norm="ortho"),
    back("irfft_of_one", "irfft", n=1),
    back("irfftn", "irfftn", (ODD, normal(2, 5, 3))),
    back("irfftn_last_axis_first", "irfftn", (ODD, normal(2, 5, 3)), s=(4, 3), axes=(2, 0)),
    back("irfft2_forward", "irfft2", (ODD, normal(2, 5, 3)), norm="forward"),
    back("hfft", "hfft", n=9),
    of_real("fftn_of_four_axes", "fftn", normal(2, 3, 2, 3)),
    of_real("rfftn_of_four_axes", "rfftn", normal(2, 3, 2, 3)),
    OpCase("fft_static", (FFT,), lambda x: C.real(F.fft(x)), (X,), lambda x: np.fft.fft(x).real,
           static=((3, 6),)),
    OpCase("irfft_static", (InverseRealFFT,), F.irfft, (complex_numbers(2, 4),), np.fft.irfft,
           static=((2, 4),), grad=False),
    OpCase("irfft_of_real", (InverseRealFFT,), F.irfft, (X,), np.fft.irfft),
    OpCase("fft_symbolic_size", (FFT,), lambda x, y: C.real(F.fft(x, n=y.shape[0])),
           (X, normal(8)), lambda x, y: np.fft.fft(x, n=8).real),
    OpCase("fft_symbolic_smaller_size", (FFT,), lambda x, y: C.real(F.fft(x, n=y.shape[0])),
           (X, normal(4)), lambda x, y: np.fft.fft(x, n=4).real),
    OpCase("irfft_symbolic_size", (InverseRealFFT,),
           lambda x, y: F.irfft(F.rfft(x), n=y.shape[0]), (X, normal(7)),
           lambda x, y: np.fft.irfft(np.fft.rfft(x), n=7)),
    dtype_of("fft_complex64", (FFT,), "fft", normal(4, 8, dtype="float32"), "complex64"),
    dtype_of("rfft_float16", (RealFFT,), "rfft", normal(4, 8, dtype="float16"), "complex64"),
    dtype_of("rfft_int", (RealFFT,), "rfft", integers(-9, 9, 6, dtype="int8"), "complex64"),
    OpCase("fft_of_complex64", (FFT,), F.fft, (complex_numbers(5, dtype="complex64"),),
           lambda z: np.fft.fft(z.astype("complex128")).astype("complex64"), grad=False, rtol=1e-5),
    OpCase("irfft_complex64", (InverseRealFFT,), F.irfft,
           (complex_numbers(2, 5, dtype="complex64"),),
           lambda z: np.fft.irfft(z.astype("complex128")).astype("float32"), grad=False, rtol=1e-5),
    OpCase("theano_rfft", (RealFFT,), TF.rfft, (ODD,),
           lambda x: pairs(np.fft.rfftn(x, axes=(1, 2)))),
    OpCase("theano_rfft_ortho", (RealFFT,), lambda x: TF.rfft(x, "ortho"), (X,),
           lambda x: pairs(np.fft.rfft(x, norm="ortho"))),
    OpCase("theano_irfft", (InverseRealFFT,), TF.irfft, (normal(2, 5, 4, 2),),
           lambda p: np.fft.irfftn(p[..., 0] + 1j * p[..., 1], axes=(1, 2))),
    OpCase("theano_irfft_odd_no_norm", (InverseRealFFT,),
           lambda p: TF.irfft(p, "no_norm", is_odd=True), (normal(2, 4, 2),),
           lambda p: 7 * np.fft.irfft(p[..., 0] + 1j * p[..., 1], 7)),
    convolved("fftconvolve", (normal(17), normal(5))),
    convolved("fftconvolve_same", (normal(3, 9), normal(4, 5)), mode="same"),
    convolved("fftconvolve_valid", (normal(2, 4), normal(2, 9)), mode="valid", axes=1),
    OpCase("fftconvolve_complex", (FFT,),
           lambda a, b: (lambda z: C.real(z) + 2 * C.imag(z))(
               V.fftconvolve(C.complex(a, 2 * a), C.complex(b, -b))),
           (normal(6), normal(4)),
           lambda a, b: (lambda z: z.real + 2 * z.imag)(np.convolve(a + 2j * a, b - 1j * b))),
    convolved("oaconvolve", (normal(100), normal(5)), ops=(V.BlockSize,)),
    convolved("oaconvolve_of_planes", (normal(2, 40, 33), normal(2, 3, 4)), axes=(1, 2),
              mode="same", ops=(V.BlockSize,)),
    convolved("oaconvolve_of_a_short_one", (normal(4), normal(9)), ops=(V.BlockSize,)),
    OpCase("next_fast_len", (V.NextFastLen,),
           lambda x: x.sum() * V.next_fast_len(x.shape[0]), (normal(13),),
           lambda x: x.sum() * 14),
    OpCase("fft_no_lines", (FFT,), F.fft, (normal(0, 4),), np.fft.fft, grad=False),
    OpCase("rfft_no_lines", (RealFFT,), F.rfft, (normal(0, 4),), np.fft.rfft, grad=False),
    OpCase("irfft_no_lines", (InverseRealFFT,), F.irfft, (complex_numbers(0, 3),), np.fft.irfft,
           grad=False),
]  # fmt: skip

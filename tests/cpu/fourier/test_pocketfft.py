"""Transforms by SciPy's pocketfft: into the plan's buffers, and in place at the last use."""

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.cpu.fourier import pocketfft
from symdnn.ops.fourier.transform import FFT

RNG = np.random.default_rng(3)
Z = RNG.standard_normal((5, 6)) + 1j * RNG.standard_normal((5, 6))


def test_a_transform_runs_by_pocketfft_into_the_plans_buffer(monkeypatch):
    z = T.zmatrix("z")
    f = symdnn.function([z], T.fft.ifft(T.fft.fft(z) * 2), mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(f(Z), 2 * Z, rtol=1e-12)
    assert str(f.lowering_report()).count("scipy.pocketfft") == 2
    monkeypatch.setattr(pocketfft, "module", lambda: None)  # SciPy under another name
    g = symdnn.function([z], T.fft.fft(z), mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(g(Z), np.fft.fft(Z), rtol=1e-12)
    assert "scipy.pocketfft" not in g.lowering_report().kernels()


def test_a_transform_overwrites_its_operand_at_the_last_use():
    z = T.zmatrix("z")
    f = symdnn.function([z], abs(T.fft.fft(z * 2)), mode=symdnn.Mode(target="cpu"))
    f(Z)
    (plan,) = f.plans()
    (node,) = (n for n in f.fgraph.apply_nodes if isinstance(n.op, FFT))
    assert node in {n for n, taken in plan.memory.in_place.items() if taken}

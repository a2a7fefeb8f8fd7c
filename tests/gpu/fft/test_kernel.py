"""cuFFT's kernel on a cuFFT of NumPy: every transform of the op table after its lowering."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.fft import plan as cufft_plan
from symdnn.gpu.fft.kernel import CufftKernel
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.ops.fourier.transform import FFT, InverseRealFFT, RealFFT, Transform
from tests.gpu import emulator
from tests.gpu.fake_cufft import FakeCufft
from tests.gpu.table import concrete
from tests.op_table import fourier
from tests.opt.lowering import rewritten
from tests.test_op_table import draw, outputs, variables

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="the emulator needs g++")
RNG = np.random.default_rng(8)


@pytest.fixture
def cufft(monkeypatch: Any) -> FakeCufft:
    fake = FakeCufft()
    monkeypatch.setattr(cufft_plan, "bindings", lambda: fake)
    monkeypatch.setattr(cufft_plan, "_plans", type(cufft_plan._plans)())
    return fake


def complex_normal(*shape: int, dtype: str = "complex128") -> Any:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def test_every_record_of_the_table_by_cufft(cufft: FakeCufft) -> None:
    kernel, tried = CufftKernel(), 0
    for case in fourier.CASES:
        arrays = draw(case)
        vs = variables(case, arrays)
        fgraph = rewritten(vs, outputs(case, vs))
        values = dict(zip(fgraph.inputs, arrays))
        for node in toposort(fgraph.outputs):
            if not isinstance(node.op, Transform):
                continue
            given = [np.array(v, order="C") for v in evaluate(node.inputs, values)]
            call = concrete(node.op, given, [v.type for v in node.inputs])
            reason = kernel.refuses(call)
            assert reason is None, (case.id, reason)
            kept = [a.copy() for a in given]
            (found,), _ = emulator.run(kernel, call, given)
            tolerance = 1e-5 if call.outputs[0].dtype in ("complex64", "float32") else 1e-11
            wanted = node.op.reference(*given)
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
            assert all(map(np.array_equal, given, kept)), "an operand was overwritten"
            tried += 1
    assert tried > 30
    assert {kind for kind, _, _ in cufft.made} == {"C2C", "Z2Z", "R2C", "D2Z", "C2R", "Z2D"}


def test_plans_are_kept_by_what_they_compute_and_destroyed(cufft: FakeCufft, monkeypatch: Any):
    z = complex_normal(3, 8)
    for op in (FFT((1,)), FFT((1,), inverse=True), FFT((1,))):
        emulator.run(CufftKernel(), concrete(op, [z]), [z])
    assert cufft.made == [("Z2Z", (8,), 3)]
    monkeypatch.setattr(cufft_plan, "_MOST_PLANS", 2)
    for n in (4, 5, 6):
        x = RNG.standard_normal((2, n))
        emulator.run(CufftKernel(), concrete(RealFFT((0, 1)), [x]), [x])
    assert len(cufft.live) == 2


def test_three_axes_are_one_call(cufft: FakeCufft) -> None:
    z = complex_normal(2, 3, 4, 5, dtype="complex64")
    (found,), _ = emulator.run(CufftKernel(), concrete(FFT((1, 2, 3)), [z]), [z])
    np.testing.assert_allclose(found, np.fft.fftn(z, axes=(1, 2, 3)), rtol=1e-4, atol=1e-4)
    assert cufft.made == [("C2C", (3, 4, 5), 2)]


def test_it_refuses_what_the_rewrites_change() -> None:
    kernel, z, x = CufftKernel(), complex_normal(2, 3, 4), RNG.standard_normal((2, 3))
    size = np.int64(4)
    for op, given in (
        (FFT((2,), "full"), [z]), (FFT((0,)), [z]), (FFT((1,)), [x]), (FFT((2, 1)), [z]),
        (InverseRealFFT((0, 2), size=6), [z, np.int64(6)]), (RealFFT((0, 1), "ortho"), [x]),
    ):  # fmt: skip
        assert "cuFFT takes" in str(kernel.refuses(concrete(op, given))), op
    assert kernel.refuses(concrete(InverseRealFFT((1,), size=4), [z[:, :, 0], size])) is None


def test_without_the_bindings_it_says_what_to_install(monkeypatch: Any) -> None:
    cufft_plan.problem.cache_clear()

    def missing() -> ModuleType:
        return importlib.import_module("symdnn.no_such_module")

    monkeypatch.setattr(cufft_plan, "bindings", missing)
    assert "Install symdnn[cuda]" in str(cufft_plan.problem())
    cufft_plan.problem.cache_clear()


def test_a_described_gpu_plans_transforms_for_cufft() -> None:
    x = T.fmatrix("x")
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x], T.fft.irfft(T.fft.rfft(x, axis=0), axis=0), mode=mode)
    rows = [r for r in f.lowering_report().rows if "FFT" in str(r)]
    assert len(rows) == 2
    assert all("cuda0:sm_90" in str(r) for r in rows), rows


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
def test_transforms_on_a_device_and_in_its_graphs() -> None:
    """Three calls: eager, recorded, replayed. Other sizes and addresses in between."""
    if why := cufft_plan.problem():
        pytest.skip(why)
    x = T.fmatrix("x")
    z = T.fft.rfft2(x, norm="ortho")
    cost = (abs(z) ** 2).sum()
    full = T.fft.fft(T.fft.ifftshift(x), axis=0)
    outs = [z, T.fft.irfft2(z * (1 + 2j), s=x.shape), full, symdnn.grad(cost, x)]
    with symdnn.config.change_flags(device="cuda"):
        f = symdnn.function([x], outs)
    for shape in ((64, 96), (64, 96), (31, 45), (64, 96), (64, 96)):
        data = RNG.standard_normal(shape).astype("float32")
        found = f(data)
        half = np.fft.rfft2(data, norm="ortho")
        shifted = np.fft.fft(np.fft.ifftshift(data), axis=0)
        back = np.fft.irfft2(half * (1 + 2j), s=shape)
        wanted = [half, back, shifted, evaluate([outs[3]], {x: data})[0]]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-3, atol=1e-3)
    assert "cufft" in f.lowering_report().kernels()

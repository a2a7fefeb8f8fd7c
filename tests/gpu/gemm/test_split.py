"""float32 products by six of bfloat16: the split, whole GEMMs in an emulator, their choice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu.binding import libcublaslt
from symdnn.gpu.gemm import bench
from symdnn.gpu.gemm import choice as gemm_choice
from symdnn.gpu.gemm.choice import GemmChoice
from symdnn.gpu.gemm.matmul import MatmulKernel
from symdnn.gpu.gemm.plan import WORKSPACE_BYTES, GemmPlan, GemmSignature, Matrix, Pointers
from symdnn.gpu.gemm.split import Form, SplitGemm, chunks_of, room_bytes, split_ways
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.linalg.dot import Dot
from tests.gpu.emulator import AVAILABLE
from tests.gpu.gemm.computing_cublaslt import ComputingCublasLt, GemmHostEnv

needs_gpp = pytest.mark.skipif(not AVAILABLE, reason="needs g++")
BF16 = numpy_dtype("bfloat16")


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ComputingCublasLt()
    monkeypatch.setattr(libcublaslt, "library", lambda: made)
    gemm_choice.forget()
    yield made
    gemm_choice.forget()


def signature(
    a: Any, b: Any, turned: tuple[bool, bool] = (False, False), **more: Any
) -> GemmSignature:
    """``op(A) op(B)`` of column-major stacks; ``a`` is (stack, rows, terms), ``b`` by columns."""
    (stack, rows, terms), columns = a.shape, b.shape[2]
    left = Matrix(*((terms, rows) if turned[0] else (rows, terms)), terms if turned[0] else rows,
                  turned[0], rows * terms if stack > 1 else 0)  # fmt: skip
    right = Matrix(*((columns, terms) if turned[1] else (terms, columns)),
                   columns if turned[1] else terms, turned[1],
                   terms * columns if b.shape[0] > 1 else 0)  # fmt: skip
    d = Matrix(rows, columns, rows, False, rows * columns)
    return GemmSignature("float32", "float32", "float32", left, right, d, batch=stack, **more)


def in_memory(x: Any, turned: bool) -> Any:
    """The numbers of a stack of column-major matrices, or of their transposes."""
    return np.ascontiguousarray(x if turned else np.swapaxes(x, 1, 2))


def multiplied(
    lt: Any, a: Any, b: Any, form: Form = Form.IN_TURN, turned: tuple[bool, bool] = (False, False),
    start: Any = None, factors: tuple[float, float] = (1.0, 0.0), most: int = 1 << 30,
    bias: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """The product by the split operands."""
    s = signature(a, b, turned, **more)
    way = SplitGemm(s, form, most)
    env = GemmHostEnv(way.workspace_bytes)
    left, right = in_memory(a, turned[0]), in_memory(b, not turned[1])
    right = np.ascontiguousarray(np.swapaxes(b, 1, 2) if not turned[1] else b)
    shape = (a.shape[0], b.shape[2], a.shape[1])
    d = np.full(shape, np.nan, "f4") if start is None else np.swapaxes(start, 1, 2).copy()
    at = Pointers(
        left.ctypes.data, right.ctypes.data, d.ctypes.data,
        bias=0 if bias is None else bias.ctypes.data,
    )  # fmt: skip
    way.enqueue(env, at, factors)
    return np.swapaxes(d, 1, 2)


def split_in_numpy(x: Any) -> tuple[Any, Any, Any]:
    """The first 8 digits of each float32 number, of what is left, and the rest: as float32."""
    high = (x.view("u4") & np.uint32(0xFFFF0000)).view("f4")
    middle = ((x - high).view("u4") & np.uint32(0xFFFF0000)).view("f4")
    return high, middle, x - high - middle


def test_three_numbers_of_16_bits_are_one_of_32(rng: Any) -> None:
    x = (rng.standard_normal(10000) * 10.0 ** rng.uniform(-25, 30, 10000)).astype("f4")
    parts = split_in_numpy(x)
    for part in parts:
        np.testing.assert_array_equal(part.astype(BF16).astype("f4"), part)
        assert ((np.sign(part) == np.sign(x)) | (part == 0)).all()
    np.testing.assert_array_equal(sum(p.astype("f8") for p in parts), x.astype("f8"))


def test_six_products_are_one_of_float32(rng: Any) -> None:
    """The three products that are left out are below float32's rounding."""
    x, y = (rng.standard_normal(10000).astype("f4") for _ in range(2))
    (a, b, c), (d, e, f) = (tuple(p.astype("f8") for p in split_in_numpy(v)) for v in (x, y))
    found = a * d + a * e + b * d + b * e + a * f + c * d
    error = np.abs(found / (x.astype("f8") * y) - 1)
    assert error.max() < 2.0**-21
    assert error.mean() < 2.0**-24


@needs_gpp
@pytest.mark.parametrize("turned", [(t, u) for t in (False, True) for u in (False, True)])
@pytest.mark.parametrize("stack", [1, 2])
def test_numbers_of_all_layouts(lt: Any, rng: Any, turned: Any, stack: int) -> None:
    a = rng.standard_normal((stack, 70, 90)).astype("f4")
    b = rng.standard_normal((stack, 90, 33)).astype("f4")
    got = multiplied(lt, a, b, turned=turned)
    want = a.astype("f8") @ b
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


@needs_gpp
def test_one_factor_for_a_stack(lt: Any, rng: Any) -> None:
    a = rng.standard_normal((3, 70, 90)).astype("f4")
    b = rng.standard_normal((1, 90, 33)).astype("f4")
    want = a.astype("f8") @ b
    assert np.abs(multiplied(lt, a, b) - want).max() < 1e-6 * np.abs(want).max()


@needs_gpp
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", [Form.IN_TURN, Form.SIDE_BY_SIDE])
def test_long_sums_are_divided(lt: Any, rng: Any, form: Form, groups: int) -> None:
    a = rng.standard_normal((1, 40, 1100)).astype("f4")
    b = rng.standard_normal((1, 1100, 50)).astype("f4")
    start = rng.standard_normal((1, 40, 50)).astype("f4")
    one = 12 * chunks_of(1100).length * 90 + (8192 if form is Form.SIDE_BY_SIDE else 0)
    most = one * 3 if groups == 1 else one * 2
    got = multiplied(
        lt, a, b, form, start=start, factors=(0.5, 2.0), most=most,
    )  # fmt: skip
    want = 0.5 * (a.astype("f8") @ b) + 2.0 * start
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
    assert len(lt.runs) == (groups if form is Form.SIDE_BY_SIDE else 3)
    lengths = {run["layouts"][0]["made"][1] for run in lt.runs}
    assert lengths == {6 * chunks_of(1100).length}


@needs_gpp
def test_the_epilogue_follows_the_last_chunk(lt: Any, rng: Any) -> None:
    a = rng.standard_normal((1, 40, 1100)).astype("f4")
    b = rng.standard_normal((1, 1100, 50)).astype("f4")
    bias = rng.standard_normal(40).astype("f4")
    got = multiplied(lt, a, b, bias=bias, epilogue="relu_bias")
    want = np.maximum(a.astype("f8") @ b + bias[:, None], 0)
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
    assert [run["epilogue"] for run in lt.runs] == ["", "", "relu_bias"]


@needs_gpp
def test_what_is_not_finite_stays_what_it_is(lt: Any, rng: Any) -> None:
    """Infinities, NaN, the largest numbers, and products of one term that overflow."""
    a = rng.standard_normal((1, 64, 80)).astype("f4")
    b = rng.standard_normal((1, 80, 64)).astype("f4")
    a[0, 3, 5], a[0, 7, 9], a[0, 9, 4], a[0, 8, 4] = np.inf, np.nan, np.inf, 0
    b[0, 4, 11], b[0, 20, 30] = -np.inf, 3.4e38
    a[0, :, 20], b[0, 20] = 0.25, 0
    b[0, 20, 30] = 3.4e38
    a[0, 30, 40], b[0, 40, 50] = -1.7e38, 2.9e38
    got = multiplied(lt, a, b)
    with np.errstate(all="ignore"):
        want = (a.astype("f8") @ b.astype("f8")).astype("f4")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-3, atol=1e-5)


@needs_gpp
@pytest.mark.parametrize("kind", ["normal", "wide", "cancelling"])
def test_the_error_is_that_of_float32(lt: Any, rng: Any, kind: str) -> None:
    """Beside the sum of the terms without signs; wide rows have values from 1e-6 to 1e6."""
    a = rng.standard_normal((1, 16, 1600)).astype("f4")
    b = rng.standard_normal((1, 1600, 16)).astype("f4")
    if kind == "wide":
        a *= (10.0 ** rng.uniform(-6, 6, a.shape)).astype("f4")
        b *= (10.0 ** rng.uniform(-6, 6, b.shape)).astype("f4")
    if kind == "cancelling":
        a[..., 800:], b[:, 800:] = a[..., :800], -b[:, :800] * np.float32(1 + 1e-4)
    want, size = a.astype("f8") @ b, np.abs(a).astype("f8") @ np.abs(b)
    error = (np.abs(multiplied(lt, a, b) - want) / size).max()
    assert error < 2.0**-22


def test_chunks_have_no_more_terms_than_tensor_cores_add_well() -> None:
    for terms in (64, 512, 513, 784, 1100, 4096, 100000):
        found = chunks_of(terms)
        assert found.length <= 512
        assert found.length % 16 == 0
        assert terms <= found.count * found.length < terms + 16 * found.count


def test_room_is_bounded() -> None:
    assert room_bytes(64, 64, 64) == 0
    assert room_bytes(4096, 4096, 32) == 0
    assert room_bytes(1024, 1024, 512) == 12 * 512 * 2048 + 4 * 1024 * 1024
    assert room_bytes(4096, 4096, 4096) == 128 << 20
    assert room_bytes(1 << 17, 4096, 4096) == 0


def settled(*shapes: tuple[int, ...], dtype: str = "float32") -> MatmulKernel:
    types = tuple(TensorType(dtype, s) for s in shapes)
    return MatmulKernel().settled(Call(Dot(), types, tuple(Dot().output_types(types)), NO_HINTS))


def test_room_is_for_measurements_of_float32() -> None:
    sizes = (1024, 1024), (1024, 1024)
    assert settled(*sizes).split_bytes == 0
    with config.change_flags(**{"gpu.gemm.algo": "time"}):
        assert settled(*sizes).split_bytes == room_bytes(1024, 1024, 1024)
        assert settled(*sizes, dtype="bfloat16").split_bytes == 0
        assert settled((8, 8), (8, 8)).split_bytes == 0
        for flags in ({"deterministic": "more"}, {"dnn.conv.allow_tf32": True}):
            with config.change_flags(**flags):
                assert settled(*sizes).split_bytes == 0


def test_ways_are_for_float32_alone(lt: Any) -> None:
    a, b = np.zeros((1, 512, 1024), "f4"), np.zeros((1, 1024, 512), "f4")
    s = signature(a, b)
    assert [w.form for w in split_ways(GemmPlan(7, s), 1 << 28)] == [Form.IN_TURN] * 3 + [
        Form.SIDE_BY_SIDE
    ] * 3
    assert split_ways(GemmPlan(7, s), 0) == []
    assert split_ways(GemmPlan(7, s), 1 << 20) == []
    for other in ({"compute": "tf32"}, {"epilogue": "bgrada"}, {"alignment": (256, 256, 4, 4)}):
        fields = {**s.__dict__, **other}
        assert split_ways(GemmPlan(7, GemmSignature(**fields)), 1 << 28) == []
    biased = GemmSignature(**{**s.__dict__, "epilogue": "bias"})
    assert [w.form for w in split_ways(GemmPlan(7, biased), 1 << 28)] == [Form.IN_TURN] * 3


def test_the_fastest_is_taken_and_known_again(lt: Any, monkeypatch: Any, tmp_path: Any) -> None:
    a, b = np.zeros((1, 256, 512), "f4"), np.zeros((1, 512, 256), "f4")
    monkeypatch.setattr(gemm_choice, "is_capturing", lambda env: False)
    monkeypatch.setattr(bench, "replay_ms", lambda env, enqueue, good: times.pop(0))
    monkeypatch.setattr(gemm_choice, "device_key", lambda **more: {"card": "one", **more})
    monkeypatch.setattr(gemm_choice, "library_key", lambda *args, **more: None)
    monkeypatch.setattr(gemm_choice._GemmBench, "results", lambda self, way: [np.ones(1)])
    room, times = room_bytes(256, 256, 512) or 1 << 22, [3.0, 3.0, 1.0, 3.0, 3.0, 3.0]
    env = GemmHostEnv(WORKSPACE_BYTES + 512 + room)
    with config.change_flags(**{"dnn.conv.tuning_cache": str(tmp_path)}):
        plan = GemmPlan(7, signature(a, b))
        at = Pointers(a.ctypes.data, b.ctypes.data, 0)
        for _ in range(2):
            found = gemm_choice.choose(plan, "time", env, at, (1.0, 0.0), room)
            assert isinstance(found.algorithm, SplitGemm)
            assert found.best_ms == 1.0
            assert found.arithmetic == "6 products of bfloat16 each"
            gemm_choice.forget()
        less = gemm_choice.choose(plan, "guess", env, at, (1.0, 0.0), room)
    assert not isinstance(less.algorithm, SplitGemm)


@pytest.mark.parametrize(
    ("fused", "plain", "sums", "apart"),
    [
        (3.0, 1.0, 1.0, True), (3.0, 1.0, 2.5, False),
        (1.0, 2.0, 0.0, False), (1.0, None, 0.0, False),
    ],
)  # fmt: skip
def test_sums_are_apart_where_that_is_faster(
    lt: Any, monkeypatch: Any, fused: float, plain: float | None, sums: float, apart: bool
) -> None:
    """A GEMM of split operands and a kernel of sums, beside one with the sums as its epilogue."""
    a, b = np.zeros((1, 256, 512), "f4"), np.zeros((1, 512, 256), "f4")
    s = signature(a, b)
    plans = GemmPlan(7, replace(s, epilogue="bgrada")), GemmPlan(7, s)
    made = {plans[0]: fused, plans[1]: plain}

    def chosen(plan: GemmPlan, *_: Any) -> GemmChoice:
        return GemmChoice(plan.signature, "time", plan.algorithms(1)[0], (made[plan],))

    monkeypatch.setattr(gemm_choice, "is_capturing", lambda env: False)
    monkeypatch.setattr(gemm_choice, "choose", chosen)
    monkeypatch.setattr(gemm_choice, "replay_ms", lambda env, enqueue, good: sums)
    env, at = GemmHostEnv(WORKSPACE_BYTES + 512), Pointers(0, 0, 0)
    given = plans, env, at, (1.0, 0.0), 1 << 22, lambda: None
    assert gemm_choice.sums_apart(*given) is apart
    made.update(dict.fromkeys(plans))
    assert gemm_choice.sums_apart(*given) is apart  # it is remembered
    gemm_choice.forget()
    monkeypatch.setattr(gemm_choice, "is_capturing", lambda env: True)
    assert gemm_choice.sums_apart(*given) is False


@pytest.mark.parametrize(("epilogue", "size"), [("bgrada", 70), ("bgradb", 33)])
def test_trials_of_sums_have_memory_of_their_own(rng: Any, epilogue: str, size: int) -> None:
    """Of the rows of A, or of the columns of B."""
    a, b = rng.standard_normal((1, 70, 8)), rng.standard_normal((1, 8, 33))
    plan = SimpleNamespace(signature=signature(a, b, epilogue=epilogue))
    bench = gemm_choice._GemmBench(plan, GemmHostEnv(), Pointers(0, 0, 0), (1.0, 0.0))
    assert [v.shape for v in bench.made] == [(70 * 33,), (size,)]


def test_the_kernels_compile() -> None:
    from symdnn.gpu.binding import nvrtc
    from symdnn.gpu.codegen.device_source import specialised

    sources = [specialised("split_floats.cu", RIGHT=n) for n in (0, 1)]
    for text in sources:
        nvrtc.compile_cubin(text, (9, 0))


@needs_gpp
@pytest.mark.parametrize(("terms", "stack"), [(49, 12), (49, 7), (700, 3)])
def test_products_of_a_stack_are_summed(lt: Any, rng: Any, terms: int, stack: int) -> None:
    """Short sums of several matrices are one; groups have whole matrices."""
    a = rng.standard_normal((stack, 40, terms)).astype("f4")
    b = rng.standard_normal((stack, terms, 50)).astype("f4")
    want = (a.astype("f8") @ b).sum(0)
    for most in (1 << 30, 2_000_000):
        s = signature(a, b, (True, False))
        way = SplitGemm(s, Form.STACK_SUM, most)
        assert (way.group < way.units) == (most < 1 << 30 and terms == 700)
        env = GemmHostEnv(way.workspace_bytes)
        right = np.ascontiguousarray(np.swapaxes(b, 1, 2))
        d = np.full((50, 40), np.nan, "f4")
        way.enqueue(env, Pointers(a.ctypes.data, right.ctypes.data, d.ctypes.data), (1.0, 0.0))
        assert np.abs(d.T - want).max() < 1e-6 * np.abs(want).max()

"""Our own GEMM in every size: strides of operands, epilogues, threads, parts."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm import gemm
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.activation import program_of
from symdnn.ops.vendor.onednn import ACTIVATIONS, OneDnnMatmul
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
KERNEL = gemm.GemmKernel()


def call_of(*arrays, **words):
    types = [TensorType("float32", a.shape) for a in arrays]
    op = OneDnnMatmul(BatchedDot() if arrays[0].ndim == 3 else Dot()).ending(**words)
    return Call(op, tuple(types[:-1]), tuple(types[-1:]), Hints())


def run(a, b, more=None, bias=None, activation=""):
    """The result, which is compared with sums in float64 to within the rounding of its terms."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.full((*shape, a.shape[-2], b.shape[-1]), np.nan, np.float32)
    given = [x for x in (a, b, more, bias) if x is not None]
    call = call_of(*given, out, residual=more is not None, bias=bias is not None,
                   activation=activation)  # fmt: skip
    assert KERNEL.refuses(call) is None
    launch, scratch = KERNEL.bind(call), np.empty(KERNEL.workspace_bytes(call) + 64, np.uint8)
    launch(given, [out], scratch[-scratch.ctypes.data % 64 :])
    wanted = a.astype("f8") @ b.astype("f8")
    size = np.sqrt((a.astype("f8") ** 2) @ (b.astype("f8") ** 2)) + 1
    for x in (more, bias):
        wanted = wanted if x is None else wanted + x
    if activation:
        (wanted,) = program_of(ACTIVATIONS[activation], "float64").evaluate(wanted)
    bound = 8 * 6e-8 * np.sqrt(a.shape[-1] + 1) * (size + np.abs(wanted))
    assert np.all(np.abs(out - wanted) <= bound)
    again = np.empty_like(out)
    launch(given, [again])  # scratch memory of its own
    np.testing.assert_array_equal(out, again)
    return out


def normal(*shape):
    return new_rng().normal(size=shape).astype("float32")


def lying(kind, *shape):
    """A matrix, or a stack of them, with these strides."""
    *stack, m, n = shape
    if kind == "turned":
        return normal(*stack, n, m).swapaxes(-1, -2)
    if kind == "rows":
        return normal(*stack, 2 * m, n + 5)[..., ::2, :n]
    if kind == "strided":
        return normal(*stack, m, 3 * n)[..., ::3]
    if kind == "reversed":
        return normal(*stack, m, n)[..., ::-1, ::-1]
    return normal(*shape)


@pytest.fixture(params=[1, 2, 3])
def count(request):
    with symdnn.config.change_flags(**{"openmp.threads": request.param}):
        yield request.param


def test_sizes_at_random(rng, count):
    for _ in range(40):
        m, n, k = rng.integers(1, 71, 3)
        run(normal(m, k), normal(k, n))
    for m, n, k in [(1, 700, 300), (700, 1, 300), (1, 1, 5000), (65, 500, 100), (49, 200, 90)]:
        run(normal(m, k), normal(k, n))


@pytest.mark.parametrize("a", ["dense", "turned", "rows", "strided", "reversed"])
@pytest.mark.parametrize("b", ["dense", "turned", "rows", "strided", "reversed"])
def test_operands_that_lie_in_any_way(a, b, count):
    for m, k, n in [(70, 130, 65), (7, 33, 90)]:
        run(lying(a, m, k), lying(b, k, n))
    run(lying(a, 3, 30, 33), lying(b, 3, 33, 50))


def test_several_blocks_of_terms_and_columns(count):
    run(normal(30, 1100), normal(1100, 50), bias=normal(1, 50), activation="relu")
    run(normal(60, 513), lying("turned", 513, 1300))
    run(lying("turned", 25, 2000), normal(2000, 600), more=normal(25, 600))
    run(lying("turned", 100, 700), lying("turned", 700, 500), bias=normal(1, 500))


def test_what_follows(count):
    a, b = normal(50, 60), normal(60, 70)
    run(a, b, bias=normal(1, 70))
    run(a, b, more=normal(50, 70), activation="relu")
    run(normal(4, 50, 60), normal(4, 60, 70), more=normal(4, 50, 70))
    run(a, b, more=normal(70, 50).T)


@pytest.mark.parametrize("name", [n for n, _ in OneDnnMatmul.rules.activations])
def test_an_activation_function_follows(name, count):
    run(normal(1, 960), normal(960, 1280) / 30, bias=normal(1, 1280), activation=name)
    run(normal(130, 100), normal(100, 90) / 10, more=normal(130, 90), activation=name)
    run(normal(4, 70, 60), lying("turned", 4, 60, 70) / 8, activation=name)
    run(normal(7, 5), normal(5, 3), bias=normal(1, 3), activation=name)


@pytest.mark.parametrize("function", [T.tanh, T.sigmoid, lambda v: T.clip(v, 0, 6)])
def test_a_small_layer_is_one_compiled_function(function):
    x, w, b = T.fmatrix(), T.fmatrix(), T.fvector()
    given = normal(9, 6), normal(6, 4), normal(4)
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x, w, b], function(T.dot(x, w) + b), mode=CPU)
        for _ in range(100):
            found = f(*given)
        assert f.plans()[-1].bound.is_one_function
    wanted = symdnn.function([x, w, b], function(T.dot(x, w) + b), mode=symdnn.Mode(optimizer=None))
    np.testing.assert_allclose(found, wanted(*given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("a", ["dense", "turned", "rows"])
def test_one_matrix_that_serves_the_whole_stack(a, count):
    run(lying(a, 1, 30, 40), normal(7, 40, 50), more=normal(7, 30, 50))
    run(lying(a, 7, 30, 40), normal(1, 40, 50))
    run(lying(a, 1, 3, 4), normal(5, 4, 2))
    run(lying(a, 1, 60, 80), lying("turned", 1, 80, 70))


def test_an_addend_in_the_memory_of_the_result():
    a, b, out = normal(40, 600), normal(600, 50), normal(40, 50)
    wanted = a.astype("f8") @ b + out
    KERNEL.bind(call_of(a, b, out, out, residual=True))([a, b, out], [out])
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


def test_no_terms_and_no_results():
    out = np.full((9, 20), np.nan, "f4")
    a, b, bias = normal(9, 0), normal(0, 20), normal(1, 20)
    KERNEL.bind(call_of(a, b, out))([a, b], [out])
    assert not out.any()
    KERNEL.bind(call_of(a, b, bias, out, bias=True))([a, b, bias], [out])
    np.testing.assert_array_equal(out, np.broadcast_to(bias, out.shape))
    assert "empty" in KERNEL.refuses(call_of(normal(0, 4), normal(4, 3), normal(0, 3)))


def test_what_is_not_a_number_or_infinite_stays_in_its_row_and_column(count):
    a, b = normal(70, 100), normal(100, 90)
    a[5, 7], b[9, 80] = np.nan, np.inf
    out = np.empty((70, 90), "f4")
    KERNEL.bind(call_of(a, b, out, activation="relu"))([a, b], [out])
    assert np.isnan(out[5]).all()
    column = np.delete(out[:, 80], 5)
    np.testing.assert_array_equal(column, np.where(np.delete(a[:, 9], 5) > 0, np.inf, 0))
    assert np.isfinite(np.delete(np.delete(out, 5, 0), 80, 1)).all()


def test_threads_do_not_change_a_bit():
    a, b, found = normal(90, 1200), normal(1200, 300), []
    for threads in (1, 2, 3, 5):
        with symdnn.config.change_flags(**{"openmp.threads": threads}):
            found.append(run(a, b))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("width", [4, 8])
def test_narrower_vectors(width, monkeypatch, count):
    monkeypatch.setattr(jit, "vector_width", lambda: width)
    for m, k, n in [(31, 70, 45), (1, 3, 5), (100, 600, 200)]:
        run(normal(m, k), normal(k, n), bias=normal(1, n))
        run(lying("turned", m, k), lying("turned", k, n))


@pytest.mark.parametrize("stack", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
def test_parts_cover_the_result_once(rng, stack, threads):
    for _ in range(30):
        m, n, k = (int(x) for x in rng.integers(1, 900, 3))
        cut = gemm.partition(stack, m, n, k, threads, 16)
        for part, parts, size in ((cut.part_m, cut.parts_m, m), (cut.part_n, cut.parts_n, n)):
            assert (parts - 1) * part < size <= parts * part
        assert cut.tasks == stack * cut.parts_m * cut.parts_n
        assert 1 <= cut.threads <= min(threads, cut.tasks)
        assert cut.thread_bytes(True, 48) >= 4 * cut.block_k * (cut.part_m + cut.block_n)
        assert cut.block_n % 48 == 0
        assert 1 <= cut.block_k <= 512


def test_what_is_left_to_others():
    a, b, out = normal(40, 40), normal(40, 40), normal(40, 40)
    both = call_of(a, b, out, normal(1, 40), out, residual=True, bias=True)
    assert "addend" in KERNEL.refuses(both)
    assert "few terms" in KERNEL.refuses(call_of(normal(4000, 4), normal(4, 4), normal(4000, 4)))
    with symdnn.config.change_flags(**{"cpu.compile": "never"}):
        assert "never" in KERNEL.refuses(call_of(a, b, out))


def test_a_training_step_in_a_program():
    x, y = T.fmatrix("x"), T.fmatrix("y")
    w, v = (symdnn.shared(normal(*s) / 8) for s in ((90, 70), (70, 40)))
    bias = symdnn.shared(normal(70))
    h = T.nnet.relu(T.dot(x, w) + bias)
    cost = ((T.dot(h, v) - y) ** 2).sum()
    params = [w, bias, v]
    f = symdnn.function([x, y], [cost, *T.grad(cost, params)], mode=CPU)
    g = symdnn.function([x, y], [cost, *T.grad(cost, params)], mode=symdnn.Mode(optimizer=None))
    for _ in range(4):
        given = normal(64, 90), normal(64, 40)
        for found, wanted in zip(f(*given), g(*given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-2)
    names = [c.kernel.name for c in f.plans()[0].bound.spec.choices.values()]
    assert names.count("llvm.gemm") == 5


def test_a_chain_in_a_program_is_one_call_and_not_a_number_stays():
    x, w = T.fmatrix("x"), symdnn.shared(normal(30, 30) / 6)
    y = x
    for _ in range(20):
        y = T.dot(y, w)
    f = symdnn.function([x], [y, T.dot(x.T, y)], mode=CPU)
    a = normal(30, 30)
    wanted = a.astype("f8")
    for _ in range(20):
        wanted = wanted @ w.get_value().astype("f8")
    for _ in range(4):
        y, z = f(a)
        np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(z, a.T.astype("f8") @ wanted, rtol=1e-3, atol=1e-4)
    plan = f.plans()[0].bound
    assert {c.kernel.name for c in plan.spec.choices.values()} >= {"llvm.gemm"}
    assert len(plan.step_function._bound_later) == 1
    a[3, 4] = np.nan
    assert np.isnan(f(a)[0][3]).all()


def test_stacks_that_broadcast_in_a_program():
    x, y, z = T.ftensor3("x"), T.fmatrix("y"), T.fmatrix("z")
    f = symdnn.function([x, y, z], [T.matmul(x, y), T.matmul(z, x)], mode=CPU)
    a, b, c = normal(6, 40, 50), normal(50, 60), normal(30, 40)
    for _ in range(3):
        for found, wanted in zip(f(a, b, c), (a.astype("f8") @ b, c.astype("f8") @ a), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)

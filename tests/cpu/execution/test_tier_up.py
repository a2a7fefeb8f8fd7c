"""Plans that are called often: small steps are compiled after all, and run together."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("symdnn.cpu.execution.plan.HOT_CALLS", 4)
    with config.change_flags(**{"cpu.compile": "auto"}):
        yield


def small():
    """A fused program, a ufunc, reductions of one and of two, a view, an update."""
    x, w = T.fmatrix("x"), symdnn.shared(np.float32([[1, 2, 3], [4, 5, 6]]))
    y = T.exp(x) * 2 + 1
    outputs = [y, x + w, y.sum(axis=0), T.stack([x.max(), x.min()]), y.T * 2]
    return w, symdnn.function([x], outputs, updates=[(w, w + x.mean())], mode=CPU)


def kernels(f):
    (plan,) = f.plans()
    return [type(s.launch).__module__.rpartition(".")[2] for s in plan.bound.steps if not s.by_view]


def test_small_steps_are_compiled_and_give_the_same():
    w, f = small()
    a = new_rng().normal(size=(2, 3)).astype("float32")
    first, start = f(a), w.get_value()
    before = kernels(f)
    for _ in range(9):
        w.set_value(start - a.mean())
        for old, new in zip(first, f(a)):
            np.testing.assert_allclose(new, old, rtol=1e-5)
        np.testing.assert_allclose(w.get_value(), start, rtol=1e-5)
    after = kernels(f)
    assert "strided_launch" not in before
    assert "strided_launch" in after
    (plan,) = f.plans()
    assert plan.bound.step_function.native >= 3


def test_one_of_all_compiled_steps_needs_no_care_for_warnings():
    x = T.fvector("x")
    f = symdnn.function([x], x + np.float32(1), mode=CPU)
    a = np.float32([1, np.inf, np.nan, -np.inf])
    for _ in range(9):
        np.testing.assert_array_equal(f(a), a + np.float32(1))
    assert f.plans()[0].bound.silent
    g = symdnn.function([x], T.log(x) / x, mode=CPU)
    for _ in range(9):
        assert np.isnan(g(np.float32([-1, 0]))).any()


def test_a_plan_runs_no_code_of_users_once_its_references_are_compiled():
    x = T.fmatrix("x")
    f = symdnn.function([x], T.nnet.logsoftmax(x * 2), mode=CPU)
    a = new_rng().normal(size=(3, 5)).astype("float32")
    first = f(a)
    (plan,) = f.plans()
    assert not plan.bound.closed
    for _ in range(9):
        np.testing.assert_allclose(f(a), first, rtol=1e-5)
    assert plan.bound.closed
    assert not plan.bound.has_pools
    assert plan.bound.quick  # a call is one function


@pytest.mark.parametrize("flags", [{"deterministic": "more"}, {"cpu.compile": "never"}])
def test_it_is_left_as_it_is_by_flags(flags):
    with config.change_flags(**flags):
        _, f = small()
        for _ in range(9):
            f(np.ones((2, 3), "float32"))
        assert "strided_launch" not in kernels(f)


def test_a_body_of_a_loop_gets_warm():
    x = T.fvector("x")
    ys, _ = symdnn.scan(lambda h: T.tanh(h) * 2 - 1, outputs_info=[x], n_steps=12)
    f = symdnn.function([x], ys[-1], mode=CPU)
    a = np.float32([0.1, 0.5, -2])
    wanted = a.astype("f8")
    for _ in range(12):
        wanted = np.tanh(wanted) * 2 - 1
    for _ in range(3):
        np.testing.assert_allclose(f(a), wanted, rtol=1e-4)


@pytest.mark.parametrize(("size", "threaded"), [(10, False), (1_000_000, True)])
def test_small_plans_do_not_look_at_the_number_of_threads(size, threaded):
    x = T.fvector("x")
    f = symdnn.function([x], T.exp(x) + np.float32(1), mode=CPU)
    a = np.linspace(-1, 1, size, dtype="float32")
    for count in (1, 2, 1):
        with config.change_flags(**{"openmp.threads": count}):
            for _ in range(9):
                np.testing.assert_allclose(f(a), np.exp(a) + 1, rtol=1e-6)
    (plan,) = f.plans()
    assert plan.bound.silent
    assert plan.bound.threaded is threaded


VIEWS = {
    "of a result": lambda x: T.exp(x).reshape((-1,)),
    "of a result in another order": lambda x: T.sum(T.exp(x), axis=0).dimshuffle("x", 0),
    "of an argument": lambda x: T.exp(x[::2]),
    "of an argument in another order": lambda x: x + x.T,
    "between": lambda x: T.exp(x).reshape((-1, 4)).sum(axis=0),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_leave_a_plan_as_fast_as_it_is(kind, rng):
    """Taking a view neither warns nor wants threads."""
    x = T.fmatrix("x")
    f = symdnn.function([x], symdnn.Out(VIEWS[kind](x), borrow=True), mode=CPU)
    a = rng.normal(size=(4, 4)).astype("float32")
    wanted = symdnn.function([x], VIEWS[kind](x), mode=symdnn.Mode(optimizer=None))(a)
    for _ in range(9):
        np.testing.assert_allclose(f(a), wanted, rtol=1e-5)
    (plan,) = f.plans()
    assert plan.bound.silent
    assert not plan.bound.parallel


def test_a_number_read_at_an_index_is_read_anew_in_each_call():
    x, k = T.dvector("x"), T.lscalar("k")
    f = symdnn.function([x, k], [T.tanh(x[k]), T.exp(x[k].dimshuffle("x")) + x], mode=CPU)
    a = np.arange(4.0)
    for i in (0, 1, 2, 3) * 3:
        one, all_ = f(a, i)
        np.testing.assert_allclose(one, np.tanh(a[i]))
        np.testing.assert_allclose(all_, np.exp(a[i]) + a)
    assert f.plans()[0].bound.step_function.native >= 1


def layers(x):
    """Layer norm, heads, attention that needs scratch memory, reshapes that copy."""
    y = T.nnet.layer_norm(x)
    heads = y.reshape((y.shape[0], y.shape[1], 2, 8)).dimshuffle(0, 2, 1, 3)
    seen = T.nnet.scaled_dot_product_attention(heads, heads, heads, causal="top_left")
    whole = seen.dimshuffle(0, 2, 1, 3).reshape((y.shape[0], y.shape[1], 16))
    return [whole.sum(axis=2), T.nnet.softmax(y.T.reshape((16, -1)))]


def test_copies_attention_and_norms_are_compiled_too(rng):
    """Nodes that may be views but are copied, those with scratch memory, a library's small ones."""
    x = T.tensor("float32", ("batch", "time", 16), name="x")
    f = symdnn.function([x], layers(x), mode=CPU)
    a = rng.normal(size=(2, 5, 16)).astype("f4")
    first = f(a)
    for _ in range(9):
        for old, new in zip(first, f(a)):
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
    (plan,) = f.plans()
    by = {type(n.op).__name__: k.traits.backend for n, k in plan.bound.tier_up_kernels.items()}
    assert {"Attention", "Reshape"} <= set(by), by
    assert set(by.values()) == {"llvm"}
    from_python = [s for s in plan.bound.steps if not s.by_view and s.launch.native is None]
    assert not from_python


def test_a_compiled_kernel_does_not_get_the_memory_of_the_library_s_before_it():
    x, g, b = T.fmatrix("x"), T.fvector("g"), T.fvector("b")
    y = (T.nnet.layer_norm(x, g, b) ** 2).sum()
    f = symdnn.function([x, g, b], symdnn.grad(y, [x, g, b]), mode=CPU)
    rng = new_rng()
    given = [rng.normal(size=s).astype("float32") for s in ((10, 10), (10,), (10,))]
    first = f(*given)
    for _ in range(9):
        for old, new in zip(first, f(*given), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4)


def test_what_is_cached_is_compiled_code_earlier(monkeypatch):
    monkeypatch.setattr("symdnn.cpu.execution.plan.HOT_CALLS", 8)
    monkeypatch.setattr("symdnn.cpu.execution.plan.WARM_CALLS", 3)
    x = T.fmatrix("x")
    a = new_rng().normal(size=(3, 5)).astype("float32")

    def after(calls):
        """A new function of code that no other test has, and whether it is compiled then."""
        y = T.exp(x * np.float32(1.25) - np.float32(0.3)).sum(axis=1) + T.sin(x.max())
        f = symdnn.function([x], y, mode=CPU)
        found = [f(a) for _ in range(calls)]
        np.testing.assert_allclose(found[-1], found[0], rtol=1e-5)
        return "strided_launch" in kernels(f)

    with jit.only_cached(), pytest.raises(jit.NotCompiled):
        threads.kernel(lambda: "", "no such code")
    assert after(9)
    assert after(4)  # the code is loaded
    assert not after(2)


def test_what_is_not_cached_is_compiled_by_the_worker_meanwhile(monkeypatch):
    monkeypatch.setattr("symdnn.cpu.execution.plan.HOT_CALLS", 1 << 20)
    monkeypatch.setattr("symdnn.cpu.execution.plan.WARM_CALLS", 2)
    monkeypatch.setattr("symdnn.cpu.compiler.compile_queue._may_use_second_processor", lambda: True)
    x = T.fmatrix("x")
    a = new_rng().normal(size=(3, 5)).astype("float32")
    odd = np.float32(new_rng().uniform())
    f = symdnn.function([x], T.exp(x * odd - odd).sum(axis=1), mode=CPU)
    first = f(a)
    (plan,) = f.plans()
    for _ in range(1 << 9):  # each look waits for the code that the one before has asked for
        np.testing.assert_allclose(f(a), first, rtol=1e-5)
        assert all(code._job is None or code._job.wait(60) for code in plan.bound.missing)
    assert "strided_launch" in kernels(f)
    assert not plan.bound.missing


def test_plans_whose_own_kernels_wait_for_code_tier_up_too(monkeypatch):
    monkeypatch.setattr("symdnn.cpu.execution.plan.HOT_CALLS", 8)
    monkeypatch.setattr("symdnn.cpu.execution.plan.WARM_CALLS", 3)
    x, y = T.fmatrix("x"), T.fvector("y")
    f = symdnn.function([x, y], T.linalg.solve(x.T @ x + T.eye(3), x.T @ y), mode=CPU)
    rng = new_rng()
    given = [rng.normal(size=s).astype("float32") for s in ((7, 3), (7,))]
    first = f(*given)
    monkeypatch.setattr(jit.Code, "waits", property(lambda code: True))
    for _ in range(9):
        np.testing.assert_allclose(f(*given), first, rtol=1e-4)

"""Calls on the CPU that go the short way give what the long way gives, and notice every change."""

import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.call.fast import Calls
from symdnn.compile.call.fast_host import HostProgramCalls
from symdnn.compile.execute.executor import Executor
from symdnn.compile.execute.retry import smaller_limits
from symdnn.errors import ArgumentShapeMismatch, InputError, TypeMismatch
from symdnn.graph.values.value import as_numpy, number_taker
from symdnn.ops.core.gradient_control import Print


def learnt(f, *args):
    """``f``, called until its calls go the short way."""
    for _ in range(3):
        f(*args)
    assert f._fast.entries
    return f


def goes_short(f, *args):
    return f._fast.attempt(f, args) is not None


@pytest.mark.cpu
def test_arguments_that_fit_or_are_converted_go_the_short_way():
    x, y = T.fmatrix("x"), T.fscalar("y")
    a = np.ones((2, 3), "f")
    f = learnt(symdnn.function([x, y], x * y), a, 2)
    assert goes_short(f, a, 2.5)
    assert goes_short(f, a, np.float32(2))
    assert goes_short(f, np.ones((3, 2), "f").T, 2)
    for other in (a.tolist(), a.astype(">f4"), a.astype("int8")):
        assert goes_short(f, other, 2)
        np.testing.assert_array_equal(f(other, 2), 2 * a)
    assert f(x=a, y=2).tolist() == f(a, y=2).tolist() == (2 * a).tolist()
    assert f(np.ones((4, 3), "f"), 3).shape == (4, 3)
    for wrong in (a[0], a.astype("float64") + 1e-12, "a"):
        assert not goes_short(f, wrong, 2)
        with pytest.raises((TypeMismatch, TypeError, ValueError)):
            f(wrong, 2)
    with pytest.raises(InputError):
        f(a)


@pytest.mark.cpu
def test_values_that_are_converted_go_the_short_way(monkeypatch):
    x, n = T.dmatrix("x"), T.lscalar("n")
    f = symdnn.function([x, n], x.sum(0) * n)
    a = np.arange(6.0).reshape(2, 3)
    wanted = f(a, 2)
    monkeypatch.setattr(type(f), "run", None)  # the full path
    others = (a.tolist(), a.astype("float32"), a.astype("int8"), np.asfortranarray(a, "float32"))
    for value in others:
        np.testing.assert_array_equal(f(value, 2), wanted)
        np.testing.assert_array_equal(f(value, np.array(2, "int16")), wanted)
    monkeypatch.undo()
    for wrong in (a + 1j, a[0], "text", None, [[1], [2, 3]]):
        with pytest.raises(symdnn.errors.InputError, match=r"input 0 \(x\)"):
            f(wrong, 2)


@pytest.mark.cpu
def test_functions_without_kernels_go_the_short_way(monkeypatch):
    """Their results are sizes, and new arrays."""
    x = T.dmatrix("x")
    f = learnt(symdnn.function([x], [x.shape[1], x.shape]), np.ones((2, 3)))

    def check(a):
        found = f(a)
        assert [r.dtype for r in found] == ["int64"] * 2
        assert [r.tolist() for r in found] == [a.shape[1], list(a.shape)]
        found[1] += 1  # a result of the caller's
        return found

    assert goes_short(f, np.ones((2, 3)))
    assert not goes_short(f, np.ones((4, 5)))
    check(np.ones((4, 5)))
    monkeypatch.setattr(Executor, "run", None)
    for a in (np.ones((4, 5)), np.ones((3, 2)).T, np.ones((4, 10))[:, ::2]):
        first, second = check(a), check(a)
        assert not any(np.shares_memory(p, q) for p, q in zip(first, second))
    monkeypatch.undo()
    assert f([[1.0, 2]])[0] == 2
    with pytest.raises(ArgumentShapeMismatch):
        f(np.ones(3))


@pytest.mark.cpu
def test_results_that_are_constants_or_arguments_go_the_short_way(monkeypatch):
    """As copies, in C's order; a size beside them is computed."""
    x, y = T.dmatrix("x"), T.ivector("y")
    kept = T.constant(np.array([1.0, 2.0]))
    given = np.arange(6.0).reshape(3, 2).T, np.arange(4, dtype="int32")
    f = learnt(symdnn.function([x, y], [y, kept, x, y, x.shape[0]]), *given)
    g = learnt(symdnn.function([x], kept, on_unused_input="ignore"), given[0])
    assert goes_short(f, *given)
    assert goes_short(g, given[0])
    monkeypatch.setattr(Executor, "run", None)
    found = f(*given)
    for a, b in zip(found, (given[1], kept.data, given[0], given[1], 2), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.asarray(b).dtype
        assert a.flags.c_contiguous
    found[0][0], found[1][0] = 7, 9  # results are the caller's
    assert given[1][0] == found[3][0] == 0
    assert f(*given)[1].tolist() == g(given[0]).tolist() == [1, 2]
    monkeypatch.undo()
    with pytest.raises(ArgumentShapeMismatch):
        g(np.ones(3))


@pytest.mark.cpu
def test_functions_with_updates_or_callbacks_and_no_kernels_go_the_long_way():
    x, n = T.dmatrix("x"), symdnn.shared(np.int64(3))
    size = x.shape[0]
    for f in (symdnn.function([x], size, updates=[(n, n + size)]), symdnn.function([x], size + n)):
        assert not isinstance(f._fast, HostProgramCalls)
        before = int(n.get_value())
        f(np.ones((2, 2)))
        assert int(n.get_value()) - before in (0, 2)


@pytest.mark.cpu
def test_plans_with_kernels_in_python_go_the_short_way_at_once(monkeypatch):
    """Their contiguous arguments are not accepted again; errors and warnings stay."""
    x, i = T.dmatrix("x"), T.lvector("i")
    f = learnt(symdnn.function([x], T.log(x).diagonal()), np.ones((3, 3)))
    g = learnt(symdnn.function([x, i], x[i]), np.ones((3, 3)), [0])
    for fast in (f._fast, g._fast):
        assert not next(iter(fast.entries.values())).bound.quick
        monkeypatch.setattr(fast, "_accept", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(np.eye(3)).tolist() == [0, 0, 0]
    assert g(np.eye(3), np.array([2])).tolist() == [[0, 0, 1]]
    with pytest.raises(IndexError, match="index"):
        g(np.eye(3), np.array([5]))
    assert g(np.eye(3), np.array([1])).tolist() == [[0, 1, 0]]


NUMBERS = [0, 3, -4, 127, 128, 2**24, 2**24 + 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 0.5, 0.1,
           3.0, 1e-42, 3.3e38, -1e300, np.inf, -np.inf, np.nan, True, 1j,
           np.int8(3), np.float32(0.1), np.float64(0.1), np.int64(3)]  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool", "float16",
                                   "bfloat16", "float32", "float64", "complex64"])  # fmt: skip
@pytest.mark.parametrize("allow", [None, True, False])
@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_numbers_are_taken_as_arguments_are_converted(dtype, allow, floatX):
    type_, taken = T.TensorType(dtype, ()), 0
    take = number_taker(type_, allow)
    with symdnn.config.change_flags(floatX=floatX), np.errstate(all="ignore"):
        for value in NUMBERS:
            if (found := take(value)) is value:
                continue
            taken += 1
            wanted = as_numpy(value, type_, "it", allow_downcast=allow)
            assert type(found) is np.ndarray
            assert (found.dtype, found.shape) == (wanted.dtype, ())
            assert found.tobytes() == wanted.tobytes(), value
    assert taken >= {"i": 4, "u": 4, "f": 4}.get(type_.numpy.kind, 0) * (dtype != "float16")


@pytest.mark.cpu
def test_sizes_from_numbers_and_shared_variables_go_the_short_way(monkeypatch):
    """By one function; their plans take turns, and see what a shared variable is now."""
    x, k, data = T.dvector("x"), T.iscalar("k"), symdnn.shared(np.arange(20.0))
    n = symdnn.shared(np.int64(2))
    total = symdnn.shared(0.0)
    f = symdnn.function([x, k], [x[k:] * 2, x[-k:].sum(), data[k * 3 : (k + 1) * 3], x[:n]],
                        updates=[(total, total + x[k])])  # fmt: skip
    a = np.arange(8.0)

    def check(a, k, n, data):
        before = float(total.get_value())
        found = f(a, k)
        wanted = 2 * a[k:], a[-k:].sum(), data[k * 3 : (k + 1) * 3], a[:n]
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want)
        assert float(total.get_value()) == before + a[k]

    for _ in range(4):
        check(a, 1, 2, np.arange(20.0))
        check(a, np.int32(2), 2, np.arange(20.0))
    check(a, 2, 2, np.arange(20.0))
    monkeypatch.setattr(Executor, "run", None)
    for _ in range(3):
        check(a, 2, 2, np.arange(20.0))
    monkeypatch.setattr(f._fast, "_accept", None)
    check(a, 2, 2, np.arange(20.0))
    monkeypatch.undo()
    n.set_value(5)
    check(a, 2, 5, np.arange(20.0))
    data.set_value(np.arange(9.0))
    for k_ in (1, 2, 3):
        check(a, k_, 5, np.arange(9.0))
    for wrong in (8, -9):
        before = float(total.get_value())
        with pytest.raises(IndexError, match="out of range"):
            f(a, wrong)
        assert float(total.get_value()) == before


@pytest.mark.cpu
def test_updates_that_are_no_part_of_the_memory_go_the_short_way():
    """A plan that is one compiled function does not take over, since it would not write them."""
    w, x = symdnn.shared(np.ones(3, "f")), T.fvector("x")
    f = symdnn.function([x], x * 2, updates=[(w, x + 1)])
    for i in range(3000):
        a = np.full(3, i, "f")
        assert f(a).tolist() == [2 * i] * 3
        assert w.get_value().tolist() == [i + 1] * 3


def test_trusted_arguments():
    x = T.fvector("x")
    f = learnt(symdnn.function([x], x + 1), np.ones(3, "f"))
    f.trust_input = True
    strided = np.arange(6, dtype="f")[::2]
    assert goes_short(f, strided)
    assert f(strided).tolist() == [1, 3, 5]


def test_results_come_as_they_were_asked_for():
    x, a = T.fvector("x"), np.ones(2, "f")
    one = learnt(symdnn.function([x], x + 1), a)
    many = learnt(symdnn.function([x], [x + 1, x * 3]), a)
    named = learnt(symdnn.function([x], {"p": x + 1, "q": x * 3}), a)
    nothing = symdnn.function([x], None, updates=[(symdnn.shared(a), x)])
    assert one(a).tolist() == [2, 2]
    assert [r.tolist() for r in many(a)] == [[2, 2], [3, 3]]
    assert {k: r.tolist() for k, r in named(a).items()} == {"p": [2, 2], "q": [3, 3]}
    assert [nothing(a) for _ in range(3)] == [[]] * 3


def test_a_result_belongs_to_the_caller():
    x = T.fvector("x")
    f, a = learnt(symdnn.function([x], x + 1), np.ones(2, "f")), np.zeros(2, "f")
    first = f(a)
    first[:] = 9
    second = f(a)
    assert first.tolist() == [9, 9]
    assert second.tolist() == [1, 1]


@pytest.mark.cpu
def test_new_values_of_shared_variables_are_seen():
    w, x = symdnn.shared(np.ones(2)), T.dvector("x")
    f, a = symdnn.function([x], x * w), np.ones(2)
    learnt(f, a)
    w.set_value([2.0, 3.0])
    assert f(a).tolist() == [2, 3]
    w.get_value(borrow=True)[:] = 5
    assert f(a).tolist() == [5, 5]
    w.set_value(np.array([7.0]).repeat(2), borrow=True)
    assert [f(a).tolist() for _ in range(3)] == [[7, 7]] * 3
    w.set_value(np.full(3, 4.0))
    b = np.ones(3)
    assert [f(b).tolist() for _ in range(3)] == [[4, 4, 4]] * 3


@pytest.mark.cpu
def test_updates():
    w, n, x = symdnn.shared(np.zeros(2)), symdnn.shared(0), T.dvector("x")
    f = symdnn.function([x], w.sum(), updates=[(w, w + x * n), (n, n + 1)])
    a = np.ones(2)
    total, expected = 0.0, []
    for k in range(6):
        expected.append(2 * total)
        total += k
    assert [float(f(a)) for _ in range(6)] == expected
    assert f._fast.entries
    assert n.get_value() == 6


def test_sizes_and_indices_that_change():
    data, i, n = symdnn.shared(np.arange(20.0)), T.lscalar("i"), symdnn.shared(1)
    f = symdnn.function([i], data[i * 4 : (i + 1) * 4] + T.zeros((4,)), updates=[(n, n + 1)])
    g = symdnn.function([i], T.ones((i,)) * 2)
    h = symdnn.function([], T.ones((n,)), updates=[(n, n + 1)])
    for k in (0, 1, 2, 0, 3, 4):
        assert f(k).tolist() == list(np.arange(20.0)[k * 4 : k * 4 + 4])
        assert g(k).tolist() == [2.0] * k
        before = n.get_value()
        assert h().size == before


def test_numpy_does_not_warn_and_flags_of_a_block_are_seen():
    x = T.dvector("x")
    f = learnt(symdnn.function([x], T.log(x)), np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(np.array([0.0, -1])).tolist()[0] == -np.inf
        with symdnn.config.change_flags(deterministic="more"):
            assert goes_short(f, np.array([0.0, 1]))
        with np.errstate(all="raise"):
            f(np.array([0.0, -1]))


def test_a_dropped_plan_is_made_again():
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    with symdnn.config.change_flags(plan_cache_size=2):
        for n in (1, 2, 3, 4, 1, 2, 1, 2, 4):
            assert f(np.zeros(n)).tolist() == [1.0] * n
            assert len(f._fast.entries) <= 3
    f.free()
    assert not f._fast.entries
    assert f(np.zeros(2)).tolist() == [1, 1]


@pytest.mark.cpu
@pytest.mark.parametrize("workspace", [0, 1 << 30])
def test_code_of_the_user_without_memory_runs_once_but_for_smaller_workspaces(workspace):
    """A call without memory begins again only with a plan that needs less."""
    ran, failing = [], []

    def noted(op, value):
        ran.append(value)
        if failing:
            raise MemoryError("no room")

    x = T.dvector("x")
    f = learnt(symdnn.function([x], Print("x", function=noted)(x) * 2), np.ones(3))
    (plan,) = f.plans()
    if workspace:
        plan.memory.workspaces[None] = SimpleNamespace(nbytes=workspace)
    ran.clear()
    failing.append(True)
    with pytest.raises(MemoryError, match="no room"):
        f(np.ones(3))
    assert len(ran) == (1 if not workspace else 2 + len(smaller_limits(plan.memory)))
    failing.clear()
    assert f(np.ones(3)).tolist() == [2, 2, 2]


def _elementwise():
    x = T.dvector("x")
    return symdnn.function([x], x + 1)


def _only_sizes():
    x = T.dvector("x")
    return symdnn.function([x], x.shape[0] * 2)


@pytest.mark.cpu
@pytest.mark.parametrize("made", [_elementwise, _only_sizes])
def test_of_too_many_shapes_the_oldest_is_forgotten(made, monkeypatch):
    f = made()
    monkeypatch.setattr(Calls, "most_entries", 3)
    for n in (2, 3, 4, 5):
        for _ in range(2):
            f(np.ones(n))
    assert list(f._fast.entries) == [(3,), (4,), (5,)]
    f(np.ones(2))
    assert list(f._fast.entries) == [(4,), (5,), (2,)]


def test_a_failing_call_changes_nothing_and_lets_others_go_on():
    w, x, i = symdnn.shared(np.zeros(2)), T.dvector("x"), T.lvector("i")
    f = symdnn.function([x, i], x[i], updates=[(w, w + 1)])
    a = np.ones(3)
    learnt(f, a, [0])
    found = []
    with pytest.raises(IndexError, match="index"):
        f(a, [5])
    other = threading.Thread(target=lambda: found.append(f(a, [1])))
    other.start()
    other.join(20)
    assert found[0].tolist() == [1]
    assert w.get_value().tolist() == [4, 4]


@pytest.mark.cpu
def test_arguments_by_name_and_kept_ones_go_the_short_way(monkeypatch):
    x, y, rate = T.dvector("x"), T.dvector("y"), T.dscalar("rate")
    total = T.dscalar("total")
    f = symdnn.function(
        [x, symdnn.In(rate, value=0.5), symdnn.In(total, value=1.0, update=total + rate), y],
        x * rate + y + total,
    )
    a, b = np.arange(3.0), np.ones(3)
    for _ in range(3):
        f(x=a, y=b)
    assert float(f["total"]) == 2.5
    monkeypatch.setattr(Executor, "run", None)
    assert f(a, y=b).tolist() == (a * 0.5 + b + 2.5).tolist()
    assert f(a, total=1.0, y=b).tolist() == (a * 0.5 + b + 1).tolist()
    assert f(y=b, x=a, rate=2).tolist() == (a * 2 + b + 1.5).tolist()
    assert f(a, 1.0, 7, b).tolist() == (a + b + 7).tolist()
    assert float(f["total"]) == 8.0
    monkeypatch.undo()
    f["rate"] = 3.0
    for _ in range(3):
        assert f(a, total=0.0, y=b).tolist() == (a * 3 + b).tolist()
    for args, kwargs, message in (
        ((a,), {"x": a, "y": b}, "several values"), ((a,), {}, "no value for y"),
        ((a,), {"y": b, "z": 1}, "no input named 'z'"), ((a, 1, 1, b, b), {}, "takes 4"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            f(*args, **kwargs)

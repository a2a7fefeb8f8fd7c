"""Arguments that are not contiguous: copied by compiled loops once their layout repeats."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.argument_copies import ArgumentCopies
from symdnn.cpu.execution.laid_out import LaidOutPlan
from symdnn.ops.array.view import Copy

LAYOUTS = {
    "transposed": lambda a: a.T,
    "turned": lambda a: a.reshape(20, 30, 40).transpose(2, 0, 1),
    "steps": lambda a: a[::2, ::-3],
    "broadcast": lambda a: np.broadcast_to(a[:1], (30, 800)),
}


class Counted(np.ndarray):
    copies = 0

    def copy(self, order="C"):
        Counted.copies += 1
        return np.asarray(self).copy(order)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool", "complex64", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_are_those_of_numpy(layout, dtype):
    rng, copies = np.random.default_rng(0), ArgumentCopies()
    for _ in range(9):
        whole = rng.integers(0, 99, (270, 800)).astype(dtype)
        given = LAYOUTS[layout](whole[:30] if layout == "turned" else whole)
        found = copies(given)
        assert found.flags.c_contiguous
        assert found.flags.owndata
        assert np.array_equal(found, given)


def test_a_layout_that_repeats_is_not_copied_by_numpy():
    array, copies = np.zeros((300, 200), np.float32).T.view(Counted), ArgumentCopies()
    counts = []
    for _ in range(12):
        copies(array)
        counts.append(Counted.copies)
    assert 1 <= counts[-1] < 12
    assert counts[-1] == counts[-4]


def test_calls_with_other_strides_take_the_fast_path(monkeypatch):
    x = T.fmatrix()
    f = symdnn.function([x], x.sum(1))
    given = np.random.default_rng(1).normal(size=(6, 50)).astype("float32")
    for _ in range(3):
        f(given)
    monkeypatch.setattr(type(f), "run", None)  # the full path
    assert np.allclose(f(given[:, ::-1]), given.sum(1), atol=1e-4)
    assert np.allclose(f(np.asfortranarray(given)), given.sum(1), atol=1e-4)


VIEWS = {
    **LAYOUTS, "backwards": lambda a: a[::-1, ::-1], "columns": lambda a: a[:, 7:750],
    "every third": lambda a: a[:, 1::3], "broadcast columns": lambda a:
    np.broadcast_to(a[:, :1], a.shape), "not aligned": lambda a: unaligned(a).T,
}  # fmt: skip
PROGRAMS = {
    "elementwise": (lambda x: x * 2 + x[:1], lambda x: x * 2 + x[:1]),
    "transposed": (lambda x: x.swapaxes(0, 1) * 2, lambda x: x.swapaxes(0, 1) * 2),
    "sum": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "sum of all": (lambda x: (x * x).sum(), lambda x: (x * x).sum()),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "part": (lambda x: x[3:, ::2].max(1), lambda x: x[3:, ::2].max(1)),
    "read twice": (lambda x: [x.sum(0), x + 1], lambda x: [x.sum(0), x + 1]),
    "itself": (lambda x: [x, x + 1], lambda x: [x, x + 1]),
}


def unaligned(a):
    memory = np.zeros(a.nbytes + 1, "uint8")
    found = memory[1:].view(a.dtype).reshape(a.shape)
    found[...] = a
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("layout", VIEWS)
def test_large_arguments_of_any_strides(layout, program, dtype):
    """Also of a loop that reads them where they are; results are no views of them."""
    ours, theirs = PROGRAMS[program]
    whole = np.random.default_rng(0).integers(0, 9, (270, 800)).astype(dtype)
    given = VIEWS[layout](whole[:30] if layout == "turned" else whole)
    x = T.TensorType(dtype, (None,) * given.ndim)("x")
    f = symdnn.function([x], ours(x))
    f(np.ascontiguousarray(given))
    for _ in range(8):
        got, want = f(given), theirs(given)
        for a, b in zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]:
            np.testing.assert_allclose(a, b, 1e-6)
            assert not np.shares_memory(a, given)


def laid_out(f):
    """The plans of a function for arguments with certain strides."""
    return [e.bound for e in f._fast.entries.values() if isinstance(e.bound, LaidOutPlan)]


def test_one_loop_reads_an_argument_where_it_is(monkeypatch):
    given = np.random.default_rng(1).normal(size=(300, 200)).astype("float32").T
    x, copies = T.fmatrix(), []
    monkeypatch.setattr(ArgumentCopies, "__call__", lambda self, a: copies.append(a) or a.copy())
    wide, y = given.astype("float64"), T.dmatrix()
    cases = [(x, given, result) for result in (x.sum(1), T.exp(x) + x[0], x.T.argmax(0), x[3:9])]
    cases += [(v, a, T.dot(v[:9], v[:20].T)) for v, a in ((x, given), (y, wide))]
    for v, a, result in cases:
        f = symdnn.function([v], result)
        for _ in range(4):
            first = f(a)
        del copies[:]
        np.testing.assert_allclose(f(a), first, 1e-5)
        assert not copies
        (plan,) = laid_out(f)
        assert not any(isinstance(s.node.op, Copy) for s in plan.steps)


def test_an_argument_that_several_loops_read_is_copied_by_a_step(monkeypatch):
    given = np.random.default_rng(1).normal(size=(300, 200)).astype("float32").T
    x, copies = T.fmatrix(), []
    monkeypatch.setattr(ArgumentCopies, "__call__", lambda self, a: copies.append(a) or a.copy())
    f = symdnn.function([x], [x.sum(1), T.exp(x), x[2:, ::3].max(0)])
    for _ in range(4):
        f(given)
    del copies[:]
    for got, want in zip(f(given), [given.sum(1), np.exp(given), given[2:, ::3].max(0)]):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    assert not copies
    (plan,) = laid_out(f)
    assert sum(isinstance(s.node.op, Copy) for s in plan.steps) == 1


@pytest.mark.parametrize("layout", VIEWS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_small_arguments_of_any_strides_in_hot_plans(layout, program):
    """Also in turns with contiguous ones, when a call is one compiled function."""
    ours, theirs = PROGRAMS[program]
    whole = np.random.default_rng(0).integers(0, 9, (30, 800)).astype("float32")[:, :40]
    given = VIEWS[layout](np.resize(whole, (30, 800)) if layout in LAYOUTS else whole)[:7]
    x = T.TensorType("float32", (None,) * given.ndim)("x")
    f = symdnn.function([x], ours(x))
    for k in range(1100):
        got = f(given if k % 5 else np.ascontiguousarray(given))
        if k % 90 == 0 or k > 1090:
            want = theirs(given)
            for a, b in zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]:
                np.testing.assert_allclose(a, b, 1e-6)
                assert not np.shares_memory(a, given)


def test_a_call_of_a_hot_plan_for_strides_is_one_function_of_these_strides_alone():
    x = T.fmatrix()
    f = symdnn.function([x], x * 2)
    given = np.asfortranarray(np.random.default_rng(0).normal(size=(6, 5)).astype("float32"))
    for _ in range(1100):
        f(given)
    whole = f.at_once
    assert type(whole).__name__ == "builtin_function_or_method"
    assert f(given).flags.f_contiguous
    wider = np.repeat(given, 2, 0)[::2]
    for other in (given, wider, given[::-1], np.ascontiguousarray(given), unaligned(given).T.T):
        f.at_once = whole
        np.testing.assert_array_equal(f(other), other * 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
@pytest.mark.parametrize("layout", [n for n in VIEWS if n != "turned"])
def test_products_of_arguments_of_any_strides(layout, dtype):
    whole = np.random.default_rng(0).integers(0, 9, (270, 800)).astype(dtype)
    a = VIEWS[layout](whole)
    x, y = (T.TensorType(dtype, (None, None))() for _ in range(2))
    f = symdnn.function([x], T.dot(x, x[:70].T))
    g, more = symdnn.function([x, y], T.dot(x.T, y)), np.resize(whole, (len(a), 90))
    for _ in range(4):
        np.testing.assert_array_equal(f(a), a @ a[:70].T)
        np.testing.assert_array_equal(g(a, more), a.T @ more)


def test_the_first_calls_bits_are_those_of_all_where_they_must_be():
    given = np.random.default_rng(1).normal(size=(300, 200)).T
    with symdnn.config.change_flags(deterministic="more"):
        x = T.dmatrix()
        f = symdnn.function([x], (x * x).sum())
        assert len({f(given).item() for _ in range(9)}) == 1


def test_a_plan_for_strides_is_bound_anew_for_another_number_of_threads():
    given = np.random.default_rng(1).normal(size=(700, 300)).astype("float32").T
    x = T.fmatrix()
    f = symdnn.function([x], [T.exp(x).sum(0), T.dot(x, x.T), T.tanh(x)])
    want = [np.exp(given).sum(0), given @ given.T, np.tanh(given)]
    for i in range(8):
        with symdnn.config.change_flags({"openmp.threads": 1 + i % 2}):
            for a, b in zip(f(given), want):
                np.testing.assert_allclose(a, b, 1e-4, 1e-3)
    (plan,) = laid_out(f)
    assert any(isinstance(s.node.op, Copy) for s in plan.steps)

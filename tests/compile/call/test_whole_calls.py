"""Calls of hot functions that are one compiled function: what they take, give, leave to others."""

import gc
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compat.theano.names.user_ops import as_op
from symdnn.config import config
from symdnn.graph.values.storage import CHANGES
from tests.seeded import new_rng

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def one_thread():
    """Other processes may want the processors: then a plan of two threads runs with fewer."""
    with config.change_flags(**{"openmp.threads": 1, "cpu.compile": "always"}):
        yield


def hot(f, *args):
    """``f``, called until a compiled function takes over."""
    for _ in range(3):
        f(*args)
    for plan in f.plans():
        plan.bound.become_hot()
    for _ in range(8):
        f(*args)
    assert is_whole(f)
    return f


def is_whole(f):
    return type(f.at_once) is type(len)


def compiled(inputs, outputs, **more):
    return symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cpu"), **more)


def normal(*shape):
    return new_rng().normal(size=shape).astype("float32")


def test_results_are_those_of_other_calls_and_new_each_time():
    x, y = T.fmatrix("x"), T.fvector("y")
    f = compiled([x, y], [x * y + 1, (x - y).sum(), x.sum(0)])
    a, b = normal(5, 7), normal(7)
    wanted = f(a, b)
    hot(f, a, b)
    first, second = f(a, b), f(a, b)
    for w, one, two in zip(wanted, first, second, strict=True):
        np.testing.assert_array_equal(w, one)
        np.testing.assert_array_equal(w, two)
        assert not np.shares_memory(one, two)
        assert one.flags.owndata
        assert one.flags.writeable


@pytest.mark.parametrize("more", [{}, {"trust_input": True}])
def test_other_arguments_are_taken_as_before(more):
    x = T.fmatrix("x")
    f = compiled([x], T.exp(x) - x)
    a = normal(6, 4)
    hot(f, a)
    f.trust_input = bool(more)
    wide = normal(12, 8)
    for other in (normal(4, 6), normal(1, 1), a.T, wide[::2, ::2], normal(0, 3), a):
        np.testing.assert_allclose(f(other), np.exp(other) - other, 1e-5, 1e-6)
        assert f(other).shape == other.shape
    assert is_whole(f)
    f.trust_input = False
    np.testing.assert_allclose(f(a.tolist()), np.exp(a) - a, 1e-5, 1e-6)
    np.testing.assert_allclose(f(x=a), np.exp(a) - a, 1e-5, 1e-6)
    np.testing.assert_allclose(f(a.astype(">f4")), np.exp(a) - a, 1e-5, 1e-6)
    for wrong in (a[0], a.astype("float64") + 1e-12, None, "a"):
        with pytest.raises((TypeError, ValueError)):
            f(wrong)
    for count in ((), (a, a)):
        with pytest.raises(TypeError):
            f(*count)


def test_structures_of_results():
    x, a = T.fvector("x"), normal(9)
    for outputs, of in (({"p": x + 1, "q": x * 2}, dict), ([x + 1], list), (x + 1, np.ndarray)):
        f = hot(compiled([x], outputs), a)
        assert type(f(a)) is of
    np.testing.assert_array_equal(hot(compiled([x], {"p": x + 1, "q": x * 2}), a)(a)["q"], 2 * a)


def test_workspaces_are_the_functions_own():
    """Products pack panels. A function that is called while another holds the arena has others."""
    x, y = T.fmatrix("x"), T.fmatrix("y")
    f = compiled([x, y], T.dot(T.dot(x, y), y))
    a, b = normal(16, 16), normal(16, 16)
    wanted = f(a, b)
    hot(f, a, b)
    other = compiled([x], T.dot(T.exp(x), x).sum(0))
    for _ in range(3):
        other(normal(64, 64))
        np.testing.assert_array_equal(f(a, b), wanted)
    f.plans()[0].bound.detach()
    np.testing.assert_array_equal(f(a, b), wanted)
    np.testing.assert_array_equal(f(x=a, y=b), wanted)


def test_nothing_leaks():
    x = T.fvector("x")
    f = hot(compiled([x], [x + 1, x * 2]), normal(300))
    a = normal(300)
    gc.collect()
    before = sys.getrefcount(a), sys.getrefcount(None), sys.getrefcount(a.dtype)
    tracemalloc.start()
    try:
        f(a)
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(5000):
            r = f(a)
        del r
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - base < 20_000
    finally:
        tracemalloc.stop()
    after = sys.getrefcount(a), sys.getrefcount(None), sys.getrefcount(a.dtype)
    assert all(abs(n - m) < 4000 for n, m in zip(before, after, strict=True)), (before, after)
    for _ in range(3000):
        f(a[:7])
    assert abs(sys.getrefcount(a) - before[0]) < 20
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


def test_an_index_out_of_range_raises_as_before_and_the_next_call_is_right():
    x, i = T.fvector("x"), T.lvector("i")
    f = compiled([x, i], x[i] * 2)
    a, good, bad = normal(50), np.arange(9), np.array([3, 50, 2, 1, 0, 4, 5, 6, 7])
    hot(f, a, good)
    for _ in range(2):
        with pytest.raises(IndexError, match="50"):
            f(a, bad)
        np.testing.assert_array_equal(f(a, good), a[good] * 2)


def test_plans_that_are_dropped_and_functions_that_are_freed():
    x = T.fvector("x")
    f = hot(compiled([x], x + 1), normal(8))
    taken, a = f.at_once, normal(8)
    f.free()
    assert not is_whole(f)
    np.testing.assert_array_equal(f(a), a + 1)
    np.testing.assert_array_equal(taken(f, (a,))[0], a + 1)  # it keeps what it reads


def test_large_results_are_memory_of_their_own_while_they_are_held():
    x, a = T.fvector("x"), normal(1 << 17)
    f = hot(compiled([x], [x + 1, x.sum()]), a)
    held = [f(a * k)[0] for k in range(4)]
    for k, r in enumerate(held):
        np.testing.assert_array_equal(r, a * k + 1)
    place = held[-1].ctypes.data
    del held, r
    assert f(a)[0].ctypes.data == place


def test_other_flags_are_seen():
    """A plan of one thread that has work for several is bound again where flags allow them."""
    x, a = T.fmatrix("x"), normal(700, 600)
    f = compiled([x], [T.exp(x), x.sum(1)])
    hot(f, a)
    wanted = f(a)
    bound = f.plans()[0].bound
    assert bound.parallel
    with config.change_flags(**{"openmp.threads": 2}):
        for _ in range(3):
            for found, w in zip(f(a), wanted, strict=True):
                np.testing.assert_array_equal(found, w)
        assert bound.threads == 2
    for found, w in zip(f(a), wanted, strict=True):
        np.testing.assert_array_equal(found, w)


def test_threads_call_one_function():
    x, y = T.fmatrix("x"), T.fmatrix("y")
    f = compiled([x, y], T.dot(T.dot(x, y), y))
    arrays = [(normal(12, 12) + k, normal(12, 12)) for k in range(4)]
    hot(f, *arrays[0])
    wanted = [f(*pair) for pair in arrays]
    faults = []

    def run(k):
        for _ in range(400):
            if not np.array_equal(f(*arrays[k]), wanted[k]):
                faults.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_what_has_more_to_do_is_no_compiled_function():
    x, m = T.fvector("x"), T.fmatrix("m")
    shared = symdnn.shared(normal(5))
    counted = compiled([x], x + 1, updates=[(shared, shared + 1)])
    library = compiled([m], T.tanh(T.dot(m, m)))  # oneDNN's, by as many threads as the caller has
    for f, a in ((counted, normal(5)), (library, normal(300, 300))):
        for _ in range(3):
            f(a)
        f.plans()[-1].bound.become_hot()
        for _ in range(8):
            f(a)
        assert not is_whole(f)


def layer():
    """A hot layer of shared variables, its variables, and its value by NumPy."""
    w, b = symdnn.shared(normal(7, 5), "w"), symdnn.shared(normal(5), "b")
    x = T.fmatrix("x")
    f = hot(compiled([x], T.dot(x, w) * 2 + b), normal(3, 7))
    return f, w, b, lambda a: a @ w.get_value() * 2 + b.get_value()


def replaced(w, b):
    w.set_value(normal(7, 5) + 3)


def replaced_by_borrowed(w, b):
    w.set_value(mine := normal(7, 5) + 3, borrow=True)
    b.set_value(normal(5) - 3, borrow=True)
    mine *= 2


def written_in_place(w, b):
    w.get_value(borrow=True)[2:] = 7
    b.container.data[:] -= 2


def updated(w, b):
    x = T.fvector("x")
    step = compiled([x], [], updates=[(w, w - x * 0.5), (b, b + x)])
    for _ in range(20):
        step(normal(5))


SHARED_CHANGES = [replaced, replaced_by_borrowed, written_in_place, updated]


@pytest.mark.parametrize("change", SHARED_CHANGES)
def test_shared_variables_are_read_as_they_are_now(change):
    f, w, b, wanted = layer()
    a = normal(3, 7)
    for _ in range(3):
        change(w, b)
        for _ in range(4):
            np.testing.assert_allclose(f(a), wanted(a), 1e-5, 1e-5)
    assert is_whole(f)
    f(a)
    kept = f.at_once.__self__.kept[0]
    assert kept is CHANGES[0]


def test_values_of_other_variables_do_not_matter():
    f, _, _, _ = layer()
    kept, other = f.at_once.__self__.kept[0], symdnn.shared(normal(5))
    other.set_value(normal(5))
    f(normal(3, 7))
    assert CHANGES[0] is kept


def test_shared_variables_of_other_shapes():
    w, x = symdnn.shared(normal(7)), T.fvector("x")
    f, a = compiled([x], w * x[0]), normal(3)
    hot(f, a)
    for n in (3, 9, 7):
        w.set_value(normal(n))
        for _ in range(4):
            np.testing.assert_allclose(f(a), w.get_value() * a[0], 1e-6)


def test_a_call_waits_for_an_update_of_another_thread():
    """Updates may release Python's lock between one variable and the next."""
    kept, x = [symdnn.shared(np.zeros((120, 120), "f")) for _ in range(2)], T.fvector("x")
    f = compiled([x], [x + w[0, 0] for w in kept])
    hot(f, normal(2))
    step = compiled([], [], updates=[(w, T.dot(w, w) * 0 + w + 1) for w in kept])
    stop, faults = threading.Event(), []

    def read():
        zero = np.zeros(2, "f")
        while not stop.is_set():
            first, last = f(zero)
            if first[0] != last[0]:
                faults.append((first, last))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(500):
        step()
    stop.set()
    reader.join()
    assert not faults
    assert is_whole(f)


def test_a_function_that_a_users_op_calls_is_no_nested_compiled_one():
    f, _, _, wanted = layer()
    a = normal(3, 7)
    x = T.fmatrix("x")
    outer = compiled([x], as_op([T.fmatrix], [T.fmatrix])(lambda v: f(v))(x))
    np.testing.assert_allclose(outer(a), wanted(a), 1e-5, 1e-5)


@pytest.mark.parametrize("n", [5, 300])
def test_a_result_that_is_a_reshaped_one_is_made_in_its_shape(rng, n):
    x = T.TensorType("float32", (n, 7))("x")
    outs = [T.tile(x, (3, 1)), T.repeat(x, 2, 1), T.kron(x, x[:2, :2]), T.diagonal(x[:, ::2])]
    f = hot(symdnn.function([x], outs), rng.normal(size=(n, 7)).astype("float32"))
    for _ in range(3):
        a = rng.normal(size=(n, 7)).astype("float32")
        found = f(a)
        wanted = np.tile(a, (3, 1)), np.repeat(a, 2, 1), np.kron(a, a[:2, :2]), a[:, ::2].diagonal()
        for own, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(own, expected)
            assert own.flags.c_contiguous
            assert own.flags.writeable


def test_a_part_of_a_result_and_one_beside_its_view_are_no_compiled_function(rng):
    x, a = T.TensorType("float32", (6, 7))("x"), rng.normal(size=(6, 7)).astype("float32")
    wide = T.exp(x)
    for outs in ([wide, wide.reshape((42,))], [T.exp(x)[:, :3]]):
        f = symdnn.function([x], outs)
        for _ in range(30):
            found = f(a)
        np.testing.assert_allclose(found[0], np.exp(a)[:, : found[0].shape[1]], rtol=1e-6)
        np.testing.assert_allclose(found[-1].ravel()[:3], np.exp(a).ravel()[:3], rtol=1e-6)


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("what", ["sums", "rows", "product", "update"])
def test_the_first_call_of_a_loop_rounds_as_later_ones_do(what, size):
    """With ``cpu.compile=always``; the arguments need not lie in order."""
    s, h = T.dmatrix("s"), T.dvector("h")
    steps = symdnn.scan(lambda a, b: T.tanh(a * 0.5 + b * 0.3), sequences=[s], outputs_info=[h])[0]
    kept = symdnn.shared(np.zeros(()))
    outputs = {"sums": steps.sum(), "rows": steps.sum(axis=1), "product": T.dot(steps, steps.T)}
    updates = [(kept, steps.sum())] if what == "update" else []
    f = compiled([s, h], outputs.get(what, steps[0]), updates=updates)
    rng = new_rng()
    args = rng.normal(size=(4, size)), rng.normal(size=size)
    other = rng.normal(size=(3, 9)), rng.normal(size=9)
    found = []
    for given in (args, args, other, (np.asfortranarray(args[0]), args[1]), args):
        found.append((f(*given).copy(), kept.get_value()))
    for result, state in (found[1], *found[3:]):
        np.testing.assert_array_equal(result, found[0][0], strict=True)
        assert state == found[0][1]


SMALL = {
    "argmax": lambda x: x.argmax(1), "sort": lambda x: T.sort(x, 1),
    "roll": lambda x: T.roll(x, 3, 1), "cumsum": lambda x: T.cumsum(x, 1),
    "join": lambda x: T.concatenate([x, x], 1),
    "part": lambda x: T.set_subtensor(x[1:3], 0), "pad": lambda x: T.pad(x, 1),
    "rows": lambda x: x[np.array([2, 0])], "product": lambda x: T.dot(x, x[0]),
    "centred": lambda x: x - x.mean(1, keepdims=True),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_small_steps_are_one_function_however_many_threads_there_may_be(name):
    """Their kernels were NumPy's at first, which may run threads of BLAS."""
    a = normal(6, 9)
    x = T.fmatrix("x")
    with config.change_flags(**{"openmp.threads": 2, "cpu.compile": "auto"}):
        f = compiled([x], SMALL[name](x))
        wanted = f(a)
        hot(f, a)
        np.testing.assert_allclose(f(a), wanted, 1e-5, 1e-6)

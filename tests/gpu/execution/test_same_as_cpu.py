"""Whole functions on a GPU against the same on the CPU, and what only a sequence of calls shows."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, Out
from symdnn.config import config
from symdnn.errors import DimensionMismatch, InputError
from symdnn.gpu.device.driver_api import bindings, checked
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values import dlpack

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

CPU, CUDA = {"device": "cpu"}, {"device": "cuda"}


def on_both(build):
    """What ``build()`` gives when it is compiled for the CPU, and for the GPU."""
    with config.change_flags(**CPU):
        first = build()
    with config.change_flags(**CUDA):
        return first, build()


def close(a, b, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), rtol, atol)


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


# -- the demo -------------------------------------------------------------------------------------


def demo_losses(steps=20, seed=3):
    """Losses of the demo's training steps, and the parameters after them."""
    from symdnn.demo.data import batches, load_digits
    from symdnn.demo.network import build

    digits, network, rng = load_digits(), build(seed), np.random.default_rng(seed)
    data = itertools.islice(batches(digits.train_x, digits.train_y, 64, rng), steps)
    losses = [float(network.train(x, y, np.float32(0.002))[0]) for x, y in data]
    return np.array(losses), network


def test_the_first_losses_of_the_demo_agree():
    pytest.importorskip("sklearn")
    (wanted, on_cpu), (losses, on_gpu) = on_both(demo_losses)
    assert losses[-1] < 0.7 * losses[0], "it does not learn"
    # Where a unit of a relu or a window's maximum is at a tie, rounding decides its gradient, and
    # Adam's first step moves a parameter by the rate whatever its gradient's size: two of 48 biases
    # whose gradient is rounding alone move the CPU's own losses by 2e-4 within 8 steps.
    np.testing.assert_allclose(losses[:8], wanted[:8], rtol=1e-3)
    np.testing.assert_allclose(losses, wanted, rtol=1e-2)
    assert on_gpu.train.stages.target.kind == "cuda"
    assert on_cpu.train.stages.target.kind == "cpu"


def test_the_demo_runs_wholly_on_the_gpu():
    with config.change_flags(**CUDA, assert_lowered="raise"):
        _, network = demo_losses(steps=1)
    names = {type(n.op).__name__ for n in network.train.fgraph.nodes}
    assert {"GpuDnnConv", "GpuDnnConvGradW", "GpuDnnPool", "GpuDnnPoolGrad"} <= names


def test_the_demo_has_the_same_bits_each_time():
    pytest.importorskip("sklearn")
    with config.change_flags(**CUDA, deterministic="more"):
        first, one = demo_losses()
        second, two = demo_losses()
    assert first.tobytes() == second.tobytes()
    for name, value in one.values().items():
        assert value.tobytes() == two.values()[name].tobytes(), name


# -- parameters and shapes ------------------------------------------------------------------------


def two_functions():
    """A training step and a prediction that share parameters."""
    x, t = T.matrix("x"), T.matrix("t")
    w = symdnn.shared(rand(5, 3, seed=1), name="w")
    y = T.tanh(T.dot(x, w))
    loss = ((y - t) ** 2).mean()
    train = symdnn.function([x, t], loss, updates=[(w, w - 0.5 * T.grad(loss, w))])
    return w, train, symdnn.function([x], y)


def test_two_functions_share_parameters():
    models = on_both(two_functions)
    x, t = rand(7, 5), rand(7, 3, seed=2)
    for _ in range(4):
        for results in zip(*((train(x, t), predict(x)) for _, train, predict in models)):
            close(*results)
    close(models[0][0].get_value(), models[1][0].get_value())


def test_a_variable_is_used_on_the_cpu_and_on_the_gpu_in_turn():
    w = symdnn.shared(np.zeros(4, "float32"))
    with config.change_flags(**CPU):
        on_cpu = symdnn.function([], w.sum(), updates=[(w, w + 1)])
    with config.change_flags(**CUDA):
        on_gpu = symdnn.function([], w.sum(), updates=[(w, w * 2)])
    assert [float(f()) for f in (on_cpu, on_gpu, on_gpu, on_cpu, on_gpu)] == [0, 4, 8, 16, 20]
    np.testing.assert_array_equal(w.get_value(), np.full(4, 10))


def test_shapes_change_and_change_back():
    def build():
        x, w = T.tensor4("x"), symdnn.shared(rand(4, 3, 3, 3, seed=1))
        y = T.nnet.relu(T.nnet.conv2d(x, w, border_mode="half"))
        y = T.signal.pool.pool_2d(y, (2, 2), ignore_border=True)
        loss = (y**2).sum()
        return symdnn.function([x], [loss, y, T.grad(loss, w)])

    on_cpu, on_gpu = on_both(build)
    shapes = [(2, 3, 8, 8), (5, 3, 6, 10), (2, 3, 8, 8), (1, 3, 31, 17), (5, 3, 6, 10)]
    for seed, shape in enumerate(shapes):
        x = rand(*shape, seed=seed)
        for a, b in zip(on_gpu(x), on_cpu(x)):
            close(a, b, 1e-4, 1e-4)
    assert len(on_gpu.plans()) == 3


def test_values_are_set_between_calls():
    w = symdnn.shared(rand(3, 2), name="w")
    with config.change_flags(**CUDA):
        f = symdnn.function([], [w.sum(), (w * 2).T], updates=[(w, w + 1)])
    for value in (rand(3, 2, seed=1), rand(3, 2, seed=2), rand(6, 5, seed=3), rand(3, 2, seed=4)):
        w.set_value(value)
        total, doubled = f()
        close(total, value.sum(), 1e-4, 1e-5)
        close(doubled, (value * 2).T)
        close(w.get_value(), value + 1)


def test_the_minibatch_idiom_makes_one_plan():
    data, i = symdnn.shared(rand(40, 6)), T.lscalar("i")
    x = T.matrix("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([i], (x * 2).sum(1), givens={x: data[i * 8 : (i + 1) * 8]})
    for n in (0, 3, 1, 4):
        close(f(n), (data.get_value()[n * 8 : n * 8 + 8] * 2).sum(1), 1e-5, 1e-5)
    assert len(f.plans()) == 1


def test_random_numbers_are_the_same():
    def build():
        stream = symdnn.tensor.random.RandomStream(7)
        sizes = (300, 5)
        draws = [stream.uniform(sizes), stream.normal(sizes), stream.binomial(sizes, p=0.3)]
        return symdnn.function([], draws)

    on_cpu, on_gpu = on_both(build)
    for _ in range(3):
        for a, b in zip(on_gpu(), on_cpu()):
            close(a, b, 1e-5, 1e-6)


# -- errors on data -------------------------------------------------------------------------------


def classifier():
    x, t = T.matrix("x"), T.ivector("t")
    w = symdnn.shared(rand(6, 4, seed=1), name="w")
    p = T.nnet.softmax(T.dot(x, w))
    loss = T.nnet.categorical_crossentropy(p, t).mean()  # the label is looked up here
    updates = [(w, w - 0.1 * T.grad(loss, w))]
    train = symdnn.function([x, t], loss, updates=updates)
    return w, train, symdnn.function([x, t], [], updates=updates)


@pytest.mark.parametrize("label", [4, -1, 1000000])
def test_a_label_out_of_range_is_an_error_and_changes_nothing(label):
    with config.change_flags(**CUDA):
        w, train, _ = classifier()
    x, good = rand(5, 6), np.array([0, 1, 2, 3, 0], "int32")
    bad = good.copy()
    bad[3] = label
    train(x, good)
    before = w.get_value()
    with pytest.raises(IndexError, match=str(label)) as caught:
        train(x, bad)
    notes = "\n".join(caught.value.__notes__)
    assert __file__ in notes, "the user's line is not named"
    assert w.get_value().tobytes() == before.tobytes()
    with config.change_flags(**CPU):
        other, expected, _ = classifier()
    other.set_value(before)
    close(train(x, good), expected(x, good))
    close(w.get_value(), other.get_value())


def test_a_call_without_results_fails_before_the_value_is_read():
    with config.change_flags(**CUDA):
        w, _, update = classifier()
    x, good = rand(5, 6), np.array([0, 1, 2, 3, 0], "int32")
    update(x, good)
    before = w.get_value()
    update(x, good + 4)
    with pytest.raises(IndexError):
        w.get_value()
    assert w.get_value().tobytes() == before.tobytes()
    update(x, good)
    assert w.get_value().tobytes() != before.tobytes()


def test_a_call_without_results_fails_before_the_next_call():
    with config.change_flags(**CUDA):
        w, train, update = classifier()
    x, good = rand(5, 6), np.array([0, 1, 2, 3, 0], "int32")
    loss = train(x, good)
    before = w.get_value()
    update(x, good + 4)
    with pytest.raises(IndexError):
        train(x, good)
    assert w.get_value().tobytes() == before.tobytes()
    assert train(x, good) < loss


def test_an_index_out_of_range_is_an_error():
    x, i = T.matrix("x"), T.lvector("i")
    with config.change_flags(**CUDA):
        f = symdnn.function([x, i], x[i] * 2)
    value = rand(4, 3)
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=str(wrong)):
            f(value, [0, wrong, 1])
        close(f(value, [3, -4, 0]), value[[3, -4, 0]] * 2)


def test_a_wrong_shape_is_an_error_before_anything_runs():
    with config.change_flags(**CUDA):
        w, train, _ = two_functions()
    with pytest.raises(DimensionMismatch):
        train(rand(7, 4), rand(7, 3))
    close(w.get_value(), rand(5, 3, seed=1))
    assert np.isfinite(train(rand(7, 5), rand(7, 3)))


# -- threads --------------------------------------------------------------------------------------


def test_functions_are_called_from_two_threads():
    """Each thread has a function of its own, and both call one that they share."""
    x = T.matrix("x")
    w = symdnn.shared(rand(16, 16, seed=9) / 8)
    count = symdnn.shared(np.float32(0))
    with config.change_flags(**CUDA):
        own = [symdnn.function([x], T.tanh(T.dot(x, w)) + n) for n in range(2)]
        common = symdnn.function([x], (x * 3).sum(0), updates=[(count, count + 1)])
    weights, failures = w.get_value(), []

    def work(n):
        try:
            for step in range(50):
                value = rand(4 + step % 3 + n, 16, seed=step)
                close(own[n](value), np.tanh(value @ weights) + n, 1e-4, 1e-5)
                close(common(value), (value * 3).sum(0), 1e-4, 1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert count.get_value() == 100


# -- arrays of other libraries --------------------------------------------------------------------


class OnlyDLPack:
    """An array that has DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


def test_an_array_on_the_gpu_is_an_input(arrays):
    x, y = T.matrix("x"), T.matrix("y")
    with config.change_flags(**CUDA):
        f = symdnn.function([x, y], T.dot(x, y) + 1)
    a, b = rand(4, 5), rand(5, 3, seed=1)
    close(f(arrays.to_gpu(a), b), a @ b + 1)
    close(f(a, y=arrays.to_gpu(b)), a @ b + 1)
    close(f(arrays.transposed(arrays.to_gpu(a.T)), b), a @ b + 1)  # strided
    f.trust_input = True
    close(f(arrays.to_gpu(a), b), a @ b + 1)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bool"])
def test_dtypes_of_arrays_on_the_gpu(arrays, dtype):
    x = T.TensorType(dtype, (None, None))("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], T.switch(x.astype("float64") > 0, 2.0, -1.0))
    value = (rand(6, 7) * 3).astype(dtype)
    close(f(arrays.to_gpu(value)), np.where(value.astype("f8") > 0, 2, -1))


def test_what_an_array_on_the_gpu_must_be(arrays):
    x = T.matrix("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], x + 1)
    with pytest.raises(InputError, match="float64"):
        f(arrays.to_gpu(np.zeros((2, 2))))
    with pytest.raises(DimensionMismatch):
        f(arrays.to_gpu(np.zeros(2, "float32")))
    on_cpu = symdnn.function([x], x + 1, mode=Mode(target="cpu"))
    with pytest.raises(InputError, match="runs on the CPU"):
        on_cpu(arrays.to_gpu(np.zeros((2, 2), "float32")))


@pytest.mark.parametrize("wrap", [lambda a: a, OnlyDLPack], ids=["interface", "dlpack"])
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_other_libraries(card, library, wrap):
    module = pytest.importorskip(library)
    x = T.matrix("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], T.exp(x).sum(1))
    host = rand(5, 6)
    value = module.asarray(host) if library == "cupy" else module.from_numpy(host).cuda()
    close(f(wrap(value)), np.exp(host).sum(1))
    close(f(wrap(value.T[1:])), np.exp(host.T[1:]).sum(1))


class Memory:
    """Four numbers at an address."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "<f4", "data": (address, False), "version": 2,
        }  # fmt: skip


def test_an_array_of_another_context_is_refused(card):
    driver = bindings()
    x = T.vector("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], x * 2)
    device = checked(driver.cuDeviceGet(card.context.index))
    other = checked(driver.cuCtxCreate(None, 0, device))  # it is current now
    try:
        address = int(checked(driver.cuMemAlloc(16)))
        checked(driver.cuCtxPopCurrent())
        with pytest.raises(InputError, match=r"pycuda\.autoprimaryctx"):
            f(Memory(address))
    finally:
        checked(driver.cuCtxDestroy(other))
    close(f(rand(4)), rand(4) * 2)


def test_a_gpuarray_is_taken_whatever_the_runtime(card):
    gpuarray = pytest.importorskip("pycuda.gpuarray")
    x = T.matrix("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], T.exp(x).sum(1))
    primary = pytest.importorskip("pycuda.driver").Device(card.context.index)
    primary = primary.retain_primary_context()
    primary.push()
    try:
        value = gpuarray.to_gpu(rand(5, 6))
        close(f(value), np.exp(rand(5, 6)).sum(1))
        close(f(value.T), np.exp(rand(5, 6)).sum(0))
    finally:
        primary.pop()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_dlpack_takes_arrays_to_other_libraries(arrays, library, dtype):
    if arrays.of_pycuda:
        pytest.skip("it is about symdnn.gpu.DeviceArray")
    if (library, dtype) == ("cupy", "bfloat16"):
        pytest.skip("CuPy has no bfloat16")
    other = pytest.importorskip(library)
    value = np.arange(30).reshape(5, 6).astype(numpy_dtype(dtype))
    taken = other.from_dlpack(arrays.to_gpu(value))  # which nobody else has
    close((taken * 2).sum(1).tolist(), value.astype("f8").sum(1) * 2, 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
def test_dlpack_of_the_gpu_both_ways(card, arrays, dtype):
    if arrays.of_pycuda:
        pytest.skip("PyCUDA's arrays have no DLPack")
    value = np.arange(30).reshape(5, 6).astype(numpy_dtype(dtype))
    seen = symdnn.from_dlpack(OnlyDLPack(arrays.to_gpu(value)))
    assert isinstance(seen, arrays.Array)
    np.testing.assert_array_equal(seen.get(), value)
    with config.change_flags(**CUDA):
        w = symdnn.shared(value)
        x = T.TensorType(dtype, (None, None))("x")
        same = symdnn.function([x], T.eq(x, w))
        assert same(OnlyDLPack(seen)).all()
        assert w.__dlpack_device__() == seen.__dlpack_device__()
        inside = symdnn.from_dlpack(w)
        assert inside.ptr == w.get_value(borrow=True, return_internal_type=True).ptr
        w.set_value(np.zeros_like(value))
        assert not inside.get().astype("float32").any()
    capsule = inside.__dlpack__(dl_device=(1, 0), max_version=(1, 0))  # a copy on the host
    assert dlpack.describe(capsule, "x").device == (1, 0)


def test_a_pointer_to_nothing_is_refused(card):
    x = T.vector("x")
    with config.change_flags(**CUDA):
        f = symdnn.function([x], x * 2)

    with pytest.raises(InputError, match="no memory of a CUDA device"):
        f(Memory(4096))


def test_a_borrowed_output_stays_on_the_gpu(arrays):
    x = T.matrix("x")
    w = symdnn.shared(rand(4, 3, seed=1))
    with config.change_flags(**CUDA):
        f = symdnn.function([x], [Out(T.dot(x, w), borrow=True), Out(x.T, borrow=True), x.sum()])
        g = symdnn.function([x], (x * 2).sum())
    value = rand(5, 4)
    product, transposed, total = f(value)
    assert isinstance(product, arrays.Array)
    close(product.get(), value @ w.get_value(), 1e-5, 1e-5)
    close(transposed.get(), value.T)
    close(total, value.sum(), 1e-4, 1e-5)
    close(g(product), 2 * (value @ w.get_value()).sum(), 1e-4, 1e-5)


def test_arrays_at_other_addresses_in_calls_that_repeat(arrays):
    """The second call is captured; what is given to later ones lies elsewhere."""
    x = T.matrix("x")
    w = symdnn.shared(rand(6, 6, seed=1))
    with config.change_flags(**CUDA):
        y = T.tanh(T.dot(x, w))
        f = symdnn.function([x], [Out(y, borrow=True), y.sum(1), T.dot(y, w).max()])
    given = [rand(5, 6, seed=n) for n in range(6)]
    on_device = [arrays.to_gpu(value) for value in given]
    for value, array in zip(given, on_device):
        lent, sums, largest = f(array)
        expected = np.tanh(value @ w.get_value())
        close(lent.get(), expected, 1e-5, 1e-5)
        close(sums, expected.sum(1), 1e-4, 1e-4)
        close(largest, (expected @ w.get_value()).max(), 1e-4, 1e-4)


def test_a_borrowed_output_of_a_failing_call(arrays):
    x, i = T.matrix("x"), T.lvector("i")
    with config.change_flags(**CUDA):
        f = symdnn.function([x, i], Out(x[i], borrow=True))
    f(rand(4, 3), [0, 9])
    with pytest.raises(IndexError):
        f(rand(4, 3), [0, 1])
    close(f(rand(4, 3), [2, 1]).get(), rand(4, 3)[[2, 1]])


def test_the_internal_value_is_the_memory_on_the_gpu(arrays):
    w = symdnn.shared(rand(3, 2), name="w")
    with config.change_flags(**CUDA):
        step = symdnn.function([], updates=[(w, w + 1)])
    step()
    inside = w.get_value(borrow=True, return_internal_type=True)
    assert isinstance(inside, arrays.Array)
    close(inside.get(), rand(3, 2) + 1)
    arrays.write(inside, np.full((3, 2), 5, "float32"))
    close(w.get_value(), np.full((3, 2), 5))
    step()
    close(inside.get(), np.full((3, 2), 6))
    close(w.get_value(), np.full((3, 2), 6))


K = np.array([0.5, -0.25, 3], "f")


def constant_states(x):
    loop, _ = symdnn.scan(
        lambda a, b: (a * x, b + a), outputs_info=[T.constant(K), K * 2], n_steps=3
    )
    return loop


def constant_sequence(x):
    first = T.constant(np.float32(-0.537))
    return symdnn.scan(
        lambda q, a: a * 0.5 + q * x[0], sequences=T.constant(K), outputs_info=first
    )[0]


def constant_results(x):
    out, _ = symdnn.scan(lambda a, b: [T.constant(K), a + b], outputs_info=[x, x], n_steps=4)
    return out


def constant_branch(x):
    return [symdnn.ifelse(x[0] > 1, T.constant(K), x * 2) * 3]


def until_with_constants(x):
    def step(q, a):
        return a + q, symdnn.until(a > 1)

    first = T.constant(np.float32(-0.537))
    return symdnn.scan(step, sequences=T.constant(K), outputs_info=first)[0] * x[0]


@pytest.mark.parametrize("optimizer", [None, "fast_run"])
@pytest.mark.parametrize(
    "build",
    [constant_states, constant_sequence, constant_results, constant_branch, until_with_constants],
)
def test_constants_enter_loops_and_branches_where_these_run(build, optimizer):
    x = T.fvector("x")
    out = build(x)
    found = []
    for flags in (CPU, CUDA):
        with config.change_flags(flags):
            f = symdnn.function([x], out, mode=Mode(optimizer=optimizer))
            found.append(
                [f(np.array(v, "f")) for v in ([1, 2, 3], [4, 5, 6], [1, 2, 3], [1, 2, 3])]
            )
    for got, want in zip(*found):
        for a, b in zip(got, want) if isinstance(got, list) else [(got, want)]:
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [None, "fast_compile", "fast_run"])
@pytest.mark.parametrize("inline", [False, True])
def test_an_op_from_a_graph(inline, optimizer):
    """Without rewrites that expand it, it runs by its graph on the host."""
    v = T.fvector()
    square = symdnn.OpFromGraph([v], [v**2 + 1], inline=inline)
    x = T.fvector("x")
    with config.change_flags(CUDA):
        f = symdnn.function(
            [x], [T.exp(square(x)), T.grad(square(x).sum(), x)], mode=Mode(optimizer=optimizer)
        )
    value, slope = f(np.array([0.5, 1], "f"))
    np.testing.assert_allclose(np.asarray(value), np.exp([1.25, 2]), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(slope), [1, 2], rtol=1e-6)


def host(a):
    """A result as an array of NumPy's."""
    return a.get() if hasattr(a, "get") else np.asarray(a)


# -- results that are views -----------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["auto", "off"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_that_are_views_of_values(dtype, graph):
    x, w = T.TensorType(dtype, (4, 6, 10, 16))("x"), T.TensorType(dtype, (16, 24))("w")
    scaled, product = T.tanh(x) * 2, T.dot(x.reshape((240, 16)), w)
    views = [
        scaled.dimshuffle(0, 2, 1, 3).reshape((4, 960)), (x - 1).dimshuffle(3, 2, 1, 0),
        (x + 1).reshape((16, 240)), product.reshape((4, 6, 10, 24)), product.T,
        (x * 3).dimshuffle(0, 3, 1, 2).reshape((4, 16, 60)), scaled.sum(axis=(1, 2)),
    ]  # fmt: skip
    outs = [Out(v, borrow=True) for v in views]
    with config.change_flags(**{"device": "cuda", "gpu.graph": graph}):
        f = symdnn.function([x, w], outs)
    g = symdnn.function([x, w], views, mode=Mode(target="cpu"))
    tol = 1e-5 if dtype == "float32" else 0.02
    for i in range(5):
        given = [rand(*v.type.shape, seed=i).astype(numpy_dtype(dtype)) for v in (x, w)]
        for a, b in zip(f(*given), g(*given), strict=True):
            close(np.float64(host(a)), np.float64(b), tol, tol)


def test_results_of_a_loop_that_are_views():
    h = T.TensorType("float32", (6, 4))("h")

    def step(v):
        return (T.tanh(v) + 1).T.reshape((6, 4)), (v * 2).T

    def build():
        out, _ = symdnn.scan(step, outputs_info=[h, None], n_steps=5)
        return symdnn.function([h], out)

    f, g = on_both(build)
    for i in range(3):
        given = rand(6, 4, seed=i)
        for a, b in zip(f(given), g(given), strict=True):
            close(a, b)

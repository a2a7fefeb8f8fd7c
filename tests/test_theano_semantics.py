"""What programs written for Theano rely on: one test or more for each rule of its semantics."""

import copy
import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function, grad, shared
from symdnn.config import config

F32 = np.float32


@pytest.fixture(autouse=True)
def theanos_casting():
    """What Theano's programs set: its rule for Python numbers."""
    with config.change_flags(cast_policy="custom"):
        yield


# --- types and floatX -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "int8"),
        (300, "int16"),
        (70000, "int32"),
        (3.0, "float32"),
        ([1.0, 2.0], "float64"),
        (np.float64(1), "float64"),
        (True, "bool"),
    ],
)
def test_dtype_of_constants(value: object, dtype: str) -> None:
    with config.change_flags(floatX="float32"):
        assert T.constant(value).dtype == dtype


def test_shared_of_a_python_float_is_float64() -> None:
    assert shared(3.0).dtype == "float64"


def test_upcasts() -> None:
    f, i8, i32, i64 = T.fvector(), T.bvector(), T.ivector(), T.lvector()
    with config.change_flags(floatX="float32"):
        assert (f + i8).dtype == "float32"
        assert (f + i32).dtype == "float64"
        assert (f * i64).dtype == "float64"
        assert (f * f.shape[0]).dtype == "float64"
        assert (i32 / i64).dtype == "float32"
        assert (i32 + 1.0).dtype == "float64"
    with config.change_flags(floatX="float64"):
        assert (i32 / i64).dtype == "float64"
        assert (f * 1.5).dtype == "float32"


def test_dtypes_of_reductions_and_comparisons() -> None:
    i32, b = T.ivector(), T.vector(dtype="bool")
    assert i32.mean().dtype == b.mean().dtype == "float64"
    assert i32.sum().dtype == b.sum().dtype == "int64"
    assert (i32 < 3).dtype == "bool"


def test_a_gradient_has_the_dtype_of_what_it_is_taken_with_respect_to() -> None:
    x, y = T.fvector("x"), T.dvector("y")
    gx, gy = grad((x * y).sum(), [x, y])
    assert (gx.dtype, gy.dtype) == ("float32", "float64")


# --- inputs ---------------------------------------------------------------------------------------


def test_lists_and_numbers_convert() -> None:
    x, s = T.fmatrix("x"), T.fscalar("s")
    f = function([x, s], x * s)
    np.testing.assert_array_equal(f([[1, 2], [3, 4]], 2), [[2, 4], [6, 8]])
    np.testing.assert_array_equal(f([np.ones(2), np.ones(2)], 2.5), np.full((2, 2), 2.5))


@pytest.mark.parametrize(
    ("dtype", "given"),
    [("float32", "float64"), ("int32", "int64"), ("float32", "int32")],
)
def test_arrays_that_would_lose_precision_are_refused(dtype: str, given: str) -> None:
    x = T.vector("x", dtype=dtype)
    with pytest.raises(TypeError, match=given):
        function([x], x)(np.ones(2, given))


def test_outputs() -> None:
    x = T.fscalar("x")
    out = function([x], x + 1)(1)
    assert isinstance(out, np.ndarray)
    assert out.shape == ()
    assert function([x], [], on_unused_input="ignore")(1) == []
    assert function([x], {"a": x, "b": 2 * x})(3) == {"a": 3, "b": 6}


def test_calls_by_name_and_defaults() -> None:
    index, lr = T.iscalar("index"), T.fscalar("lr")
    f = function([index, symdnn.In(lr, value=0.5)], index * lr)
    assert f(index=4, lr=2.0) == 8
    assert f(4) == 2


def test_an_unused_input_raises() -> None:
    x, y = T.fscalar("x"), T.fscalar("y")
    with pytest.raises(ValueError, match="y"):
        function([x, y], x)


# --- bool and == ----------------------------------------------------------------------------------


def test_truth_and_identity() -> None:
    x, y = T.fvector("x"), T.fvector("y")
    assert x
    assert bool(x)
    with pytest.raises(TypeError):
        bool(x < 1)
    assert x == x
    assert (x == y) is False
    assert {x: 1}[x] == 1
    assert isinstance(np.ones(3, "float32") * x, symdnn.Variable)


# --- broadcasting is static -----------------------------------------------------------------------


def test_a_shared_row_does_not_broadcast() -> None:
    w, x = shared(np.ones((1, 3), "float32"), name="w"), T.fmatrix("x")
    assert w.broadcastable == (False, False)
    with pytest.raises(ValueError, match="broadcast"):
        function([x], x + w)(np.ones((2, 3), "float32"))
    function([x], x + T.addbroadcast(w, 0))(np.ones((2, 3), "float32"))


def test_where_broadcasting_comes_from() -> None:
    x, n = T.fmatrix("x"), T.iscalar("n")
    assert x.dimshuffle("x", 0, 1).broadcastable == (True, False, False)
    assert x.sum(0, keepdims=True).broadcastable == (True, False)
    assert T.ones((1, 3)).broadcastable[0]
    assert T.alloc(np.float32(0), 1, n).broadcastable == (True, False)
    assert x.reshape((1, -1)).broadcastable == (True, False)


# --- updates --------------------------------------------------------------------------------------


def test_updates_read_old_values_and_outputs_come_before() -> None:
    a, b = shared(F32(1), name="a"), shared(F32(2), name="b")
    f = function([], [a, b], updates=[(a, b), (b, a + b)])
    assert f() == [1, 2]
    assert (a.get_value(), b.get_value()) == (2, 3)


def test_updates_must_fit() -> None:
    w = shared(np.zeros((2, 2), "float32"), name="w")
    with pytest.raises(TypeError, match="float64"):
        function([], [], updates=[(w, w.astype("float64"))])
    with pytest.raises(TypeError):
        function([], [], updates=[(w, w.sum())])
    with pytest.raises((ValueError, TypeError), match="w"):
        function([], [], updates=[(w, w + 1), (w, w + 2)])


def test_default_updates_apply_also_on_a_clone() -> None:
    n = shared(np.int64(0), name="n")
    n.default_update = n + 1
    f = function([], n)
    assert (f(), f(), n.get_value()) == (0, 1, 2)
    assert function([], n, no_default_updates=True)() == 2
    assert n.get_value() == 2

    m = shared(np.int64(5), name="m")
    other = symdnn.clone(m, share_inputs=False)
    other.default_update = m + 10
    assert function([], other)() == 5
    assert m.get_value() == 15


def test_givens_replace_shareds_and_slices_of_shareds() -> None:
    w, x, i = shared(np.arange(6, dtype="float32"), name="w"), T.fvector("x"), T.iscalar("i")
    f = function([i], x.sum(), givens={x: w[2 * i : 2 * i + 2]})
    assert f(1) == 5
    assert function([x], (w * 2).sum(), givens={w: x})(np.ones(2, "float32")) == 4


# --- borrow ---------------------------------------------------------------------------------------


def test_borrow_and_fresh_outputs() -> None:
    w = shared(np.zeros(2, "float32"), name="w")
    w.get_value(borrow=True)[0] = 5
    assert w.get_value()[0] == 5
    w.get_value()[0] = 7
    assert w.get_value()[0] == 5
    f = function([], [w, w * 2])
    for out in f():
        out += 100
    np.testing.assert_array_equal(f()[0], [5, 0])
    np.testing.assert_array_equal(f()[1], [10, 0])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copied_function_owns_its_shareds(again: object) -> None:
    w = shared(F32(1), name="w")
    f = function([], w, updates=[(w, w + 1)])
    g = again(f)  # type: ignore[operator]
    assert (g(), g(), g()) == (1, 2, 3)
    assert w.get_value() == 1


def test_graphs_and_shareds_pickle() -> None:
    w = shared(np.arange(3.0), name="w")
    x = T.dvector("x")
    y, x2 = pickle.loads(pickle.dumps(((w * x).sum(), x)))
    assert function([x2], y)([1, 1, 1]) == 3
    assert copy.deepcopy(w).get_value().tolist() == [0, 1, 2]


# --- conv and pool --------------------------------------------------------------------------------


def test_conv2d_flips_its_kernel() -> None:
    x, w = T.ftensor4("x"), T.ftensor4("w")
    image = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    kernel = np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    true = function([x, w], T.nnet.conv2d(x, w))(image, kernel)
    cross = function([x, w], T.nnet.conv2d(x, w, filter_flip=False))(image, kernel)
    assert cross[0, 0, 0, 0] == (image[0, 0, :2, :2] * kernel[0, 0]).sum()
    assert true[0, 0, 0, 0] == (image[0, 0, :2, :2] * kernel[0, 0, ::-1, ::-1]).sum()


def test_half_of_an_even_kernel_grows_the_output() -> None:
    x, w = T.ftensor4("x"), T.ftensor4("w")
    f = function([x, w], T.nnet.conv2d(x, w, border_mode="half").shape)
    assert f(np.ones((1, 1, 5, 5), "float32"), np.ones((1, 1, 2, 2), "float32")).tolist() == [
        1, 1, 6, 6,
    ]  # fmt: skip


def test_pool_keeps_borders_and_strides_by_its_window() -> None:
    pool, x = T.signal.pool.pool_2d, T.ftensor4("x")
    image = np.arange(25, dtype="float32").reshape(1, 1, 5, 5)
    assert function([x], pool(x, (2, 2)))(image).shape == (1, 1, 3, 3)
    assert function([x], pool(x, (2, 2), ignore_border=True))(image).shape == (1, 1, 2, 2)
    assert function([x], pool(x, ds=(2, 2), st=(1, 1), ignore_border=True))(image).shape[2] == 4
    assert function([x], pool(x, ds=(3, 3), padding=(1, 1), ignore_border=True))(image).shape[
        2:
    ] == (2, 2)


def test_padding_of_pool() -> None:
    pool, x = T.signal.pool.pool_2d, T.ftensor4("x")
    with pytest.raises((ValueError, NotImplementedError), match="ignore_border"):
        pool(x, (2, 2), pad=(1, 1), ignore_border=False)
    with pytest.raises((ValueError, NotImplementedError), match="pad"):
        pool(x, (2, 2), pad=(2, 2), ignore_border=True)


def test_every_tie_of_a_max_gets_the_full_gradient() -> None:
    x, v = T.ftensor4("x"), T.fvector("v")
    y = T.signal.pool.pool_2d(x, (2, 2), ignore_border=True).sum()
    np.testing.assert_array_equal(
        function([x], grad(y, x))(np.ones((1, 1, 2, 2), "float32")), np.ones((1, 1, 2, 2))
    )
    np.testing.assert_array_equal(function([v], grad(v.max(), v))([1, 2, 2]), [0, 1, 1])


# --- gradients at corners -------------------------------------------------------------------------


def test_gradients_at_corners() -> None:
    x = T.dscalar("x")
    assert function([x], grad(T.nnet.relu(x), x))(0) == 0.5
    assert function([x], grad(abs(x), x))(0) == 0
    clipped = function([x], grad(T.clip(x, -1, 1), x))
    assert (clipped(-1), clipped(1), clipped(2)) == (1, 1, 0)


def test_disconnected_raises_and_known_grads_stand_alone() -> None:
    x, y = T.dvector("x"), T.dvector("y")
    with pytest.raises(symdnn.gradient.DisconnectedInputError):
        grad(x.sum(), y)
    for word in ("None", "Disconnected"):
        assert grad(x.sum(), [y], disconnected_inputs="ignore", return_disconnected=word) == [None]
    z = 3 * x
    g = grad(None, x, known_grads={z: y})
    np.testing.assert_array_equal(function([y], g, on_unused_input="ignore")([1, 2]), [3, 6])


# --- softmax and stability ------------------------------------------------------------------------


def test_softmax_of_a_vector_is_a_row() -> None:
    assert T.nnet.softmax(T.fvector()).broadcastable == (True, False)


@pytest.mark.parametrize(
    ("build", "at", "wanted"),
    [
        (lambda x: T.log(T.nnet.softmax(x.dimshuffle("x", 0)))[0, 0], [-800.0, 0], -800),
        (lambda x: T.log(T.nnet.sigmoid(x))[0], [-800.0], -800),
        (lambda x: T.log(1 - T.nnet.sigmoid(x))[0], [800.0], -800),
        (lambda x: T.log(1 + T.exp(x))[0], [800.0], 800),
        (lambda x: T.log(1 + x)[0], [1e-20], 1e-20),
    ],
)
def test_logs_become_stable(build: object, at: list[float], wanted: float) -> None:
    x = T.dvector("x")
    f = function([x], build(x))  # type: ignore[operator]
    np.testing.assert_allclose(f(at), wanted, rtol=1e-12)


# --- scan -----------------------------------------------------------------------------------------


def test_scan_gives_a_variable_or_a_list_and_updates() -> None:
    s, c = T.dvector("s"), T.dscalar("c")
    one, updates = symdnn.scan(
        lambda v, acc, k: acc + v * k, sequences=s, outputs_info=T.constant(0.0, dtype="float64"),
        non_sequences=c,
    )  # fmt: skip
    assert isinstance(one, symdnn.Variable)
    n = shared(np.int64(0), name="n")
    updates[n] = n + 1  # programs add to it
    f = function([s, c], one, updates=updates)
    np.testing.assert_array_equal(f([1, 2, 3], 2), [2, 6, 12])
    assert n.get_value() == 1

    several, _ = symdnn.scan(lambda v: [v, 2 * v], sequences=[s])
    assert isinstance(several, list)
    assert len(several) == 2


def test_scan_ends_with_its_shortest_sequence_reads_taps_and_until() -> None:
    a, b = T.dvector("a"), T.dvector("b")
    y, _ = symdnn.scan(lambda p, q: p * q, sequences=[a, b])
    np.testing.assert_array_equal(function([a, b], y)([1, 2, 3], [4, 5]), [4, 10])

    start = T.constant(np.array([1.0, 1.0]))
    fib, _ = symdnn.scan(
        lambda older, old: older + old,
        outputs_info=[{"initial": start, "taps": [-2, -1]}],
        n_steps=5,
    )
    np.testing.assert_array_equal(function([], fib)(), [2, 3, 5, 8, 13])

    powers, _ = symdnn.scan(
        lambda p: (p * 2, symdnn.until(p > 8)),
        outputs_info=T.constant(1.0, dtype="float64"),
        n_steps=100,
    )
    np.testing.assert_array_equal(function([], powers)(), [2, 4, 8, 16, 32])


def test_scan_reads_shareds_it_closes_over_and_carries_random_state() -> None:
    w, x = shared(2.0, name="w"), T.dvector("x")
    y, _ = symdnn.scan(lambda v: v * w, sequences=x)
    np.testing.assert_array_equal(function([x], y)([1, 2]), [2, 4])

    stream = T.random.MRG_RandomStreams(seed=3)
    draws, updates = symdnn.scan(lambda: stream.uniform((2,)), n_steps=4)
    f = function([], draws, updates=updates)
    first, second = f(), f()
    assert np.unique(np.concatenate([first, second])).size == 16


# --- random ---------------------------------------------------------------------------------------


def test_random_variables() -> None:
    stream = T.random.MRG_RandomStreams(seed=7)
    u = stream.uniform((3,))
    f = function([], [u, u + 1])
    one, other = f()
    np.testing.assert_allclose(one + 1, other, rtol=1e-6)
    assert not np.array_equal(f()[0], one)
    assert stream.binomial((3,)).dtype == "int64"
    with pytest.raises(ValueError, match="seed"):
        T.random.MRG_RandomStreams(seed=0)


# --- graph tools ----------------------------------------------------------------------------------


def test_tools_on_graphs() -> None:
    x = T.dvector("x")
    y = T.exp(x) + 1
    assert y.eval({x: [0.0]}).tolist() == [2.0]
    f = function([x], y, mode=symdnn.Mode().excluding("fusion"))
    nodes = f.maker.fgraph.toposort()
    assert set(nodes) == set(f.maker.fgraph.apply_nodes)
    assert any("exp" in str(node.op).lower() for node in nodes)
    config.warn.subtensor_merge_bug = False
    config.undo("warn.subtensor_merge_bug")


# --- batch normalisation --------------------------------------------------------------------------


def test_dnn_batch_normalization_returns_invstd_and_unbiased_running_variance() -> None:
    from symdnn.gpu import dnn

    x = T.dtensor4("x")
    gamma, beta, mean, var = (T.dtensor4(n) for n in "gbmv")
    outs = dnn.dnn_batch_normalization_train(
        x, gamma, beta, "spatial", running_mean=mean, running_var=var, running_average_factor=1.0
    )
    f = function([x, gamma, beta, mean, var], list(outs), on_unused_input="ignore")
    data = np.random.default_rng(0).normal(size=(4, 2, 3, 3))
    one = np.ones((1, 2, 1, 1))
    _, m, invstd, _, new_var = f(data, one, 0 * one, 0 * one, one)
    np.testing.assert_allclose(m.ravel(), data.mean((0, 2, 3)))
    np.testing.assert_allclose(invstd.ravel(), 1 / np.sqrt(data.var((0, 2, 3)) + 1e-4))
    np.testing.assert_allclose(new_var.ravel(), data.var((0, 2, 3), ddof=1))
    with pytest.raises(ValueError, match="epsilon"):
        dnn.dnn_batch_normalization_train(x, gamma, beta, "spatial", epsilon=1e-6)
    with pytest.raises(ValueError):
        dnn.dnn_batch_normalization_train(x, T.dvector(), T.dvector(), "spatial")


@pytest.mark.cpu
def test_a_mode_without_an_optimizer_rewrites_nothing() -> None:
    x = T.fvector("x")
    ops = {
        optimizer: [
            str(n.op) for n in function([x], T.log(1 + x), mode=mode).maker.fgraph.toposort()
        ]
        for optimizer, mode in [
            ("default", symdnn.Mode()),
            (None, symdnn.Mode(optimizer=None)),
            ("None", symdnn.Mode(optimizer="None").including("gpuarray")),
        ]
    }
    assert ops["default"] == ["Log1p"]
    assert ops[None] == ops["None"]
    assert "Log1p" not in ops[None]

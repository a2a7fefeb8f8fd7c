"""What programs for Theano lean on, by Theano's names and with its defaults."""

from __future__ import annotations

import copy
import io
import operator
import pickle

import numpy as np
import pytest


def test_types_and_float_x(theano, T):
    assert (T.constant(3).dtype, T.constant(300).dtype) == ("int8", "int16")
    assert (T.constant([1.0, 2.0]).dtype, theano.shared(3.0).dtype) == ("float64", "float64")
    f32, i32, i8 = T.fvector(), T.ivector(), T.bvector()
    assert (f32 * i32).dtype == "float64"
    assert (f32 * i8).dtype == "float32"
    assert (f32 * f32.shape[0]).dtype == "float64"
    assert (i32 / i32).dtype == "float64"
    assert (i32 + 1.0).dtype == "float64"
    assert T.mean(i32).dtype == "float64"
    assert T.sum(i8).dtype == "int64"
    with theano.change_flags(floatX="float32"):
        assert (T.vector() + 1.5).dtype == "float32"
        assert T.matrix().dtype == "float32"
    assert theano._asarray([1], dtype="floatX").dtype == np.float64
    assert theano.scalar.upcast("float32", "int64") == "float64"


def test_inputs_and_outputs(theano, T):
    x, lr = T.fvector("x"), T.scalar("lr")
    f = theano.function([x, theano.In(lr, value=0.5)], {"y": x * lr, "n": x.shape[0]})
    found = f([1, 2])
    np.testing.assert_array_equal(found["y"], [0.5, 1.0])
    with pytest.raises(TypeError):
        f(np.zeros(2, "float64") + 0.1)
    np.testing.assert_array_equal(f(x=[2.0], lr=3.0)["y"], [6.0])
    with pytest.raises(theano.compile.UnusedInputError):
        theano.function([x, T.vector("unused")], x)
    assert theano.function([], [])() == []
    g = theano.function([theano.Param(lr, default=2.0), ((x, x * 2), [1.0])], lr + x.sum())
    assert [float(g()), float(g()), float(g(1.0))] == [3.0, 4.0, 5.0]


def test_truth_and_equality(theano, T):
    x = T.scalar("x")
    assert x
    assert {x: 1}[x] == 1
    assert x == x
    assert x != T.scalar("x")
    with pytest.raises(TypeError):
        bool(x < 1)
    assert isinstance(np.ones(2) * T.vector(), theano.Variable)


def test_every_op_is_an_op(theano, T):
    x = T.vector("x")
    (fused,) = theano.function([x], T.exp(x).sum()).maker.fgraph.toposort()
    for op in ((x * 2).owner.op, fused.op):
        assert isinstance(op, theano.Op)
        assert isinstance(op, theano.gof.op.PureOp)
        assert not isinstance(op, theano.compile.ViewOp)

    class Own(theano.Op):
        pass

    assert isinstance(Own(), theano.Op)
    assert not isinstance((x * 2).owner.op, Own)


def test_broadcasting_is_static(theano, T):
    row = theano.shared(np.ones((1, 3)))
    with pytest.raises(ValueError):
        theano.function([], row + np.ones((2, 3)))()
    wide = theano.shared(np.ones((1, 3)), broadcastable=(True, False))
    assert theano.function([], wide + np.ones((2, 3)))().shape == (2, 3)
    assert T.addbroadcast(row, 0).broadcastable == (True, False)


def test_updates_and_givens(theano, T):
    a, b = theano.shared(1.0, "a"), theano.shared(10.0, "b")
    f = theano.function([], a + b, updates=[(a, b), (b, a)])
    assert float(f()) == 11.0
    assert (a.get_value(), b.get_value()) == (10.0, 1.0)
    with pytest.raises(TypeError):
        theano.function([], a, updates={a: T.constant(np.ones(2))})
    with pytest.raises(ValueError):
        theano.function([], a, updates=[(a, a), (a, b)])
    data, i = theano.shared(np.arange(6.0)), T.lscalar()
    x = T.vector()
    g = theano.function([i], x.sum(), givens={x: data[i * 2 : (i + 1) * 2]})
    assert float(g(1)) == 5.0
    count = theano.shared(0)
    count.default_update = count + 1
    h = theano.function([], count)
    assert [int(h()), int(h())] == [0, 1]
    other = theano.clone(count + 0, share_inputs=False)
    assert int(theano.function([], other)()) == 2
    assert count.get_value() == 3


def test_borrow_and_copies(theano, T):
    w = theano.shared(np.zeros(3), borrow=True)
    w.get_value(borrow=True)[0] = 5
    f = theano.function([], w * 1, updates=[(w, w + 1)])
    first = f()
    first += 100
    np.testing.assert_array_equal(f(), [6, 1, 1])
    own = copy.deepcopy(f)
    own()
    np.testing.assert_array_equal(w.get_value(), [7, 2, 2])


def test_values_by_their_first_name(theano, T):
    w = theano.shared(np.zeros(2), "w")
    w.value = [1, 2]
    w.value[:] = 9  # a copy
    np.testing.assert_array_equal(w.value, [1, 2])
    with pytest.raises(TypeError):
        w.value = np.ones((2, 2))
    x, c = T.dscalar("x"), theano.shared(1.0)
    f = theano.function([theano.In(x, value=2.0)], x + c)
    f.container[x].value = 5.0
    assert float(f.container[x].value) == 5.0
    assert float(f()) == 6.0


def test_shared_variables_of_a_class_of_the_program(theano, T):
    from theano.compile import SharedVariable
    from theano.tensor.sharedvar import TensorSharedVariable

    class Weight(TensorSharedVariable):
        pass

    w = Weight("w", T.dvector, np.arange(2.0), strict=True)
    f = theano.function([], w * 2, updates=[(w, w + 1)])
    np.testing.assert_array_equal(f(), [0, 2])
    np.testing.assert_array_equal(w.get_value(), [1, 2])
    other = SharedVariable("other", w.type, None, None, container=w.container)
    np.testing.assert_array_equal(other.get_value(), [1, 2])
    assert isinstance(w, SharedVariable)
    with pytest.raises(TypeError):
        Weight("w", T.dvector, np.arange(2), strict=True)
    with pytest.raises(TypeError, match="not both"):
        SharedVariable("w", w.type, np.zeros(2), False, container=w.container)


def test_methods_of_types(theano, T):
    kind = T.fvector
    assert kind.filter([1, 2]).dtype == np.float32
    with pytest.raises(TypeError):
        kind.filter(np.array([0.1]), strict=True)
    assert kind.filter(np.array([0.1]), allow_downcast=True).dtype == np.float32
    assert kind.is_valid_value(np.zeros(3, "float32"))
    assert not kind.is_valid_value(np.zeros(3))
    x = kind.make_variable("x")
    assert (x.name, x.type) == ("x", kind)
    assert kind.filter_variable(x) is x
    assert kind.make_constant([1, 2], "c").type.in_same_class(kind)
    row = T.frow().type
    assert row.filter_variable(T.fmatrix()).broadcastable == (True, False)
    with pytest.raises(TypeError, match="filter_variable"):
        kind.filter_variable(T.dvector())
    assert kind.clone("float64") == T.dvector
    assert kind.clone(broadcastable=(True,)).broadcastable == (True,)
    assert kind.value_zeros((2,)).dtype == np.float32
    nan, big = np.array([1.0, np.nan]), np.array([1.0, 1 + 1e-7])
    assert kind.values_eq(nan, nan)
    assert not kind.values_eq(big, big[::-1])
    assert kind.values_eq_approx(big, big[::-1])
    assert not kind.values_eq_approx(nan, big)
    assert kind.values_eq_approx(nan, big, allow_remove_nan=True)
    assert not kind.values_eq(nan, nan[:1])


def test_convolution_and_pooling(theano, T):
    from scipy.signal import convolve2d
    from theano.tensor.nnet import conv
    from theano.tensor.signal import downsample, pool

    x, w = np.random.rand(1, 1, 6, 7), np.random.rand(1, 1, 3, 2)
    X, W = T.dtensor4(), T.dtensor4()
    y = theano.function([X, W], conv.conv2d(X, W, image_shape=(1, 1, 6, 7)))(x, w)
    np.testing.assert_allclose(y[0, 0], convolve2d(x[0, 0], w[0, 0], "valid"))
    old = theano.function([X], downsample.max_pool_2d(X, (2, 2)))(x)
    assert old.shape == (1, 1, 3, 4)
    new = theano.function([X], pool.pool_2d(X, ds=(2, 2), ignore_border=True, st=(1, 1)))(x)
    assert new.shape == (1, 1, 5, 6)
    with pytest.raises(NotImplementedError):
        pool.pool_2d(X, (2, 2), ignore_border=True, pad=(2, 2))
    half = T.nnet.conv2d(X, T.dtensor4(), border_mode="half", filter_shape=(1, 1, 2, 2))
    assert half.ndim == 4


def test_gradients_at_corners(theano, T):
    x = T.dscalar("x")
    at_zero = [T.grad(e, x) for e in (T.nnet.relu(x), abs(x), T.clip(x, 0.0, 1.0))]
    assert [float(v) for v in theano.function([x], at_zero)(0.0)] == [0.5, 0.0, 1.0]
    with pytest.raises(theano.gradient.DisconnectedInputError):
        T.grad(x, T.dscalar())
    y = x**2
    found = T.grad(None, x, known_grads={y: T.constant(3.0)})
    assert float(theano.function([x], found)(2.0)) == 12.0


def test_products_with_jacobians_count_the_inputs_of_their_expression(theano, T):
    x, W, V = T.dvector("x"), T.dmatrix("W"), T.dmatrix("V")
    y = T.dot(x, W)
    for rop in (theano.Rop, T.Rop, theano.gradient.Rop):
        f = theano.function([W, V, x], rop(y, W, V))  # it does not read W
        two = np.full((2, 2), 2.0)
        np.testing.assert_array_equal(f(np.ones((2, 2)), two, [0.0, 1.0]), [2, 2])
    pair = theano.Rop([y, y * 2], W, V)
    assert isinstance(pair, list)
    np.testing.assert_array_equal(theano.function([V, x], pair)(two, [0.0, 1.0])[1], [4, 4])
    with pytest.raises(ValueError, match="depends on the input W"):
        theano.function([W, V, x], T.dot(x, V))


def test_a_branch_that_is_not_chosen(theano, T):
    # Theano's local_mul_switch_sink: 0 times a slope that is not finite stays 0.
    x = T.dvector("x")
    p, n = (x / 3) ** 0.42, (-x / 3) ** 0.42
    y = T.switch(p >= 0, 4 * p / (p + 2), -4 * n / (n + 2))
    slope = theano.function([x], T.grad(y.sum(), x))(np.array([1.5, -1.5]))
    assert np.isfinite(slope).all()
    assert slope[0] == pytest.approx(slope[1])


def test_softmax_and_stable_forms(theano, T):
    v = T.dvector("v")
    assert T.nnet.softmax(v).ndim == 2
    f = theano.function([v], [T.log(T.nnet.softmax(v)), T.log(T.nnet.sigmoid(v)),
                              T.log(1 + T.exp(v))])  # fmt: skip
    for each in f([-800.0, 0.0, 800.0]):
        assert np.isfinite(each).all()


def test_scan(theano, T):
    x, k = T.dvector("x"), theano.shared(2.0)
    out, updates = theano.scan(lambda s, p: s * k + p, sequences=x, outputs_info=np.float64(0))
    assert isinstance(out, theano.Variable)
    updates[k] = k + 1
    f = theano.function([x], out, updates=updates)
    np.testing.assert_array_equal(f([1.0, 1.0]), [2, 4])
    np.testing.assert_array_equal(f([1.0, 1.0]), [3, 6])
    two, _ = theano.scan(lambda i, a: (a * 2, theano.scan_module.until(a > i)),
                         sequences=T.arange(10), outputs_info=T.constant(1))  # fmt: skip
    assert theano.function([], two.shape[0])() == 1
    total, _ = theano.reduce(lambda a, b: a + b, x, np.float64(0))
    assert float(theano.function([x], total)([1.0, 2.0])) == 3.0
    both, _ = theano.map(lambda a: (a, a**2), x)
    assert len(both) == 2


def test_random_streams(theano, T):
    from theano.sandbox.rng_mrg import MRG_RandomStreams
    from theano.tensor.shared_randomstreams import RandomStreams

    for kind in (RandomStreams, MRG_RandomStreams):
        rng = kind(seed=234)
        u, b = rng.uniform((2000,)), rng.binomial(size=(2000,), n=1, p=0.3)
        f = theano.function([], [u, u, b])
        first, same, ones = f()
        np.testing.assert_array_equal(first, same)
        assert not np.array_equal(first, f()[0])
        assert ones.dtype == np.int64
        assert abs(ones.mean() - 0.3) < 0.05
        frozen = theano.function([], u, no_default_updates=True)
        np.testing.assert_array_equal(frozen(), frozen())
    with pytest.raises(ValueError):
        MRG_RandomStreams(seed=0)
    state = rng[u].get_state()
    again = theano.function([], u)
    kept = again()
    rng[u].set_state(state)
    np.testing.assert_array_equal(again(), kept)
    assert rng.binomial(size=(2,), prob=1.0).eval().tolist() == [1, 1]


def test_watching_functions(theano, T, tmp_path, capsys):
    import theano.d3viz as d3v
    from theano.compile.monitormode import MonitorMode, detect_nan

    x = T.vector("x")
    f = theano.function([x], T.log(x) + 1, mode=MonitorMode(post_func=detect_nan))
    with np.errstate(invalid="ignore"):
        f([1.0, -1.0])
    assert capsys.readouterr().out.count("*** NaN detected ***") >= 1
    f([1.0, 2.0])
    assert "NaN" not in capsys.readouterr().out
    d3v.d3viz(f, str(tmp_path / "f.html"))
    assert "svg" in (tmp_path / "f.html").read_text()
    assert x.transfer("cpu") is x
    seen = []
    shown = theano.printing.Print("x", global_fn=lambda op, value: seen.append(value.sum()))(x)
    assert isinstance(shown.owner.op, theano.printing.Print)
    theano.function([x], shown * 2)([1.0, 2.0])
    assert seen == [3.0]
    graph = theano.gof.FunctionGraph([x], [T.exp(x)], clone=True)
    assert isinstance(graph, theano.FunctionGraph)
    assert isinstance(f.maker.fgraph, theano.gof.FunctionGraph)
    assert T._shared([1.0]).get_value() == 1
    theano.configparser._config_print(theano.config, written := io.StringIO())
    assert "floatX\n    Value:  float64" in written.getvalue()


def test_graph_tools(theano, T):
    x, y = T.vectors("x", "y")
    w = theano.shared(np.ones(3), "w")
    z = T.dot(x * w, y) + w.sum()
    found = [v for v in theano.gof.graph.inputs([z]) if not isinstance(v, theano.tensor.Constant)]
    assert found == [x, w, y]
    assert theano.gof.graph.is_same_graph(z, z)
    assert [n.op for n in theano.gof.graph.io_toposort([x, y], [z])]
    f = theano.function([x, y], z)
    assert any(isinstance(n.op, T.Dot) for n in f.maker.fgraph.toposort())
    assert f.fn.maker.fgraph is f.maker.fgraph
    copies = theano.gof.graph.clone_get_equiv([x, y], [z])
    assert copies[z] is not z
    assert copies[x] is not x
    assert z.owner.inputs[0].get_parents()[0].get_parents()[0] is not None
    assert z.eval({x: [1.0, 2.0, 3.0], y: [1.0, 1.0, 1.0]}) == 9.0
    mode = theano.compile.get_default_mode().including("fusion").excluding("inplace")
    assert float(theano.function([x, y], z, mode=mode)(np.ones(3), np.ones(3))) == 6.0
    z._keras_shape = (None,)  # attributes of the program's own
    assert z._keras_shape == (None,)


def test_types_of_variables_compared(theano, T):
    from theano.tensor.sharedvar import TensorSharedVariable

    x, c, s = T.vector(), T.constant(1.0), theano.shared(1.0)
    kinds = T.TensorVariable, T.TensorConstant, TensorSharedVariable
    table = [[operator.eq(type(v), k) for k in kinds] for v in (x, c, s)]
    assert table == [[i == j for j in range(3)] for i in range(3)]
    assert {T.TensorVariable: 1, T.TensorConstant: 2}[type(c)] == 2
    assert not isinstance(c, T.TensorVariable)


def test_functions_of_numpy_call_methods(theano, T):
    x, m = T.vector("x"), T.matrix("m")
    made = [np.log(x), np.sqrt(abs(x)), np.absolute(x), np.tanh(m), np.sum(m, axis=0), np.mean(m),
            np.max(m, 1), np.reshape(m, (-1,)), np.transpose(m), np.negative(x)]  # fmt: skip
    words = "log sqrt absolute tanh sum mean max reshape transpose negative"
    v, a = np.array([1.0, 2.0]), np.arange(6.0).reshape(2, 3)
    got = theano.function([x, m], made)(v, a)
    more = {"sum": (0,), "max": (1,), "reshape": ((-1,),)}
    for name, value in zip(words.split(), got):
        of = a if name in ("tanh", "mean", "transpose", *more) else v
        np.testing.assert_allclose(value, getattr(np, name)(of, *more.get(name, ())))
    with pytest.raises(TypeError, match=r"T\.median"):
        np.median(x)
    with pytest.raises(TypeError, match="symdnn.tensor"):
        np.arctan2(x, x)


def test_elementwise_functions_equal_their_ops(theano, T):
    x, y = T.vector("x"), T.vector("y")
    node = (T.exp(x) + y).owner
    assert node.op == T.add
    assert node.op != T.mul
    assert T.mul != node.op
    assert {T.mul: 1, T.add: 2}[node.op] == 2
    assert node.inputs[0].owner.op in (T.exp, T.log)
    assert isinstance(node.op.scalar_op, theano.scalar.Add)
    assert node.op.scalar_op == theano.scalar.add == T.add
    assert T.nnet.sigmoid(x).owner.op == T.nnet.sigmoid
    assert T.arctan2(x, y).owner.op == T.arctan2
    assert pickle.loads(pickle.dumps(T.tanh)) is T.tanh
    assert T.add.make_node(x, y).inputs == (x, y)
    assert T.exp.__name__ == "exp"
    f = theano.function([x, y], [T.add(x, y), T.maximum(x, y), T.isnan(x)])
    np.testing.assert_array_equal(f([1.0, 2.0], [3.0, 0.0])[1], [3, 2])
    assert isinstance(x.sum(), theano.scalar.ScalarVariable)
    assert not isinstance(x, theano.scalar.ScalarVariable)
    assert isinstance(T.constant(1.0), theano.scalar.ScalarConstant)


def test_classes_by_name(theano, T):
    x = T.matrix("x")
    for made, names in (
        (T.exp(x), ["Elemwise"]), (x.sum(), ["Sum", "CAReduce"]), (x[0], ["Subtensor"]),
        (x[[0, 1]], ["AdvancedSubtensor1"]), (T.set_subtensor(x[0], 1), ["IncSubtensor"]),
        (T.concatenate([x, x]), ["Join"]), (x.dimshuffle(1, 0), ["DimShuffle"]),
        (T.nnet.softmax(x), ["Softmax"]), (x.reshape((-1,)), ["Reshape"]), (T.dot(x, x), ["Dot"]),
    ):  # fmt: skip
        for name in names:
            assert isinstance(made.owner.op, getattr(T, name, getattr(T.nnet, name, None))), name
        assert not isinstance(made.owner.op, T.Split)
    assert isinstance(x, T.TensorVariable)
    assert not isinstance(x, T.TensorConstant)
    shared = theano.shared(1.0)
    assert isinstance(shared, theano.compile.SharedVariable)
    assert isinstance(shared, T.sharedvar.TensorSharedVariable)
    assert isinstance(T.constant(1), T.TensorConstant)
    assert T.DimShuffle((False, False), ["x", 1, 0])(x).ndim == 3
    assert T.elemwise.Sum(axis=0)(x).ndim == 1
    with pytest.raises(TypeError, match="apply the function of T instead"):
        T.elemwise.CAReduceDtype()

    class Named(T.TensorVariable):
        def __init__(self, type, owner=None, index=None, name=None):
            super().__init__(type, owner, index, name)
            self.extra = 1

    v = Named(T.dvector, name="v")
    assert (v.name, v.extra) == ("v", 1)
    np.testing.assert_array_equal(theano.function([v], v * 2)([1.0]), [2.0])


def test_functions_that_symdnn_has_under_another_name(theano, T):
    x = np.random.rand(3, 5)
    X = T.dmatrix()
    for made, wanted in (
        (T.cov(X), np.cov(x)), (T.cov(X, rowvar=False, bias=True), np.cov(x, rowvar=0, bias=1)),
        (T.bartlett(T.constant(7)), np.bartlett(7)), (T.second(X, 2.0), np.full((3, 5), 2.0)),
        (T.inplace.exp_inplace(X), np.exp(x)), (theano.dot(X, X.T), x @ x.T),
        (T.makeKeepDims(X, X.sum(1), 1), x.sum(1, keepdims=True)),
        (T.xlogx.xlogy0(X, X), x * np.log(x)), (T.advanced_subtensor1(X, [2, 0]), x[[2, 0]]),
    ):  # fmt: skip
        np.testing.assert_allclose(theano.function([X], made, on_unused_input="ignore")(x), wanted)
    flat = np.array([3, 7, 14])
    for order in "CF":
        rows = [v.eval() for v in T.extra_ops.unravel_index(flat, (3, 5), order=order)]
        np.testing.assert_array_equal(rows, np.unravel_index(flat, (3, 5), order=order))
        again = T.extra_ops.ravel_multi_index(rows, (3, 5), order=order).eval()
        np.testing.assert_array_equal(again, flat)
        outside = [np.array([1, -1, 3], "int32"), np.array([5, 2, 9], "int32")]
        for mode in ("wrap", "clip"):
            again = T.extra_ops.ravel_multi_index(outside, (3, 5), mode=mode, order=order)
            wanted = np.ravel_multi_index(outside, (3, 5), mode=mode, order=order)
            np.testing.assert_array_equal(again.eval(), wanted)
        with pytest.raises(AssertionError, match="ravel_multi_index: an index is out of range"):
            T.extra_ops.ravel_multi_index(outside, (3, 5), order=order).eval()
        for wrong in (15, -1):  # NumPy refuses them
            row = T.extra_ops.unravel_index(np.array([wrong], "int32"), (3, 5), order=order)[0]
            assert row.dtype == "int64"
            with pytest.raises(AssertionError, match="unravel_index: an index is out of range"):
                row.eval()
    assert theano.dot(np.ones(3), np.ones(3)) == 3.0
    assert T.default(None, 3).eval() == 3
    assert isinstance(theano.shared({"a": 1}), theano.Variable)
    assert theano.shared({"a": 1}).get_value() == {"a": 1}


def test_verifying_gradients(theano, T):
    from theano.tests import unittest_tools as utt

    utt.seed_rng()
    utt.verify_grad(T.sin, [np.random.rand(4)])
    wrong = lambda x: theano.gradient.grad_scale(x, 2.0) ** 2  # noqa: E731
    with pytest.raises(theano.gradient.verify_grad.E_grad):
        theano.gradient.verify_grad(wrong, [np.random.rand(4) + 1])
    gf = theano.gradient.numeric_grad(lambda a: (a**3).sum(), np.array([1.0, 2.0])).gf
    np.testing.assert_allclose(gf, [3, 12], rtol=1e-5)
    with pytest.raises(utt.WrongValue):
        utt.assert_allclose(np.ones(2), np.zeros(2))


def test_volumes_in_theanos_old_orders(theano, T):
    from theano.tensor.nnet import conv3d2d
    from theano.tensor.nnet.Conv3D import conv3D
    from theano.tensor.nnet.ConvTransp3D import convTransp3D

    v, w = np.random.rand(2, 5, 6, 4, 3), np.random.rand(4, 2, 3, 2, 3)
    V, W = T.TensorType("float64", (False,) * 5)(), T.TensorType("float64", (False,) * 5)()
    y = theano.function([V, W], conv3D(V, W, np.zeros(4), (1, 1, 1)))(v, w)
    one = (v[1, 2:4, 3:6, 1:3] * w[2]).sum()
    assert y.shape == (2, 4, 4, 3, 4)
    assert y[1, 2, 3, 1, 2] == pytest.approx(one)
    back = theano.function([V, W], convTransp3D(W, np.zeros(3), (1, 1, 1), V))(y, w)
    assert back.shape == v.shape
    assert (y * y).sum() == pytest.approx((back * v).sum())
    s, f = np.random.rand(2, 5, 3, 6, 7), np.random.rand(4, 2, 3, 3, 2)
    z = theano.function([V, W], conv3d2d.conv3d(V, W))(s, f)
    turned = f[1, ::-1, :, ::-1, ::-1]
    assert z[1, 2, 1, 3, 4] == pytest.approx((s[1, 2:4, :, 3:6, 4:6] * turned).sum())


def test_operands_of_other_classes_are_asked(theano, T):
    class Covariance:
        def __radd__(self, other):
            return ("sum", other)

        def __rmul__(self, other):
            return ("product", other)

    x = T.dscalar("x")
    assert (x**2 * Covariance())[0] == "product"
    assert (x + Covariance())[0] == "sum"
    for wrong in (None, "text", object()):
        with pytest.raises(TypeError):
            x * wrong


@pytest.mark.parametrize("how", ["grad", "known", "jacobian", "hessian", "Lop", "Rop", "no slope"])
def test_functions_of_derivatives_may_have_any_input_of_the_expression(theano, T, how):
    """Theano's graph of a derivative begins with the expression, so that its inputs are used."""
    x, y, v = T.dscalar("x"), T.dscalar("y"), T.dvector("v")
    square = x * x * y
    made = {
        "grad": lambda: T.grad(x * y, x),
        "known": lambda: T.grad(None, x, known_grads={x * 3 * y: T.constant(2.0)}),
        "jacobian": lambda: T.jacobian(x * y, x),
        "hessian": lambda: T.hessian((v * v).sum() * y + x, v).sum(),
        "Lop": lambda: T.Lop(x * 2 * y, x, y),
        "Rop": lambda: T.Rop(x * y, x, T.constant(1.0)),
        "no slope": lambda: T.Rop(T.grad(x * 3 + y, x), x, x),
    }[how]()
    wanted = {"known": 30, "hessian": 20, "Lop": 50, "no slope": 0}.get(how, 5)
    inputs = [x, y, v] if how == "hessian" else [x, y]
    values = [1.0, 5.0, [1.0, 2.0]][: len(inputs)]
    assert theano.function(inputs, made)(*values) == wanted
    assert theano.function([x, y], T.grad(square, x))(2, 3) == 12


def test_gradients_of_integers_by_themselves(theano, T):
    i, x = T.iscalar("i"), T.dscalar("x")
    assert T.grad(i, i).eval({i: 12}) == 1
    picked = T.arange(10)[i]
    known = {picked: T.constant(1.0), x**2: T.constant(3.0)}
    slope = theano.function([i, x], T.grad(None, x, known_grads=known), on_unused_input="ignore")
    assert slope(2, 5) == 30


def test_an_eval_point_of_another_ndim_is_a_value_error(T):
    m = T.dmatrix()
    with pytest.raises(ValueError, match="eval point"):
        T.Rop(m.sum(), m, T.dvector())


def test_what_a_loop_is_given_counts_as_used(theano, T):
    x, y, w = T.dvector("x"), T.dvector("y"), T.dscalar("w")
    doubled, _ = theano.scan(lambda a, b, c: a * 2, sequences=[x, y], non_sequences=w)
    assert theano.function([x, y, w], doubled)([1, 2], [1, 1], 3).tolist() == [2, 4]
    (sums, before), _ = theano.scan(
        lambda a, h, c: [h + a, h], x, [T.constant(0.0), None], non_sequences=w
    )
    slope = theano.function([x, w], T.grad(sums[-1], x))
    assert slope([1, 2], 3).tolist() == [1, 1]
    assert theano.function([x, w], before)([1, 2], 3).tolist() == [0, 1]
    positive, _ = theano.map(lambda a, b: a > 0, [dict(input=x)], [w])
    assert theano.function([x, w], positive)([1, -1], 3).tolist() == [True, False]


def test_errors_of_loops_are_theanos(theano, T):
    x, y = T.fvectors("x", "y")
    with pytest.raises(ValueError, match="negative taps"):
        theano.scan(lambda a, b: a, x, {"initial": y, "taps": [0]})
    with pytest.raises(theano.gof.MissingInputError, match="strict"):
        theano.scan(lambda a: a + y, x, strict=True)


def test_theanos_own_dot_takes_sparse_and_dense_operands(theano, T):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    from theano import sparse

    a = scipy_sparse.random(5, 4, 0.5, "csr", random_state=0)
    w = np.random.default_rng(0).random((4, 5))
    X, W = sparse.csr_matrix("X", dtype="float64"), T.dmatrix("W")
    found = theano.function([X, W], [theano.dot(X, W), theano.dot(W, X)])(a, w)
    np.testing.assert_allclose(found[0], a @ w)
    np.testing.assert_allclose(found[1], w @ a)

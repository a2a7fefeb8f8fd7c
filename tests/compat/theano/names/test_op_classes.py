"""Theano's classes of ops, made with its arguments and applied, against NumPy."""

import pickle

import numpy as np
import pytest


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).normal(size=(4, 5))


def test_ops_of_arrays(theano, T, rows):
    from theano.tensor import extra_ops as e
    from theano.tensor import subtensor as s

    m, i = T.dmatrix("m"), T.lvector("i")
    at = np.array([2, 0, 2])
    length = T.constant(2)
    made = [
        (e.DiffOp(n=2, axis=0)(m), np.diff(rows, 2, 0)),
        (e.RepeatOp(axis=1)(m, 2), np.repeat(rows, 2, 1)),
        (e.SearchsortedOp(side="right")(i.sort(), 2), 3),
        (e.CpuContiguous()(m), rows),
        (e.UnravelIndex()(i, (2, 3))[1], at % 3),
        (e.RavelMultiIndex()(i, i, (3, 3)), at * 4),
        (T.Mean(axis=0)(m), rows.mean(0)),
        (T.CAReduce(theano.scalar.maximum, axis=1)(m), rows.max(1)),
        (T.Tile(2)(m, (1, 2)), np.tile(rows, (1, 2))),
        (T.Eye("int32")(3, 4, 1), np.eye(3, 4, 1)),
        (T.blas.Gemm()(m, 2.0, m, T.eye(5), 3.0), 5 * rows),
        (T.blas.Dot22Scalar()(m, m.T, 0.5), rows @ rows.T / 2),
        (T.PermuteRowElements()(m, T.argsort(m, axis=1), 0), np.sort(rows, 1)),
        (s.Subtensor([slice(length.type, None, None)])(m, length), rows[2:]),
        (s.AdvancedSubtensor1()(m, i), rows[at]),
        (s.IncSubtensor([0], set_instead_of_inc=True)(m, 1.0)[0], np.ones(5)),
        (s.AdvancedIncSubtensor1()(T.zeros((3,)), 1.0, i), [1, 0, 2]),
    ]
    found = theano.function([m, i], [v for v, _ in made], on_unused_input="ignore")(rows, at)
    for (variable, wanted), got in zip(made, found):
        np.testing.assert_allclose(got, wanted, err_msg=str(variable.owner))


def test_ops_of_classifiers(theano, T, rows):
    from theano.tensor import nnet

    x, labels = T.dmatrix("x"), np.array([0, 4, 1, 1])
    p = nnet.softmax(x)
    loss = nnet.crossentropy_categorical_1hot(p, labels)
    ones = T.ones_like(loss)
    by_op = [
        nnet.nnet.CrossentropySoftmax1HotWithBiasDx()(ones, p, labels),
        nnet.nnet.softmax_grad(nnet.nnet.crossentropy_categorical_1hot_grad(ones, p, labels), p),
    ]
    wanted, *found = theano.function([x], [T.grad(loss.sum(), x), *by_op])(rows)
    for got in found:
        np.testing.assert_allclose(got, wanted, atol=1e-12)
    assert nnet.nnet.softmax_op == p.owner.op
    assert nnet.nnet.softmax_op != loss.owner.op
    padded = nnet.nnet.Prepend_scalar_constant_to_each_row(2)(x).eval({x: rows})
    np.testing.assert_array_equal(padded, np.c_[np.full(4, 2.0), rows])


def test_unique_rows(theano, T):
    m = T.dmatrix("m")
    values = np.array([[1.0, 2], [0, 3], [1, 2]])
    op = T.extra_ops.Unique(True, True, True, axis=0)
    found = theano.function([m], op(m))(values)
    for got, wanted in zip(found, np.unique(values, True, True, True, axis=0)):
        np.testing.assert_array_equal(got, wanted.reshape(got.shape))
    weights = np.array([[1.0, 2], [3, 4]])
    g = T.grad((T.extra_ops.Unique(axis=0)(m) * weights).sum(), m).eval({m: values})
    np.testing.assert_array_equal(g, [[3, 4], [1, 2], [0, 0]])
    assert isinstance(T.extra_ops.Unique()(m, return_list=True), list)


def test_made_ops_compare(T):
    assert T.Join() == T.Join()
    assert T.Mean(axis=0) != T.Mean(axis=1)
    assert isinstance(T.Join(), T.Join)
    assert not isinstance(T.Join(), T.Split)
    m = T.dmatrix()
    assert T.extra_ops.RepeatOp(axis=0).make_node(m, 2).outputs[0].ndim == 2
    assert T.Mean()(m, name="mean").name == "mean"
    again = pickle.loads(pickle.dumps(T.Mean(axis=1)))
    assert again == T.Mean(axis=1)
    counts = T.elemwise.ProdWithoutZeros(axis=1)(T.constant([[2.0, 0, 3], [0, 0, 0]])).eval()
    np.testing.assert_array_equal(counts, [6, 1])


def test_scalar_types_as_text(theano, T):
    assert [str(t) for t in theano.scalar.float_types] == ["float16", "float32", "float64"]
    number = theano.scalar.get_scalar_type("float32")
    assert number == T.fscalar().type
    assert T.fscalar().type == number
    assert {number: 1}[T.fscalar().type] == 1
    assert number != T.fvector().type


def test_star_import_brings_no_parts_of_symdnn(theano):
    names = {}
    exec("from theano.tensor.extra_ops import *", names)  # it had T, symdnn's module
    assert not {"T", "Any", "Callable", "as_variable"} & set(names)


def test_states_of_functions(theano, T):
    x, s = T.dscalars("xs")
    f = theano.function([x, theano.In(s, value=0.0, update=s + x)], s)
    g = theano.function([x, theano.In(s, value=f.container[s], update=s - x)], s)
    f(3)
    g(1)
    assert (f[s], g[s], f.container[s].storage[0]) == (2, 2, 2)
    g.container[s].storage[0] = 7.0
    assert f[s] == 7
    narrow = theano.shared(np.int64(7), allow_downcast=True)
    narrow.set_value(8.23)
    assert narrow.get_value() == 8
    assert theano.shared(np.int64(3), strict=True).get_value() == 3
    with pytest.raises(TypeError, match="shared variable"):
        theano.updates.OrderedUpdates({"w": 3})
    with pytest.raises(TypeError, match="because"):
        theano.function([x], theano.gradient.grad_undefined(T.add, 0, x, "because"))


def test_overrides_of_ops_from_graphs(theano, T):
    x, y, g = T.dvectors("xyg")
    made = theano.OpFromGraph([x, y, g], [2 * g * y, 3 * g * x])
    op = theano.OpFromGraph([x, y], [x * y], grad_overrides=made)
    found = theano.grad(op(x, y).sum(), [x, y])
    dx, dy = theano.function([x, y], found)([1.0, 2], [3.0, 4])
    np.testing.assert_array_equal([dx, dy], [[6, 8], [3, 6]])
    blind = theano.OpFromGraph(
        [x, y], [y + T.round(y)], connection_pattern=[[True], [False]], on_unused_input="ignore",
        grad_overrides=lambda inputs, g: [g[0], theano.gradient.disconnected_type()],
    )  # fmt: skip
    out = blind(x, y).sum()
    assert blind.connection_pattern(None) == [[True], [False]]
    assert op.connection_pattern(None) == [[True], [True]]
    np.testing.assert_array_equal(theano.grad(out, x).eval({x: [1.0, 2], y: [0, 0.0]}), [1, 1])
    with pytest.raises(theano.gradient.DisconnectedInputError):
        theano.grad(out, y)


def test_pools_of_one_to_three_dimensions(theano, T, rows):
    from theano.tensor.signal.pool import AveragePoolGrad, MaxPoolGrad, Pool

    v, m, x = T.dvector(), T.dmatrix(), T.dtensor3()
    pairs = rows[:, :4].reshape(4, 2, 2)
    of_rows = Pool(ndim=1, ignore_border=True)(m, (2,)).eval({m: rows})
    np.testing.assert_array_equal(of_rows, pairs.max(2))
    assert Pool(ndim=1)(v, ws=2).eval({v: rows[0]}).shape == (3,)
    image = rows[:, :4]
    mean = Pool(ignore_border=True, mode="average_exc_pad")(m, (2, 2)).eval({m: image})
    np.testing.assert_allclose(mean, image.reshape(2, 2, 2, 2).mean((1, 3)))
    cube = rows[:, :4].reshape(4, 2, 2)
    largest = Pool(ndim=3, ignore_border=True)(x, (2, 2, 2)).eval({x: cube})
    np.testing.assert_array_equal(largest[:, 0, 0], [cube[:2].max(), cube[2:].max()])
    ones = T.ones((2, 2))
    shares = AveragePoolGrad(ignore_border=True, mode="average_inc_pad")(m, ones, (2, 2))
    np.testing.assert_array_equal(shares.eval({m: image}), np.full((4, 4), 0.25))
    pooled = Pool(ignore_border=True)(m, (2, 2))
    to_largest = MaxPoolGrad(ignore_border=True)(m, pooled, ones, (2, 2)).eval({m: image})
    assert (to_largest.sum(), to_largest.max()) == (4, 1)
    assert isinstance(T.grad(pooled.sum(), m).owner.op, MaxPoolGrad)
    with pytest.raises(TypeError, match="at least 2"):
        Pool()(v, (2, 2))


def test_blocks_of_a_matrix(theano, T):
    from theano.tensor.nnet.blocksparse import sparse_block_dot, sparse_block_outer

    rng = np.random.default_rng(0)
    weights, given, bias = (
        rng.normal(size=(3, 4, 2, 5)),
        rng.normal(size=(2, 2, 2)),
        np.ones((4, 5)),
    )
    i, j = np.array([[0, 2], [1, 1]]), np.array([[3, 0, 1], [2, 2, 0]])
    w, h = T.dtensor4(), T.dtensor3()
    out = sparse_block_dot(w, h, T.constant(i), T.constant(bias), T.constant(j))
    summed = sparse_block_outer(T.zeros_like(w), h, T.ones_like(out), i, j)
    y, dw, by_outer = theano.function([w, h], [out, T.grad(out.sum(), w), summed])(weights, given)
    wanted, slope = bias[j], np.zeros_like(weights)
    for b in range(2):
        for q in range(3):
            for p in range(2):
                wanted[b, q] += given[b, p] @ weights[i[b, p], j[b, q]]
                slope[i[b, p], j[b, q]] += given[b, p][:, None]
    np.testing.assert_allclose(y, wanted)
    np.testing.assert_allclose(dw, slope)
    np.testing.assert_allclose(by_outer, slope)


def test_ops_of_sparse_matrices(theano, T, rows):
    import scipy.sparse

    s = theano.sparse
    a = scipy.sparse.random(4, 5, 0.5, "csr", random_state=1)
    x, m = s.matrix("csr", "x", "float64"), T.dmatrix()
    made = [
        (s.basic.StructuredDot()(x, m.T), a @ rows.T), (s.basic.SpSum(axis=0)(x), a.sum(0).A1),
        (s.DenseFromSparse()(s.basic.Transpose()(x)), a.toarray().T),
        (s.eq(x, 0.0), a.toarray() == 0),
        (s.basic.SparseFromDense("csc")(m), rows), (s.lt(x, x), np.zeros((4, 5))),
    ]  # fmt: skip
    found = theano.function([x, m], [v for v, _ in made])(a, rows)
    for (_, wanted), got in zip(made, found):
        got = got.toarray() if hasattr(got, "toarray") else got
        np.testing.assert_allclose(got, wanted)
    assert found[4].format == "csc"
    assert isinstance(x, s.SparseVariable)


def test_draws_from_given_numbers(T):
    from theano.sandbox.multinomial import MultinomialFromUniform

    p = np.array([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]])
    once = MultinomialFromUniform("auto")(p, np.array([0.4, 0.75]))
    np.testing.assert_array_equal(once.eval(), [[0, 1, 0], [0, 1, 0]])
    twice = MultinomialFromUniform("int64")(p, np.array([0.4, 0.75, 0.1, 0.1]), 2)
    np.testing.assert_array_equal(twice.eval(), [[1, 1, 0], [1, 1, 0]])
    assert (once.dtype, twice.dtype) == ("float64", "int64")

"""Idioms of published programs: what they call and compare, on the paths where they found it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def test_the_state_of_a_random_variable_is_seeded_and_copied(theano, T):
    from theano.tensor.shared_randomstreams import RandomStreams

    rng = RandomStreams(seed=234)
    u, scaled = rng.uniform((2, 2)), rng.uniform((3,), low=-1.0, high=2.0)
    f = theano.function([], [u, scaled])
    assert scaled.update[0] is scaled.rng is rng.state_updates[1][0]
    value = scaled.rng.get_value(borrow=True)
    value.seed(89234)
    scaled.rng.set_value(value, borrow=True)
    kept = scaled.rng.get_value().get_state()
    first = f()[1]
    assert not np.array_equal(f()[1], first)
    back = scaled.rng.get_value(borrow=True)
    back.set_state(kept)
    scaled.rng.set_value(back, borrow=True)
    np.testing.assert_array_equal(f()[1], first)
    other = RandomStreams(seed=1)
    other_u = other.uniform((2, 2))
    other_u.rng.set_value(u.rng.get_value())
    np.testing.assert_array_equal(theano.function([], other_u)(), f()[0])
    again = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(again()[1], f()[1])


@pytest.mark.parametrize("sampler", ["binomial", "multinomial", "normal"])
def test_draws_have_their_state(theano, T, sampler):
    from theano.sandbox.rng_mrg import MRG_RandomStreams

    stream = MRG_RandomStreams(5)
    words = {"multinomial": {"pvals": np.full((2, 2), 0.5)}}.get(sampler, {"size": (3,)})
    v = getattr(stream, sampler)(**words)
    start = v.rng.get_value()
    theano.function([], v, no_default_updates=[v.rng])()
    np.testing.assert_array_equal(v.rng.get_value(), start)
    theano.function([], v)()
    assert (v.rng.get_value() != start).any()


def test_a_gradient_that_is_not_written_matters_only_where_it_is_wanted(theano, T):
    class Product(theano.Op):
        def make_node(self, a, b):
            return theano.Apply(self, [a, b], [a.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0] * inputs[1]

        def grad(self, inputs, g):
            return [g[0] * inputs[1], theano.gradient.grad_not_implemented(self, 1, inputs[1])]

    a, b = T.vectors("a", "b")
    cost = Product()(a, b).sum()
    (slope,) = theano.function([a, b], [T.grad(cost, a)], on_unused_input="ignore")([1.0], [2.0])
    assert slope == [2.0]
    with pytest.raises(theano.gradient.NullTypeGradError, match="not implemented"):
        T.grad(cost, b)
    with pytest.raises(theano.gradient.NullTypeGradError, match="not implemented"):
        T.grad(Product()(a, a * b).sum(), b)


def test_connection_patterns_decide_what_is_disconnected(theano, T):
    class Pair(theano.Op):
        def make_node(self, a, b):
            return theano.Apply(self, [a, b], [a.type(), b.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0], outputs[1][0] = inputs[0] * 2, inputs[1] * 3

        def grad(self, inputs, g):
            known = [not isinstance(c.type, theano.gradient.DisconnectedType) for c in g]
            return [g[0] * 2 if known[0] else inputs[0] * 0, g[1] * 3 if known[1] else inputs[1]]

        def connection_pattern(self, node):
            return [[True, False], [False, True]]

    a, b = T.vectors("a", "b")
    first, _ = Pair()(a, b)
    with pytest.raises(theano.gradient.DisconnectedInputError):
        T.grad(first.sum(), b)
    marker = T.grad(
        first.sum(), b, disconnected_inputs="ignore", return_disconnected="Disconnected"
    )
    assert isinstance(marker.type, theano.gradient.DisconnectedType)
    slope = theano.function([a, b], T.grad(first.sum(), a), on_unused_input="ignore")
    np.testing.assert_array_equal(slope([1.0, 1.0], [1.0]), [2, 2])


def test_descriptors_made_of_two_shapes(theano, T):
    """The transposed convolution of published GANs: images' and filters' shapes, memory by hand."""
    from theano.sandbox.cuda.basic_ops import gpu_alloc_empty, gpu_contiguous
    from theano.sandbox.cuda.dnn import GpuDnnConvDesc, GpuDnnConvGradI

    x, w = T.ftensor4s("x", "w")
    shape = x.shape[0], w.shape[1], x.shape[2] * 2, x.shape[3] * 2
    desc = GpuDnnConvDesc(border_mode=(2, 2), subsample=(2, 2), conv_mode="conv")(
        gpu_alloc_empty(*shape).shape, w.shape
    )
    y = GpuDnnConvGradI()(gpu_contiguous(w), gpu_contiguous(x), gpu_alloc_empty(*shape), desc)
    plain = T.nnet.abstract_conv.conv2d_grad_wrt_inputs(
        x, w, (None, None, *shape[2:]), border_mode=(2, 2), subsample=(2, 2)
    )
    values = [RNG.standard_normal(s).astype("float32") for s in ((2, 3, 4, 4), (3, 2, 5, 5))]
    got, wanted = theano.function([x, w], [y, plain])(*values)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("border", [True, False])
def test_shapes_and_ops_of_pooling_by_name(theano, T, border):
    from theano.tensor.signal.downsample import DownsampleFactorMax
    from theano.tensor.signal.pool import Pool

    x = T.tensor4()
    value = RNG.standard_normal((2, 3, 7, 8))
    old = DownsampleFactorMax((3, 2), ignore_border=border, st=(2, 1))(x)
    new = Pool(ignore_border=border, mode="max")(x, (3, 2), (2, 1), (0, 0))
    assert isinstance(new.owner.op, Pool)
    assert isinstance(old.owner.op, DownsampleFactorMax)
    made, same = theano.function([x], [old, new])(value)
    np.testing.assert_array_equal(made, same)
    for shape in (
        DownsampleFactorMax.out_shape(value.shape, (3, 2), st=(2, 1), ignore_border=border),
        Pool.out_shape(value.shape, (3, 2), border, (2, 1)),
    ):
        assert tuple(shape) == made.shape
    assert Pool.out_shape((7, 8), (2, 2), ignore_border=True, pad=(1, 0)) == [4, 4]


def test_names_that_programs_compare_and_call(theano, T):
    scalar = theano.tensor.sharedvar.ScalarSharedVariable
    assert isinstance(theano.shared(2.0), scalar)
    assert not isinstance(theano.shared([2.0]), scalar)
    assert not isinstance(T.scalar(), scalar)
    s = T.scalar("s")
    checked = theano.tensor.opt.assert_(s, T.gt(s, 0))
    with pytest.raises(AssertionError):
        checked.eval({s: -1.0})
    guarded = theano.function([s], T.log(s), mode=theano.compile.nanguardmode.NanGuardMode(
        nan_is_error=True, inf_is_error=True, big_is_error=True))  # fmt: skip
    with pytest.raises(AssertionError):  # as Theano's mode raises
        guarded(-1.0)
    slow = theano.compile.DebugMode(check_c_code=False, check_preallocated_output=None)
    assert theano.function([s], T.exp(s), mode=slow)(0.0) == 1


def test_modes_take_theanos_arguments_by_position(theano, T):
    from theano.compile.debugmode import DebugMode
    from theano.compile.monitormode import MonitorMode
    from theano.compile.nanguardmode import NanGuardMode

    x = T.dvector("x")
    guarded = theano.function([x], x * 1e11, mode=NanGuardMode(True, False, False))
    assert guarded([1.0]) == 1e11
    with pytest.raises(AssertionError):
        guarded([float("nan")])
    with pytest.raises(AssertionError):
        theano.function([x], x * 1e11, mode=NanGuardMode(True, True, True))([1.0])
    seen = []
    watched = MonitorMode(None, lambda i, node, fn: seen.append(i)).excluding("fusion")
    theano.function([x], T.exp(x) * 2, mode=watched)([1.0])
    assert seen
    debugged = theano.function([x], T.exp(x), mode=DebugMode("fast_compile", 2))
    assert debugged([0.0]) == 1


def _thrice_alone(inputs, grads):
    return grads[0] * 3


def _thrice(inputs, grads):
    return [grads[0] * 3]


@pytest.mark.parametrize("as_list", [False, True])
def test_functions_with_overrides_of_gradients_pickle(theano, T, as_list):
    x = T.dvector("x")
    override = [_thrice_alone] if as_list else _thrice
    op = theano.OpFromGraph([x], [x * 2], grad_overrides=override)
    f = theano.function([x], [op(x), T.grad(op(x).sum(), x)])
    for made in (f, pickle.loads(pickle.dumps(f))):
        np.testing.assert_array_equal(made([1.0, 2.0]), [[2, 4], [3, 3]])


def test_lists_of_overrides_of_gradients_and_unread_targets(theano, T):
    x, w, b = T.dvectors("x", "w", "b")

    def twice(inputs, grads):
        return grads[0] * inputs[1] * 2

    op = theano.OpFromGraph([x, w, b], [x * w + b], grad_overrides=[twice, "default", "default"])
    slopes = theano.function([x, w, b], T.grad(op(x, w, b).sum(), [x, w, b]))
    for got, wanted in zip(slopes([1.0], [3.0], [0.0]), (6, 1, 1)):
        assert got == wanted
    activation, target = T.dmatrix(), T.ivector()
    found = T.nnet.crossentropy_softmax_argmax_1hot_with_bias(activation, b, target)
    f = theano.function([activation, b, target], [found[1], found[2]])
    softmax, picked = f([[0.0, 0.0]], [0.0, 1.0], [0])
    np.testing.assert_allclose(softmax, [[1 / (1 + np.e), np.e / (1 + np.e)]])
    assert picked == 1


def test_a_call_returns_some_of_the_outputs(theano, T):
    x = T.dvector("x")
    several = theano.function([x], [x * 2, x.sum()])
    assert [float(v) for v in several([1.0, 2.0], output_subset=[1])] == [3.0]
    assert len(several([1.0, 2.0], output_subset=None)) == 2
    named = theano.function([x], {"double": x * 2, "sum": x.sum()})
    found = named([1.0, 2.0], output_subset=["sum"])
    assert found.keys() == {"sum"}
    assert found["sum"] == 3.0
    single = theano.function([x], x.sum())
    assert [float(v) for v in single([1.0, 2.0], output_subset=[0])] == [3.0]
    own = T.dscalar("output_subset")  # an input of this name has precedence
    assert theano.function([own], own * 2)(output_subset=3.0) == 6.0


def test_old_words_of_debugprint_are_accepted(theano, T):
    x = T.dvector("x")
    f = theano.function([x], x * 2)
    text = theano.printing.debugprint(f, file="str", print_storage=True, print_clients=True)
    assert "x" in text


def test_batches_of_a_sparse_matrix_by_givens(theano, T):
    """A slice knows how many columns it has, where the input does not."""
    import scipy.sparse

    a = scipy.sparse.random(6, 4, 0.5, "csr", random_state=1)
    data, x, i = theano.shared(a), theano.sparse.csr_matrix("x"), T.lscalar("i")
    w = theano.shared(np.arange(8.0).reshape(4, 2))
    out = theano.sparse.structured_dot(x, w)
    f = theano.function([i], out.sum(0), givens={x: data[i * 2 : (i + 1) * 2]})
    for k in range(3):
        wanted = (a[2 * k : 2 * k + 2] @ w.get_value()).sum(0)
        np.testing.assert_allclose(f(k), wanted)
    whole = theano.function([], theano.sparse.dense_from_sparse(x), givens={x: data})
    np.testing.assert_allclose(whole(), a.toarray())


def test_sparse_variables_have_types(theano):
    import scipy.sparse

    s = theano.sparse
    x, y = s.csr_matrix("x", dtype="float32"), s.csc_matrix("y")
    assert isinstance(x.type, s.SparseType)
    assert x.type == s.SparseType("csr", "float32")
    assert (y.type.format, y.type.dtype, y.type.ndim) == ("csc", "float64", 2)
    assert x.type("other").type == x.type != y.type
    value = scipy.sparse.csr_matrix(np.eye(2))
    constant = s.as_sparse_variable(value)
    assert isinstance(constant, s.SparseConstant)
    assert not isinstance(x, s.SparseConstant)
    assert constant.type.format == "csr"
    assert s.basic._is_sparse(value)
    assert not s.basic._is_sparse(np.eye(2))
    assert s.basic._is_sparse_variable(x)
    assert not s.basic._is_sparse_variable(value)
    assert s.basic._is_dense(np.eye(2))
    assert not s.basic._is_dense_variable(x)


def test_a_loop_of_no_known_length_is_a_value_error(theano, T):
    with pytest.raises(ValueError, match="n_steps"):
        theano.scan(lambda: T.constant(1))
    with pytest.raises(ValueError, match="initial"):
        theano.scan(lambda x: x, outputs_info=[{"taps": [-1]}], n_steps=2)
    with pytest.raises(ValueError, match="outputs_info"):
        theano.scan(lambda x: [x, x], outputs_info=[T.constant(1.0)], n_steps=2)


def test_a_strict_shared_variable_is_set_strictly(theano):
    value = np.ones(3)
    w = theano.shared(value, strict=True)
    for other in (value.astype("float32"), value.astype("int64"), [1.0, 2.0, 3.0]):
        with pytest.raises(TypeError):
            w.set_value(other)
    for kept in (w, copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        kept.set_value(value * 2)
        np.testing.assert_array_equal(kept.get_value(), value * 2)
    with pytest.raises(TypeError):
        copy.deepcopy(w).set_value([1.0, 2.0, 3.0])


def test_any_object_may_be_shared(theano):
    kept = [object(), {"a": 1}, "text", lambda: 3]
    for value in kept:
        w = theano.shared(value)
        assert w.get_value(borrow=True) is value
        assert w.type == theano.generic
        with pytest.raises(TypeError, match="Python object"):
            theano.function([], w)


def test_what_programs_read_of_a_loop(theano, T):
    from theano.scan_module.scan_op import Scan

    x, w = T.matrix("x"), theano.shared(np.eye(2))
    start = [T.zeros((2,)), {"initial": T.zeros((3, 2)), "taps": [-3, -1]}, None]
    steps, _ = theano.scan(
        lambda a, h, far, near, w: [h + T.dot(a, w), far + near, a * 2], x, start, w,
        truncate_gradient=4,
    )  # fmt: skip
    (op,) = {n.op for n in theano.gof.graph.io_toposort([x, w], steps) if isinstance(n.op, Scan)}
    assert (op.n_seqs, op.n_sit_sot, op.n_mit_sot, op.n_nit_sot) == (1, 1, 1, 1)
    assert (op.as_while, op.truncate_gradient) == (False, 4)
    assert len(op.inputs) == 1 + 1 + 2 + 1
    assert len(op.outputs) == 3
    inside = theano.gof.graph.inputs(op.outputs)
    assert set(op.inputs) >= {v for v in inside if not isinstance(v, theano.Constant)}
    last, _ = theano.scan(lambda h: (h * 2, theano.scan_module.until(h > 5)), None, start[0].sum(),
                          n_steps=9)  # fmt: skip
    nodes = theano.gof.graph.io_toposort([], [last])
    assert [n.op.as_while for n in nodes if isinstance(n.op, Scan)] == [True]


@pytest.mark.parametrize("loop", ["scan", "map", "foldl"])
def test_loops_read_lists_and_sparse_matrices(theano, T, loop):
    import scipy.sparse
    import theano.typed_list as tl

    numbers = tl.TypedListType(T.dvector)("numbers")
    s, x = theano.sparse.csr_matrix("s"), T.dmatrix("x")
    step = {
        "scan": lambda a, many, k, s: many[0].sum() * k + theano.sparse.dot(s, a).sum(),
        "map": lambda a, many, k, s: many[0].sum() * k + theano.sparse.dot(s, a).sum(),
        "foldl": lambda a, so_far, many, k, s: (
            so_far + many[0].sum() * k + theano.sparse.dot(s, a).sum()
        ),
    }[loop]
    given = {"sequences": x.dimshuffle(0, 1, "x"), "non_sequences": [numbers, T.constant(2.0), s]}
    if loop == "foldl":
        given["outputs_info"] = T.constant(np.float64(1))
    found, _ = getattr(theano, loop)(step, **given)
    many, a = [np.arange(3.0), np.ones(2)], scipy.sparse.random(4, 2, 0.7, "csr", random_state=1)
    value = np.arange(6.0).reshape(3, 2)
    wanted = 3 * 2 + (a @ value.T).sum(0)
    got = theano.function([numbers, s, x], found)(many, a, value)
    np.testing.assert_allclose(got, 1 + wanted.sum() if loop == "foldl" else wanted)


def test_profiles_by_theanos_names(theano, T, capsys):
    from theano.compile.profiling import ProfileStats

    x = T.matrix("x")
    stats = ProfileStats(atexit_print=False)
    f = theano.function([x], T.dot(x, x).sum(), profile=stats)
    g = theano.function([x], x * 2, profile=True)
    for each in (f, f, g):
        each(np.ones((3, 3)))
    assert f.profile is stats
    assert (stats.fct_callcount, g.profile.fct_callcount) == (2, 1)
    assert stats.fct_call_time >= stats.vm_call_time > 0
    stats.summary()
    g.profile.summary()
    assert "Dot" in capsys.readouterr().err


class Money:
    """Used by the test of types of a program's own."""

    def __init__(self, cents):
        self.cents = cents


def test_types_of_a_programs_own(theano, T):
    class Amount(theano.gof.Type):
        def filter(self, x, strict=False, allow_downcast=None):
            if strict and not isinstance(x, Money):
                raise TypeError("wanted Money")
            return x

        def __str__(self):
            return "amount"

    amount = Amount()
    v = amount("v")
    assert (v.name, v.type, amount) == ("v", amount, Amount())
    assert isinstance(amount, theano.gof.Type)
    assert isinstance(T.dvector, theano.gof.Type)
    assert not isinstance(T.dvector, Amount)
    assert amount.is_valid_value(Money(3))
    assert not amount.is_valid_value(3)
    assert isinstance(v, theano.Variable)
    with pytest.raises(TypeError, match=r"v is a Python object \(amount\)"):
        theano.function([v], v)


def test_nodes_are_made_again_by_theanos_names(theano, T):
    x, y = T.vectors("xy")
    z = T.exp(x)
    z.name = "z"
    node = z.owner.clone_with_new_inputs([y * 2])
    assert node.default_output() is node.out
    assert (node.op, node.out.name, node.out.type) == (z.owner.op, "z", z.type)
    np.testing.assert_allclose(theano.function([y], node.out)([1.0]), np.exp([2.0]))
    wide = z.owner.clone_with_new_inputs([T.dmatrix()], strict=False)
    assert wide.out.type == T.dmatrix
    assert T.fvector.numpy_dtype == np.float32
    assert T.max_and_argmax(T.matrix(), axis=1)[0].owner.default_output().type == T.dvector


def test_classes_of_variables_by_name(theano, T):
    """Programs choose what to train by ``v.__class__.__name__``."""
    w, x = theano.shared(np.ones(3), name="w"), T.dvector("x")
    found = [type(v).__name__ for v in (w, x, x * w, T.constant(1.0))]
    named = "TensorSharedVariable", "TensorVariable", "TensorVariable", "TensorConstant"
    assert tuple(found) == named
    again, total = pickle.loads(pickle.dumps((w, x * w)))
    assert type(again).__name__ == "TensorSharedVariable"
    assert theano.clone(total, {total.owner.inputs[0]: T.ones(3)}).eval().tolist() == [1, 1, 1]

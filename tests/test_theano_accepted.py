"""What Theano accepts and programs use beyond what networks need: taken, with the right values."""

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function, grad, shared
from symdnn.errors import (
    DataError,
    GraphError,
    SymdnnError,
    TypeMismatch,
    UnusedInputError,
)

F32 = np.float32
MODES = [None, symdnn.Mode(optimizer=None)]


# --- functions ------------------------------------------------------------------------------------


def test_a_variable_in_its_own_given_is_itself():
    w, v = shared(np.ones(3, F32)), T.vector()
    assert function([], w * 2, givens={w: w + 1})().tolist() == [4, 4, 4]
    assert function([v], v * 2, givens={v: v + 1})([1, 2]).tolist() == [4, 6]
    u = T.vector()
    chain = function([u, v], u * v, givens={u: u + v, v: v * 2})
    assert chain([1, 2], [3, 4]).tolist() == [42, 80]
    with pytest.raises(GraphError, match="a loop"):
        function([u, v], u, givens={u: v + u, v: u})


ROW, S, FIXED = T.row(), T.scalar(), T.TensorType("float32", (2, 3))()
READ_OFF = {
    "the size of a scalar": (S, lambda x: x.size, 1),
    "its shape": (S, lambda x: x.shape, []),
    "its zeros": (S, T.zeros_like, 0),
    "its ones": (S, lambda x: T.ones_like(T.stack([x, x])), [1, 1]),
    "its fill": (S, lambda x: T.full_like(T.stack([x, x]), 7), [7, 7]),
    "the rows of a row": (ROW, lambda x: x.shape[0] * 2, 2),
    "a fixed size": (FIXED, lambda x: x.size + x.shape[1], 9),
    "a size of what is made of it": (FIXED, lambda x: T.exp(x * 2).T.shape[0], 3),
    "steps of a scan": (
        FIXED, lambda x: symdnn.scan(lambda a: a * 2, sequences=x)[0].shape[0], 2,
    ),
    "states of a scan": (
        S, lambda x: symdnn.scan(lambda a: a * 2, outputs_info=x, n_steps=4)[0].shape[0], 4,
    ),
    "a size in a size": (FIXED, lambda x: T.zeros((x.shape[0], 2)).size, 4),
}  # fmt: skip


@pytest.mark.parametrize("what", READ_OFF)
def test_an_input_of_which_types_know_the_size_is_read(what):
    x, build, wanted = READ_OFF[what]
    data = np.ones([n or 4 for n in x.type.shape], F32)
    assert function([x], build(x))(data).tolist() == wanted
    assert function([x], build(x), mode=MODES[1])(data).tolist() == wanted
    with pytest.raises(UnusedInputError):
        function([x, T.vector()], build(x))


def test_switches_of_a_mode_may_be_set():
    mode = symdnn.compile.modes.modes.get_mode("DebugMode")
    v = T.vector()
    f = function([v], T.log(v), mode=mode)
    with pytest.raises(SymdnnError):
        f([0.0])
    mode.check_isfinite = False
    assert function([v], T.log(v), mode=mode)([0.0])[0] == -np.inf
    plain = symdnn.compile.modes.modes.get_default_mode()
    plain.check_isfinite = False
    with pytest.raises(AttributeError, match="including"):
        plain.linker = "cvm"
    assert hash(symdnn.Mode()) == hash(symdnn.Mode())


# --- tensors --------------------------------------------------------------------------------------


def test_a_type_makes_named_variables_of_floatX():
    with symdnn.config.change_flags(floatX="float64"):
        x = T.TensorType("floatX", (False, True))("x")
        assert (x.dtype, x.broadcastable, x.name) == ("float64", (False, True), "x")
        assert T.TensorType("floatX", (False,), name="n")("y").name == "y"
        assert T.vector(dtype="floatX").dtype == "float64"
        for made in (
            T.zeros(3, "floatX"), T.arange(3, dtype="floatX"), T.eye(2, dtype="floatX"),
            T.ivector().astype("floatX"), T.ivector().sum(dtype="floatX"),
            T.constant(1, dtype="floatX"), T.as_tensor_variable([1, 2]).astype("floatX"),
            T.random.RandomStream(1).uniform((2,), dtype="floatX"),
            T.ones_like(T.ivector(), dtype="floatX"), T.linspace(0, 1, 3, dtype="floatX"),
        ):  # fmt: skip
            assert made.dtype == "float64"
        assert shared(np.ones(2, F32), dtype="floatX").dtype == "float64"


@pytest.mark.parametrize("op", [T.add, T.mul, T.largest, T.smallest, T.maximum, T.minimum])
def test_any_number_of_operands(op, rng):
    data = rng.normal(size=(4, 3))
    xs = T.dvectors(4)
    most = 2 if op in (T.maximum, T.minimum) else 4
    fold = {T.add: np.add, T.mul: np.multiply}.get(op, np.maximum if "max" in op.__name__ else None)
    fold = fold or (np.maximum if op is T.largest else np.minimum)
    for n in range(2 if most == 2 else 1, most + 1):
        got = function(xs[:n], op(*xs[:n]))(*data[:n])
        np.testing.assert_allclose(got, fold.reduce(data[:n]))


@pytest.mark.parametrize("axis", range(-3, 3))
def test_join_along_a_symbolic_axis(axis, rng):
    shapes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    for s, n in zip(shapes, (1, 5, 0)):
        s[axis] = n
    data = [rng.normal(size=s) for s in shapes]
    xs, a = T.dtensor3s(3), T.lscalar()
    joined = T.join(a, *xs)
    want = np.concatenate(data, axis)
    weights = rng.normal(size=want.shape)
    grads = grad((joined * weights).sum(), xs)
    for mode in MODES:
        got, *dxs = function([a, *xs], [joined, *grads], mode=mode)(axis, *data)
        np.testing.assert_array_equal(got, want)
        parts = np.split(weights, np.cumsum([s[axis] for s in shapes])[:-1], axis)
        for dx, part in zip(dxs, parts):
            np.testing.assert_array_equal(dx, part)
    f = function([a, *xs], joined)
    with pytest.raises((SymdnnError, ValueError)):
        f(3, *data)
    data[1] = rng.normal(size=np.array(data[1].shape) * [2, 1, 1][:: 1 if axis % 3 else -1])
    with pytest.raises(SymdnnError):
        f(axis, *data)


SHAPES = [(), (1,), (3,), (2, 3), (1, 3)]


@pytest.mark.parametrize("pattern", [*itertools.product(SHAPES, repeat=2)])
def test_fill_broadcasts_both_ways(pattern, rng):
    a, b = (rng.normal(size=s) for s in pattern)
    x, y = (T.TensorType("float64", [1 if n == 1 else None for n in s])() for s in pattern)
    f = T.fill(x, y)
    want = np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape))
    np.testing.assert_array_equal(function([x, y], f, on_unused_input="ignore")(a, b), want)
    dy = function([x, y], grad(f.sum(), y), on_unused_input="ignore")(a, b)
    np.testing.assert_allclose(dy, np.full(b.shape, want.size / max(b.size, 1)))


@pytest.mark.parametrize("reps", [(2,), (0,), (2, 3), (1, 2), (3, 1, 2)])
def test_tile_by_symbols(reps, rng):
    data = rng.normal(size=(2, 3))
    x, r, n = T.dmatrix(), T.lvector(), T.lscalar()
    want = np.tile(data, reps)
    if len(reps) == 2:
        np.testing.assert_array_equal(function([x, r], T.tile(x, r))(data, reps), want)
    got = function([x, r], T.tile(x, [r[i] for i in range(len(reps))]))(data, reps)
    np.testing.assert_array_equal(got, want)
    if len(reps) == 3:
        np.testing.assert_array_equal(function([x, r], T.tile(x, r, ndim=3))(data, reps), want)
    if len(reps) == 1:
        np.testing.assert_array_equal(function([x, n], T.tile(x, n))(data, reps[0]), want)
    with pytest.raises(SymdnnError):
        function([x, r], T.tile(x, r))(data, [1, 2, 3])


DTYPES = ["bool", "int8", "int64", "uint8", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("into", ["int32", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_set_part_is_cast(dtype, into, rng):
    x, y = T.matrix(dtype=into), T.vector(dtype=dtype)
    kinds = {"b": 0, "i": 1, "u": 1, "V": 2, "f": 2, "c": 3}
    data = np.zeros((2, 3), x.type.numpy)
    value = rng.integers(0, 2, 3).astype(y.type.numpy)
    if kinds[y.type.numpy.kind] > kinds[x.type.numpy.kind]:
        with pytest.raises(TypeMismatch, match="kind"):
            T.set_subtensor(x[0], y)
        return
    for part in (lambda v: v[0], lambda v: v[np.array([1])], lambda v: v[1:2, [0, 1, 2]]):
        out = function([x, y], [T.set_subtensor(part(x), y), T.inc_subtensor(part(x), y)])
        for got in out(data, value):
            assert got.dtype == x.type.numpy
            assert got.astype(complex).sum() == value.astype(float).sum()


def test_a_diagonal_at_a_symbolic_offset(rng):
    a = rng.normal(size=(3, 4))
    x, k = T.dmatrix(), T.lscalar()
    f = function([x, k], T.extra_ops.fill_diagonal_offset(x, 7, k))
    for offset in range(-4, 6):
        want = a.copy()
        for i, j in np.ndindex(a.shape):
            want[i, j] = 7 if j - i == offset else a[i, j]
        np.testing.assert_array_equal(f(a, offset), want)


# --- random variables -----------------------------------------------------------------------------

STREAMS = [T.random.RandomStreams, T.random.MRG_RandomStreams]


@pytest.mark.parametrize("kind", STREAMS)
def test_binomials_of_symbolic_counts(kind):
    n, ns, p = T.lscalar(), T.lvector(), T.vector()
    f = function([n], kind(3).binomial((20_000,), n=n, p=0.3))
    for count in (0, 1, 7):
        x = f(count)
        assert abs(x.mean() - 0.3 * count) < 0.06
        assert abs(x.var() - 0.21 * count) < 0.12
        assert 0 <= x.min() <= x.max() <= count
    many = function([ns, p], kind(3).binomial((20_000, 3), n=ns.dimshuffle("x", 0), p=p[None]))
    x = many([0, 4, 9], np.array([0.5, 0.25, 0.5], F32))
    np.testing.assert_allclose(x.mean(0), [0, 1, 4.5], atol=0.1)
    assert x.max(0).tolist() == [0, 4, 9]
    assert function([ns], kind(3).binomial(n=ns, p=1.0))([2, 3]).tolist() == [2, 3]


@pytest.mark.parametrize("kind", STREAMS)
def test_poisson(kind):
    lam = T.vector()
    f = function([lam], kind(5).poisson((20_000, 4), lam=lam[None]))
    x = f(np.array([0, 0.5, 4, 300], F32))
    assert x.dtype == np.int64
    np.testing.assert_allclose(x.mean(0), [0, 0.5, 4, 300], rtol=0.03)
    np.testing.assert_allclose(x.var(0), [0, 0.5, 4, 300], rtol=0.06)
    assert (f(np.zeros(4, F32)) == 0).all()
    with pytest.raises(DataError, match="rates"):
        f(np.array([0, -1, 0, 0], F32))
    assert function([], kind(5).poisson(size=(3,), lam=2.0, dtype="float32"))().dtype == F32


@pytest.mark.parametrize("kind", STREAMS)
def test_choices_of_a_symbol(kind):
    n, pool = T.lscalar(), T.dvector()
    x = function([n], kind(7).choice(size=(5000,), a=n))(4)
    assert set(x) == {0, 1, 2, 3}
    picked = function([pool], kind(7).choice(size=(500,), a=pool))([2.5, 3.5])
    assert set(picked) == {2.5, 3.5}
    assert kind(7).choice(size=(3,), a=[1.5, 2.5]).eval().shape == (3,)
    order = function([n], kind(7).choice(size=(4,), a=n, replace=False))(4)
    assert sorted(order) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", STREAMS)
def test_target_is_accepted(kind):
    s, p = kind(1), np.array([[0.5, 0.5]])
    made = [
        s.uniform((2,), target="cpu"), s.normal((2,), target="cpu"),
        s.binomial((2,), target="cpu"), s.multinomial(pvals=p, target="cpu"),
        s.choice((2,), a=3, target="cpu"), s.poisson((2,), target="cpu"),
        s.truncated_normal((2,), target="cpu"), s.random_integers((2,), target="cpu"),
    ]  # fmt: skip
    for v in made:
        assert v.eval().size == 2


# --- gradients ------------------------------------------------------------------------------------

V, W, N = T.dvector("v"), T.dvector("w"), T.lvector("i")
AT = {V: np.array([1.0, 2.0]), W: np.array([5.0, 7.0]), N: np.array([3, 4])}
#: What is differentiated, with respect to what, and the result (PyTensor's; None: disconnected).
FLAT = {
    "argmax": (lambda: T.argmax(V) * 1.0, V, [0, 0]),
    "a comparison": (lambda: (V > 0).sum() * 1.0, V, [0, 0]),
    "an integer cost": (lambda: (V > 0).sum(), V, [0, 0]),
    "argmax itself": (lambda: T.argmax(V), V, [0, 0]),
    "a rounded value": (lambda: T.floor(V).sum(), V, [0, 0]),
    "a cast to integers": (lambda: (V.astype("int64") * W).sum(), V, [0, 0]),
    "an integer times a float": (lambda: (N * V).sum(), N, [1, 2]),
    "an integer exponent": (lambda: (V**N).sum(), N, [0, 16 * np.log(2)]),
    "exp of integers": (lambda: T.exp(N).sum(), N, np.exp([3, 4])),
    "integers of integers": (lambda: (N * 2).sum(), N, [0, 0]),
    "floats of integers of integers": (lambda: (V * (N * 2)).sum(), N, [0, 0]),
    "a mean of integers": (lambda: N.mean(), N, [0, 0]),
    "an index": (lambda: V[N - 3].sum(), N, None),
    "a position": (lambda: W[T.argmax(V)], V, None),
    "a shape": (lambda: V.shape[0] * 1.0, V, None),
    "another cost": (lambda: W.sum(), N, None),
    "beside a smooth path": (lambda: (V**2).sum() + T.argmax(V), V, [2, 4]),
}


@pytest.mark.parametrize("what", FLAT)
def test_gradients_of_and_through_integers(what):
    build, wrt, wanted = FLAT[what]
    cost = build()
    if wanted is None:
        with pytest.raises(symdnn.errors.DisconnectedInput):
            grad(cost, wrt)
        wanted = [0, 0]
    (g,) = grad(cost, [wrt], disconnected_inputs="ignore")
    assert g.dtype == (str(symdnn.config.floatX) if wrt is N else "float64")
    got = function([V, W, N], g, on_unused_input="ignore")(*AT.values())
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_consider_constant_is_not_looked_through_and_has_a_gradient():
    mid = V * 2
    both = grad((mid * mid).sum() + V.sum(), [V, mid], consider_constant=[mid])
    got = function([V], both)([1, 2])
    assert [a.tolist() for a in got] == [[1, 1], [4, 8]]
    assert grad((V * V).sum(), V, consider_constant=[V]).eval({V: [1, 2]}).tolist() == [2, 4]
    with pytest.raises(symdnn.errors.DisconnectedInput):
        grad((mid * mid).sum(), V, consider_constant=[mid])


def test_a_sweep_over_a_part_ends_at_its_ends():
    """What is reached only through an end has zeros; layer by layer the parts are the gradient."""
    below = V * W
    above = below**2
    wrt, end = symdnn.subgraph_grad([W], [below], cost=(above * W).sum())
    got = function([V, W], wrt + end)([1, 2], [3, 4])
    assert [a.tolist() for a in got] == [[9, 64], [18, 64]]  # W beside the end, not through it
    start = dict(zip([below], end))
    found = symdnn.subgraph_grad([W], [V], start, (W**3).sum(), details=True)
    (rest,), (of_v,), known, own = found
    got = function([V, W], [wrt[0] + rest, of_v, *known, *own])([1, 2], [3, 4])
    want = function([V, W], grad((above * W).sum() + (W**3).sum(), [W, V]))([1, 2], [3, 4])
    assert [a.tolist() for a in got[:2]] == [a.tolist() for a in want]
    assert [a.tolist() for a in got[2:]] == [[18, 128], [54, 256], [27, 48], [0, 0]]


SPECIAL = [T.gammainc, T.gammaincc, T.jv, T.iv, lambda n, x: T.chi2sf(x, n)]


@pytest.mark.parametrize("op", SPECIAL)
def test_special_functions_of_an_order_have_gradients_in_both(op, rng):
    n, x = T.dvectors(2)
    data = rng.uniform(0.5, 4, (2, 5))
    cost = op(n, x).sum()
    grads = function([n, x], grad(cost, [n, x]))(*data)
    at = function([n, x], cost)
    for i, g in enumerate(grads):
        for j in range(5):
            step = np.zeros((2, 5))
            step[i, j] = 1e-5
            slope = (at(*(data + step)) - at(*(data - step))) / 2e-5
            np.testing.assert_allclose(g[j], slope, rtol=1e-6, atol=1e-8)
    second = grad(grad(cost, x).sum(), x)
    assert np.isfinite(function([n, x], second)(*data)).all()


def test_the_order_of_polygamma_is_an_integer():
    n, x = T.dvectors(2)
    dn, dx = grad(T.polygamma(n, x).sum(), [n, x])
    assert function([n, x], dx)([1], [1])[0] == pytest.approx(-2.4041138063)
    assert function([n, x], dn, on_unused_input="ignore")([1], [1]) == 0


def test_a_list_of_slices_is_an_index(rng):
    data = rng.normal(size=(3, 4))
    x = T.dmatrix()
    assert x[[slice(None), slice(0, 1)]].eval({x: data}).tolist() == data[:, :1].tolist()
    assert x[[slice(2, None)]].eval({x: data}).tolist() == data[2:].tolist()
    assert x[[0, 2]].eval({x: data}).tolist() == data[[0, 2]].tolist()

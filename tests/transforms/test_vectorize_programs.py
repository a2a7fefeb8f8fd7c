"""vmap of unusual programs: values and gradients against a loop of calls."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn, sparse
from symdnn.errors import GraphError, InputError
from symdnn.ops.control.control import ifelse
from symdnn.transforms.vectorize import vmap

RNG = np.random.default_rng(23)
LANES = 3


def floats(*shape, dtype="float64"):
    return RNG.standard_normal((LANES, *shape)).astype(dtype)


def ints(below, *shape):
    return RNG.integers(0, below, (LANES, *shape))


def definite(n):
    a = floats(n, n)
    return a @ a.transpose(0, 2, 1) + n * np.eye(n)


def attention(v):
    return T.nnet.scaled_dot_product_attention(v, v * 2, v + 1, is_causal=True)


def counted(v):
    out, _ = symdnn.scan(lambda u, a: T.tanh(a * 0.5 + u), sequences=[v], outputs_info=[v[0] * 0])
    return out


def custom(v):
    x = T.dvector()
    op = symdnn.OpFromGraph([x], [x**2], grad_overrides=lambda i, c: [c[0] * 3 * i[0]])
    return op(v)


def written(v, k):
    return T.set_subtensor(v[k], v[k] * 2 + v[0])[1:]


def stft(v):
    return abs(T.fft.rfft(v)) ** 2


def rotated(v):
    z = T.complex_from_polar(abs(v) + 1, v) if hasattr(T, "complex_from_polar") else v + 1j * v
    return (z * T.conj(z[::-1])).real


#: name -> (function of variables, arrays whose first dimension is gone over)
PROGRAMS = {
    "linear": (nn.Linear(4, 3), [floats(2, 4, dtype="float32")]),
    "batched indices": (lambda v, i: v[i] * v[i, 0].dimshuffle(0, "x"), [floats(5, 2), ints(5, 3)]),
    "one index": (lambda v, k: v[k] + v[:, k % 2].sum(), [floats(5, 2), ints(5)]),
    "written parts": (written, [floats(5), ints(5)]),
    "masked": (lambda v: T.set_subtensor(v[v.argmax()], 0.0), [floats(5)]),
    "argmax, sort, topk": (
        lambda v: [T.argmax(v, 0), T.sort(v), T.argsort(v), T.topk(v, 2), T.median(v)],
        [floats(6)],
    ),
    "cumulative": (lambda v: [T.cumsum(v), T.cumprod(v, axis=0), T.diff(v)], [floats(5)]),
    "linalg": (
        lambda a, b: [
            T.linalg.solve(a, b),
            T.linalg.cholesky(a),
            T.linalg.det(a),
            T.linalg.inv(a),
            T.linalg.eigh(a)[0],
            T.linalg.svd(a, compute_uv=False),
            T.linalg.norm(b),
        ],
        [definite(3), floats(3)],
    ),
    "power spectrum": (stft, [floats(8)]),
    "complex": (rotated, [floats(4)]),
    "einsum": (lambda a, b: T.einsum("ij,jk->ik", a, b) @ a, [floats(3, 3), floats(3, 3)]),
    "softmax": (lambda v: T.nnet.softmax(v) * T.nnet.logsoftmax(v, axis=0), [floats(4, 3)]),
    "a loop": (counted, [floats(4, 2)]),
    "a condition": (lambda v: ifelse(v[0] > 0, T.exp(v), -v), [floats(3)]),
    "a gradient of its own": (custom, [floats(3)]),
    "convolution and pooling": (
        lambda x, w: T.signal.pool.pool_2d(T.nnet.conv2d(x, w), (2, 2), ignore_border=True),
        [floats(2, 2, 6, 6), floats(3, 2, 3, 3)],
    ),
    "attention": (attention, [floats(1, 2, 4, 3)]),
    "embedding": (nn.Embedding(7, 3), [ints(7, 4)]),
    "norms": (
        lambda v: [T.nnet.layer_norm(v, np.ones(4), np.zeros(4)), T.std(v, axis=0), T.ptp(v, 1)],
        [floats(3, 4)],
    ),
    "interpolation": (lambda v: T.interp(np.linspace(-1, 1, 5), np.arange(4.0), v), [floats(4)]),
    "joins": (lambda v: T.concatenate([v[::-1], T.tile(v, 2), T.pad(v, 1)]), [floats(3)]),
    "the diagonal": (lambda a: [T.diag(a), T.tril(a), T.trace(a), a.T.flatten()], [floats(3, 3)]),
    "clipping": (lambda v: T.clip(T.round(v * 3), -2, 2) + T.maximum(v, 0) % 0.7, [floats(4)]),
}


def variables(arrays):
    kinds = [T.TensorType(a.dtype.name, (None,) * a.ndim)(f"x{i}") for i, a in enumerate(arrays)]
    return kinds, [k.type.entry()(k.name) for k in kinds]


def listed(found):
    return list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_each_entry(name):
    """Values, gradients inside of vmap, and those of vmap, are those of the entries alone."""
    f, arrays = PROGRAMS[name]
    stacks, entries = variables(arrays)

    def both(*vs):
        outs = listed(f(*vs))
        cost = sum((o**2).sum() for o in outs if o.type.is_float)
        wrt = [v for v in vs if v.type.is_float]
        return outs, symdnn.grad(cost, wrt) if wrt else []

    outs, grads = both(*entries)
    alone = symdnn.function(entries, [*outs, *grads])
    wanted = [np.stack(each) for each in zip(*(alone(*e) for e in zip(*arrays, strict=True)))]
    wide, inside = vmap(both)(*stacks)
    cost = sum((o**2).sum() for o in wide if o.type.is_float)
    through = symdnn.grad(cost, [v for v in stacks if v.type.is_float]) if grads else []
    found = symdnn.function(stacks, [*wide, *inside, *through])(*arrays)
    for got, want in zip(found, [*wanted, *wanted[len(outs) :]], strict=True):
        size = float(np.max(np.abs(want), initial=1))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * size)


NETS = {
    "batch norm in evaluation": (lambda: nn.BatchNorm2d(2).evaluate(), (2, 2, 3, 3)),
    "batch norm without statistics": (
        lambda: nn.BatchNorm2d(2, track_running_stats=False),
        (2, 2, 3, 3),
    ),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, 1, seed=1), (5, 2, 3)),
    "gru": (lambda: nn.GRU(3, 4, 1, seed=1), (5, 2, 3)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_module_of_each_entry(name):
    make, shape = NETS[name]
    net, values = make(), floats(*shape, dtype="float32")

    def first(v):
        out = net(v)
        return out[0] if isinstance(out, list | tuple) else out

    (stack,), (entry,) = variables([values])
    params = list(net.parameters())

    def both(v):
        y = first(v)
        return y, symdnn.grad((y**2).sum(), [v, *params])

    y, grads = both(entry)
    alone = symdnn.function([entry], [y, *grads])
    wanted = [np.stack(each) for each in zip(*(alone(v) for v in values))]
    y, grads = vmap(both)(stack)
    for got, want in zip(symdnn.function([stack], [y, *grads])(values), wanted, strict=True):
        size = float(np.max(np.abs(want), initial=1))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * size)


def test_a_module_that_updates_its_statistics_is_refused_by_name():
    net, x = nn.BatchNorm2d(2), T.TensorType("float32", (None,) * 5)("x")
    with pytest.raises(GraphError, match="running_mean.*evaluation") as caught:
        vmap(net)(x)
    assert "test_vectorize_programs" in str(caught.value)


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), lambda: nn.LSTM(3, 4, 2, dropout=0.5)])
def test_dropout_of_modules(make):
    x = T.TensorType("float32", (None,) * 4)("x")
    for randomness in ("same", "different"):
        net = make()

        def first(v, net=net):
            out = net(v)
            out = out[0] if isinstance(out, list | tuple) else out
            return out, symdnn.grad(out.sum(), v)

        f = symdnn.function([x], list(vmap(first, randomness=randomness)(x)))
        ones = np.ones((LANES, 5, 2, 3), "float32")
        y, dx = f(ones)
        assert len({a.tobytes() for a in y}) == (1 if randomness == "same" else LANES)
        assert len({a.tobytes() for a in dx}) == (1 if randomness == "same" else LANES)
        assert (f(ones)[0] != y).any()


def test_a_sparse_matrix_is_refused_by_name():
    a, x = sparse.csr_matrix("a", dtype="float64"), T.dmatrix("x")
    with pytest.raises(InputError, match="args.0. is a sparse matrix"):
        vmap(lambda m, v: sparse.dot(m, v), in_axes=(None, 0))(a, x)
    import scipy.sparse

    value = scipy.sparse.random(4, 5, 0.5, "csr", random_state=1)
    found = vmap(lambda v: sparse.dot(a, v.dimshuffle(0, "x"))[:, 0])(x)
    rows = RNG.standard_normal((LANES, 5))
    np.testing.assert_allclose(symdnn.function([a, x], found)(value, rows), rows @ value.T)


def test_a_tangent_of_a_vmap_and_a_vmap_of_a_tangent():
    x, t = T.dmatrix("x"), T.dmatrix("t")

    def f(v):
        return T.tanh(v).sum() * v

    inside = vmap(lambda v, u: symdnn.Rop(f(v), v, u))(x, t)
    outside = symdnn.Rop(vmap(f)(x), x, t)
    got, want = symdnn.function([x, t], [inside, outside])(floats(4), floats(4))
    np.testing.assert_allclose(got, want)


def test_the_loops_that_are_left_are_named():
    x = T.dmatrix("x")
    found = vmap(lambda v: T.searchsorted(T.sort(v), v))
    f = symdnn.function([x], found(x))
    (line,) = f.lowering_report().loops
    assert "batch of SearchSorted" in line

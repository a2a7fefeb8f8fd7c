"""Graphs of symdnn written as models: checked, loaded again, and computed by onnx's reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import symdnn
import symdnn.tensor as T
from symdnn import control, nn
from symdnn.errors import ModelError
from symdnn.graph.traverse import graph_inputs
from symdnn.nn import functional as F
from symdnn.onnx import compile, load, save
from symdnn.onnx.save.model import to_model
from symdnn.ops.array.boxes import nms, non_max_suppression
from symdnn.ops.elementwise.storage import Narrow
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.nn.batchnorm import LayerNorm
from symdnn.ops.quantized.product import integer_product

X = T.tensor("float32", ("n", 6), name="x")
M = T.tensor("float32", (4, 6), name="m")
LABELS = T.tensor("int64", (5,), name="i")
V = T.tensor("float32", (None,), name="v")
IMAGES = T.tensor("float32", ("batch", 3, 9, 8), name="images")
W = symdnn.shared(np.random.default_rng(0).normal(size=(4, 3, 3, 2)).astype("float32"), name="w")
QUERY = T.tensor("float32", (2, 3, 5, 4), name="q")


#: Two corners of as many boxes as V has numbers.
BOXES = T.concatenate([T.stack([V, V * 2], 1), T.stack([V + 1, V * 2 + 2], 1)], 1)
OPEN = T.tensor("float32", ("k", 4, "height", "width"), name="open")


def spectra():
    """Complex numbers inside of a graph: transforms, arithmetic, views and parts."""
    z, o = T.fft.rfft(X, axis=1), T.fft.rfft2(OPEN, norm="ortho")
    shifted = T.fft.fft(T.complex(X, 2 * X), axis=1) * T.conj(z[:, :1]) - 1
    return [
        abs(z),
        (z / (z + 3)).imag,
        T.switch(abs(z) > 1, z, -z).real,
        shifted.T[::2].reshape((-1,)).imag,
        T.fft.ifft(shifted, axis=1, norm="ortho").real,
        T.fft.irfft(z * z, n=6, axis=1),
        T.fft.irfft2(o * 2, s=tuple(OPEN.shape[2:]), norm="ortho"),
        T.grad(T.sum(abs(z) ** 2), X),
    ]


def step(total, x):
    return total * 0.5 + x


def loops():
    found, _ = symdnn.scan(lambda x, t: step(t, x), X, outputs_info=[T.zeros(6, "float32")])
    return [found, found[-1]]


def ends():
    found, _ = symdnn.scan(
        lambda x, t: (t + x, symdnn.until(T.sum(t) > 3)), X, outputs_info=[T.ones(6, "float32")]
    )
    return found


def looks_back():
    """A step reads its third last and last value, and collects another."""
    (found, sums), _ = symdnn.scan(
        lambda x, a, b, t: (x + a * 0.5 - b * 0.25, t + x), X,
        outputs_info=[{"initial": M[:3], "taps": [-3, -1]}, T.zeros(6, "float32")],
    )  # fmt: skip
    return [found, sums[-1]]


def quantised():
    codes = T.nnet.quantize(X, 0.05, 3)
    scales = np.linspace(0.01, 0.02, 4).astype("float32")
    filters = T.nnet.dequantize(T.nnet.quantize(W, scales, axis=0), scales, axis=0)
    images = T.nnet.dequantize(T.nnet.quantize(IMAGES, 0.1), 0.1)
    sums = integer_product(Dot(), codes, np.ones((6, 2), "int8"), 3)
    conv = T.nnet.conv2d(images, filters, border_mode=1, filter_flip=False)
    return [codes, T.nnet.dequantize(codes, 0.05, 3), conv, sums]


EXPRESSIONS = {
    "arithmetic": lambda: (X * 2 - 1) / (T.sqr(X) + 1) + T.maximum(X, 0.3) - T.minimum(X, 0.1),
    "functions": lambda: [
        T.exp(X),
        T.log1p(T.sqr(X)),
        T.tanh(X),
        T.erf(X),
        T.nnet.sigmoid(X),
        T.nnet.softplus(X),
        T.sin(X),
        T.sqrt(T.abs_(X)),
        T.expm1(X),
        T.log2(T.abs_(X)),
    ],
    "rounding": lambda: [T.floor(X), T.ceil(X), T.round(X), T.trunc(X * 3), T.sgn(X)],
    "quantised": lambda: quantised(),
    "activations": lambda: [
        T.nnet.relu(X),
        T.nnet.elu(X, 0.7),
        T.nnet.leaky_relu(X, 0.2),
        T.nnet.gelu(X),
        T.nnet.gelu(X, approximate=True),
    ],
    "comparisons": lambda: [
        X > 0.1,
        T.eq(LABELS, 2),
        T.neq(LABELS, 2) & (LABELS < 4),
        T.switch(X > 0, X, -X),
        T.isnan(X) | (X <= 0),
        T.clip(X, -0.5, 0.5),
    ],
    "integers": lambda: [
        LABELS // -2,
        LABELS % 3,
        LABELS - 7 // 2,
        (LABELS - 3) // 2,
        (LABELS - 3) % -2,
        LABELS & 3,
        LABELS ^ 1,
    ],
    "shapes": lambda: [
        X.T,
        X.reshape((X.shape[0], 2, 3)),
        X.reshape((-1,)),
        X.dimshuffle(0, "x", 1),
        T.shape(X),
        X.shape[0] * 2,
        T.zeros_like(X),
        T.alloc(V[0], X.shape[0], 2),
    ],
    "joins": lambda: [
        T.concatenate([X, X * 2], axis=1),
        T.stack([M, -M]),
        *T.split(M, [2, 4], 2, axis=1),
    ],
    "indexing": lambda: [
        X[1:, ::2],
        X[0],
        X[:, -1],
        X[::-1],
        M[LABELS % 4],
        M[LABELS % 4, LABELS],
        X[:, LABELS],
        T.take(M, LABELS % 4, axis=0),
        X[:-1, 2:4],
    ],
    "writing": lambda: [
        T.set_subtensor(M[1:3, ::2], 7.0),
        T.inc_subtensor(M[LABELS % 4], M[0]),
        T.set_subtensor(M[2], M[0] * 2),
    ],
    "reductions": lambda: [
        X.sum(),
        X.sum(axis=0),
        X.mean(axis=1, keepdims=True),
        M.prod(axis=0),
        X.max(axis=1),
        M.min(),
        T.argmax(X, axis=1),
        T.logsumexp(X, axis=1),
        T.all(X > -9, axis=1),
        T.any(X > 0),
        X.var(axis=0),
        T.cumsum(X, axis=1),
    ],
    "sorting": lambda: [T.sort(X, axis=1), T.argsort(M, axis=0), *T.topk_and_argtopk(X, 3, axis=1)],
    "products": lambda: [
        T.dot(X, M.T),
        T.dot(X, M[0]),
        T.matmul(QUERY, QUERY.dimshuffle(0, 1, 3, 2)),
        T.tensordot(M, M, axes=[[1], [1]]),
    ],
    "padding": lambda: [
        T.pad(M, ((1, 0), (2, 3)), constant_values=5.0),
        T.roll(M, 2, axis=1),
        T.arange(X.shape[0]),
        T.ones((2, 2)),
    ],
    "softmax": lambda: [T.softmax(X), T.log_softmax(X, axis=0)],
    "convolution": lambda: [
        T.nnet.conv2d(IMAGES, W, filter_flip=False),
        T.nnet.conv2d(IMAGES, W, border_mode="half"),
        T.nnet.conv2d(IMAGES, W, border_mode=(2, 1), subsample=(2, 1), filter_dilation=(1, 2)),
        T.nnet.conv2d_transpose(
            IMAGES, W.dimshuffle(1, 0, 2, 3), input_dilation=(2, 2), output_shape=(None, 4, 19, 16)
        ),
    ],
    "transposed_convolution_of_open_size": lambda: [
        nn.SpatialFullConvolution(4, 2, k, k, s, s, p, p, a, a)(OPEN)
        for k, s, p, a in ((3, 2, 1, 1), (4, 2, 1, 0), (2, 3, 0, 2), (3, 1, 1, 0))
    ],
    "gradient_of_an_open_image": lambda: T.grad(
        T.sum(T.sqr(T.nnet.conv2d(OPEN, W[:, :1].repeat(4, 1), subsample=(2, 3)))), OPEN
    ),
    "spectra": spectra,
    "pooling": lambda: [
        T.signal.pool.pool_2d(IMAGES, (2, 3), ignore_border=True),
        T.signal.pool.pool_2d(IMAGES, (2, 2), ignore_border=False),
        T.signal.pool.pool_2d(IMAGES, (3, 3), True, (2, 2), (1, 1), mode="average_exc_pad"),
        T.signal.pool.pool_2d(IMAGES, (3, 3), True, (2, 2), (1, 1), mode="average_inc_pad"),
        T.signal.pool.pool_2d(IMAGES[0], (2, 2), ignore_border=True, mode="sum"),
    ],
    "norms": lambda: [
        T.nnet.layer_norm(M),
        T.nnet.lrn(IMAGES),
        T.nnet.group_norm(IMAGES, 3),
        T.nnet.instance_norm(IMAGES),
    ],
    "attention": lambda: T.nnet.scaled_dot_product_attention(QUERY, QUERY, QUERY, is_causal=True),
    "choice": lambda: symdnn.ifelse(T.sum(X) > 0, X * 2, X - 1),
    "loop": loops,
    "loop_with_an_end": ends,
    "loop_looking_back": looks_back,
    "running_products": lambda: [T.cumprod(X, axis=1), T.cumprod(M, axis=0)],
    "running": lambda: [
        *(T.cummax(X, axis=1), T.cummin(M, axis=0), T.cummax(LABELS), T.logcumsumexp(M, 1)),
        *(T.cummax(X > 1, axis=1), T.cummin(M > -1, axis=0)),
        T.forward_fill(T.switch(X > 0, X, np.nan), 0),
        *(control.associative_scan(decay, (X, X), reverse=back)[1] for back in (False, True)),
        T.grad(T.sum(T.cumprod(X, 1) ** 2), X),
        T.grad(T.sum(T.cummax(M, 0) ** 2), M),
    ],
    "near_0": lambda: [T.expm1(X * 1e-5) * 1e5, T.log1p(X * 1e-5) * 1e5, T.expm1(X * 9)],
    "searching": lambda: [
        T.searchsorted(T.sort(V), M),
        T.searchsorted(T.sort(V), V, side="right"),
        *T.unique(LABELS, return_index=True, return_counts=True),
    ],
    "diagonals": lambda: [
        *(T.diag(V), T.diag(M[0], k=2), T.diag(V, k=-1)),
        *(T.diagonal(v, k) for v, k in ((X, 2), (OPEN, -1), (M, 9))),
    ],
    "boxes": lambda: [
        nms(BOXES, V, 0.3),
        non_max_suppression(BOXES.dimshuffle("x", 0, 1), V.dimshuffle("x", "x", 0), 2, 0.2, 0.1),
    ],
    "extremes_by_index": lambda: [
        T.segment_max(V[T.cast(LABELS, "int64") % 3], LABELS, 7),
        *(T.scatter_reduce(M, 1, T.cast(M > 0, "int64"), M, how) for how in ("amin", "prod")),
    ],
    "storage_types": lambda: [
        Narrow(kind)(X * 300) for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
    ],
    "shifts": lambda: [LABELS << 3, (LABELS - 4) >> 1, T.cast(LABELS, "uint8") >> 1],
    "classes": lambda: [
        T.nnet.categorical_crossentropy(T.softmax(M), LABELS[:4]),
        T.extra_ops.to_one_hot(T.cast(LABELS, "int32"), 6),
    ],
    "gradient": lambda: T.grad(T.sum(T.tanh(T.dot(X, M.T))), X),
}


def decay(x, y):
    (a, b), (c, d) = x, y
    return a * c, c * b + d


def data(v, rng):
    shape = [3 if d is None else d for d in v.type.shape]
    if v.type.is_integer:
        return rng.integers(0, 6, shape)
    return rng.normal(size=shape).astype(v.type.dtype)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("opset", [21, onnx.defs.onnx_opset_version()])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_stay(name, opset, rng, tmp_path):
    """By onnx's reference, and by symdnn of the loaded file."""
    made = EXPRESSIONS[name]()
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    model = save(outputs, tmp_path / "m.onnx", opset)
    inputs = [v for v in (X, M, LABELS, V, IMAGES, OPEN, QUERY)
              if v.name in {p.name for p in model.graph.input}]  # fmt: skip
    values = [data(v, rng) for v in inputs]
    wanted = symdnn.function(inputs, outputs)(*values)
    feed = dict(zip((v.name for v in inputs), values))
    again = compile(tmp_path / "m.onnx")(**feed).values()
    reference = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, feed)
    for w, a, r in zip(wanted, again, reference, strict=True):
        assert a.dtype == w.dtype == r.dtype
        np.testing.assert_allclose(a, w, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(r, w, rtol=2e-4, atol=1e-5)


def test_choices_of_bools_and_mixed_types_are_what_runtimes_have(tmp_path):
    """ONNX Runtime has no Where of bools; a LayerNormalization has one type in ONNX."""
    halves = T.cast(M, "float16")
    gamma = np.linspace(0.5, 1.5, 6).astype("float32")
    normal = LayerNorm(axes=(1,), epsilon=1e-5)(halves, gamma[None], gamma[None])[0]
    model = save([T.switch(X > 1, X < 2, X > 0), normal], tmp_path / "m.onnx")
    typed = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    kinds = {v.name: v.type.tensor_type.elem_type
             for v in (*typed.graph.value_info, *typed.graph.output)}  # fmt: skip
    chosen = [n.output[0] for n in model.graph.node if n.op_type == "Where"]
    assert onnx.TensorProto.BOOL not in {kinds[n] for n in chosen}
    assert "LayerNormalization" in {n.op_type for n in model.graph.node}
    x, m = (np.linspace(-3, 3, n * 6, dtype="float32").reshape(n, 6) for n in (3, 4))
    found, normed = compile(tmp_path / "m.onnx")(x=x, m=m).values()
    np.testing.assert_array_equal(found, np.where(x > 1, x < 2, x > 0))
    assert normed.dtype == "float16"
    centred = m - m.mean(1, keepdims=True)
    wanted = gamma * centred / np.sqrt(m.var(1, keepdims=True)) + gamma
    np.testing.assert_allclose(normed, wanted, rtol=2e-3, atol=2e-3)


def test_named_sizes_and_parameters_come_back(tmp_path):
    y = T.nnet.relu(T.nnet.conv2d(IMAGES, W, filter_flip=False)).mean((2, 3)).reshape((-1, 2, 2))
    save({"features": y}, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    assert graph.dims == ("batch",)
    assert list(graph.parameters) == ["w"]
    assert str(graph.inputs["images"]) == "images: float32(batch, 3, 9, 8)"
    assert graph.expressions["features"].type.shape[1:] == (2, 2)


def test_functions_and_modules(tmp_path, rng):
    net = nn.Sequential(
        nn.SpatialConvolution(3, 4, 3, 3), nn.SpatialBatchNormalization(4), nn.ReLU(),
        nn.Dropout(0.5), nn.SpatialMaxPooling(2, 2), nn.Flatten(), nn.Linear(4 * 3 * 3, 2),
    )  # fmt: skip
    save(net, tmp_path / "net.onnx", inputs=[IMAGES])
    images = rng.normal(size=(2, 3, 9, 8)).astype("float32")
    assert net.training
    f = symdnn.function([IMAGES], net.evaluate()(IMAGES), name="f")
    save(f, tmp_path / "f.onnx")
    for name in ("net", "f"):
        (found,) = compile(tmp_path / f"{name}.onnx")(images).values()
        np.testing.assert_allclose(found, f(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(4, 6), (None, None), (None, 6)], ids=str)
def test_images_that_are_made_larger(tmp_path, rng, dtype, sizes):
    """Blocks of equal elements, also as the gradient of means of blocks with a rest."""
    x = T.tensor(dtype, (None, 3, *sizes), name="x")
    of_rest = T.grad((F.avg_pool2d(x, (3, 4)) ** 2).sum(), x)
    ys = [nn.Upsample(scale_factor=2)(x), F.interpolate(x, scale_factor=(3, 1)), of_rest]
    f = symdnn.function([x], ys)
    save(f, tmp_path / "m.onnx")
    again = compile(tmp_path / "m.onnx")
    for shape in ((2, 3, 4, 6), *([(1, 3, 7, 6)] if sizes[0] is None else [])):
        image = rng.normal(size=shape).astype(dtype)
        for found, wanted in zip(again(image).values(), f(image), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_parameters_in_a_file_of_their_own(tmp_path, rng):
    big = symdnn.shared(rng.normal(size=(6, 300)).astype("float32"), name="big")
    save(T.dot(X, big), tmp_path / "m.onnx", external=True)
    assert (tmp_path / "m.onnx.data").stat().st_size >= 6 * 300 * 4
    x = rng.normal(size=(2, 6)).astype("float32")
    (found,) = compile(tmp_path / "m.onnx")(x).values()
    np.testing.assert_allclose(found, x @ big.get_value(), rtol=1e-5)


def test_a_file_of_parameters_is_written_anew(tmp_path, rng):
    """Another model of the same name, and one that is read from these very files."""
    path, data_file = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    big, bias = (symdnn.shared(rng.normal(size=s).astype("float32"), name=n)
                 for s, n in (((6, 300), "big"), ((300,), "bias")))  # fmt: skip
    y = T.dot(X, big) + bias
    save(y, path, external=True)
    size = data_file.stat().st_size
    before = load(path)
    big.set_value(2 * big.get_value())
    save(y, path, external=True)
    assert data_file.stat().st_size == size
    x = rng.normal(size=(2, 6)).astype("float32")
    wanted = x @ big.get_value() + bias.get_value()
    (old,) = symdnn.function([before.variables["x"]], list(before.expressions.values()))(x)
    np.testing.assert_allclose(
        old, x @ big.get_value() / 2 + bias.get_value(), rtol=1e-4, atol=1e-5
    )
    again = load(path)
    save(again.expressions, path, inputs=list(again.variables.values()), external=True)
    (found,) = compile(path)(x).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


@pytest.mark.parametrize("opset", [18, 20, 21, 23, onnx.defs.onnx_opset_version()])
def test_opsets(opset, rng):
    model = to_model([T.nnet.gelu(T.nnet.layer_norm(M))], opset)
    m = data(M, rng)
    (found,) = compile(model)(m).values()
    np.testing.assert_allclose(found, T.nnet.gelu(T.nnet.layer_norm(M)).eval({M: m}), rtol=1e-5)


def losses(x, labels):
    """Each loss, norm and activation whose op or gradient is a function of others in ONNX."""
    logits, classes = x[:, :6].reshape((-1, 3, 2)), T.stack([labels, (labels + 1) % 3], 1)
    gamma, image = T.arange(1.0, 7.0, dtype="float32"), x.reshape((-1, 3, 2, 1))
    return {
        "cross-entropy": F.cross_entropy(x, labels),
        "of pixels": F.cross_entropy(logits, classes, label_smoothing=0.1),
        "of probabilities": T.nnet.categorical_crossentropy(F.softmax(x, 1), labels).sum(),
        "likelihoods": F.nll_loss(F.log_softmax(x, 1) * 2, labels),
        "picked": -T.log(T.nnet.softmax(x) + 0.1)[T.arange(x.shape[0]), labels].mean(),
        "log-softmax": (F.log_softmax(logits, 1) * T.sin(logits)).sum(),
        "layer norm": (F.layer_norm(x, (6,), gamma, gamma / 2) ** 3).sum(),
        "group norm": (F.group_norm(image, 3, gamma[:3]) * T.sin(image)).sum(),
        "batch norm": (F.batch_norm(image, None, None, training=True) * T.sin(image)).sum(),
        "gelu": F.gelu(x * 3).sum(), "relu": (F.relu(x) ** 2).sum(),
    }  # fmt: skip


def test_parameters_without_dimensions_have_none():
    """A temperature, say, whose exponential scales a matrix."""
    scale = symdnn.shared(np.float32(0.5), name="scale")
    (found,) = ReferenceEvaluator(to_model([T.exp(scale) * M])).run(
        None, {"m": np.ones((4, 6), "float32")}
    )
    np.testing.assert_allclose(found, np.full((4, 6), np.exp(0.5)), rtol=1e-6)


@pytest.mark.parametrize("name", losses(X, T.lvector("i")))
def test_losses_and_their_gradients(name, rng):
    """And gradients of gradients, by onnx's own evaluator."""
    labels = T.lvector("i")
    loss = losses(X, labels)[name]
    slope = T.grad(loss, X)
    outputs = [loss, slope, T.grad(T.sum(slope**2), X)]
    x, i = rng.normal(size=(4, 6)).astype("float32"), np.array([0, 2, 1, 2])
    given = {"x": x} | ({"i": i} if labels in graph_inputs(outputs) else {})
    wanted = symdnn.function([X, labels], outputs, on_unused_input="ignore")(x, i)
    found = ReferenceEvaluator(to_model(outputs)).run(None, given)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_what_has_no_counterpart_is_named(tmp_path):
    with pytest.raises(ModelError, match="Jv.*no counterpart"):
        save(T.jv(1.5, X), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="Cosh.*no counterpart for complex"):
        save(T.cosh(T.complex(X, X)).real, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="is complex; give its real and imaginary part"):
        save(T.fft.rfft(X), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="opset 3"):
        save(X, tmp_path / "m.onnx", opset=3)
    with pytest.raises(ModelError, match="wants inputs"):
        save(nn.ReLU(), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    "expression",
    [
        lambda a: T.linalg.pinv(a),
        lambda a: T.linalg.lstsq(a, a)[0],
        lambda a: symdnn.grad(T.linalg.det(a), a),
        lambda a: symdnn.grad(symdnn.grad(T.linalg.det(a), a).sum(), a),
        lambda a: T.linalg.slogdet(a, assume_a="pos")[1],
    ],
    ids=["pinv", "lstsq", "adjugate", "slope of the adjugate", "slogdet"],
)
def test_what_is_left_of_matrices_by_factors_is_named(expression, tmp_path):
    """Ops that are written out in others: the last of these has no counterpart."""
    with pytest.raises(ModelError, match="no counterpart in ONNX"):
        save(expression(T.matrix("a")), tmp_path / "m.onnx")


def test_what_only_a_branch_needs_is_in_the_branch(tmp_path, rng):
    """The last of no rows is an error, which the choice keeps away."""
    last = T.exp(X[-1])
    y = symdnn.ifelse(X.shape[0] > 0, last, T.zeros(6, "float32")) + T.sum(X)
    path = tmp_path / "m.onnx"
    save({"y": y}, path)
    outside = {n.op_type for n in onnx.load(path).graph.node}
    assert "If" in outside
    assert "Exp" not in outside
    for n in (0, 3):
        x = rng.normal(size=(n, 6)).astype("float32")
        wanted = (np.exp(x[-1]) if n else np.zeros(6)) + x.sum()
        found = [*compile(path)(x).values(), *ReferenceEvaluator(str(path)).run(None, {"x": x})]
        for v in found:
            np.testing.assert_allclose(v, wanted, rtol=1e-5)

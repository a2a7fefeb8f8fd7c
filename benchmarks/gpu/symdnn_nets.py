"""The workloads' networks as a user of symdnn writes them.

Parameters, initial values and data are those of ``benchmarks/workloads/pspec.py``. Images are
tensors in NCHW order; where a case says ``nhwc``, the function takes them in NHWC order, as the
peers have them, and sees them through ``dimshuffle``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from benchmarks.workloads import pspec

MOMENTUM = np.float32(0.9)


class Model:
    """A network of ``pspec`` with its parameters as shared variables.

    ``dtype`` is that of the stored parameters; those of batch normalisation are float32 always, as
    cuDNN wants them. ``updates`` gathers the running statistics' new values.
    """

    def __init__(self, net: pspec.Net, dtype: str = "float32", training: bool = True) -> None:
        self.net, self.dtype, self.training = net, dtype, training
        self.updates: list[tuple[Any, Any]] = []
        norms = {name for name, _ in net.bn}
        values = net.init()
        self.parameters: dict[str, Any] = {}
        for name, _, _, _ in net.params:
            wide = name.rsplit(".", 1)[0] in norms
            value = values[name] if wide else values[name].astype(symdnn_dtype(dtype))
            self.parameters[name] = symdnn.shared(value, name=name)
        self.running = {
            f"{name}.{which}": symdnn.shared(make(channels, "float32"), name=f"{name}.{which}")
            for name, channels in net.bn
            for which, make in (("mean", np.zeros), ("var", np.ones))
        }

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def conv(self, h: Any, name: str, stride: int = 1, pad: int = 0, bias: bool = False) -> Any:
        """Cross-correlation, with a bias for each channel where there is one."""
        h = T.nnet.conv2d(
            h, self[f"{name}.w"], border_mode=(pad, pad), subsample=(stride, stride),
            filter_flip=False,
        )  # fmt: skip
        return h + self[f"{name}.b"].dimshuffle("x", 0, "x", "x") if bias else h

    def norm(self, h: Any, name: str) -> Any:
        """Batch normalisation, by the batch's statistics while training."""
        g, b = self[f"{name}.g"], self[f"{name}.b"]
        mean, var = self.running[f"{name}.mean"], self.running[f"{name}.var"]
        if not self.training:
            return T.nnet.bn.batch_normalization_test(h, g, b, mean, var, "spatial", 1e-5)
        y, _, _, new_mean, new_var = T.nnet.bn.batch_normalization_train(
            h, g, b, "spatial", 1e-5, 0.1, mean, var
        )
        self.updates += [(mean, new_mean), (var, new_var)]
        return y

    def dense(self, h: Any, name: str) -> Any:
        """``h W + b``."""
        return T.dot(h, self[f"{name}.w"]) + self[f"{name}.b"]

    def logits(self, x: Any) -> Any:
        """Class scores (N, classes) of images or rows ``x``."""
        return NETWORKS[self.net.name](self, x)


def symdnn_dtype(name: str) -> Any:
    """NumPy's dtype of this name, bfloat16 included."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def max_pool(h: Any, size: int = 2, stride: int = 2, pad: int = 0) -> Any:
    """Maxima of square windows."""
    return T.signal.pool.pool_2d(
        h, (size, size), ignore_border=True, stride=(stride, stride), pad=(pad, pad)
    )


def lenet5(m: Model, x: Any) -> Any:
    """LeCun et al. 1998 with tanh after pooling."""
    h = T.tanh(max_pool(m.conv(x, "c1", bias=True)))
    h = T.tanh(max_pool(m.conv(h, "c2", bias=True)))
    return m.dense(T.tanh(m.dense(h.flatten(2), "f1")), "f2")


def mlp(m: Model, x: Any) -> Any:
    """Dense layers with relu between them."""
    *hidden, last = [name for name, _, _ in m.net.fcs]
    for name in hidden:
        x = T.nnet.relu(m.dense(x, name))
    return m.dense(x, last)


def vgg16(m: Model, x: Any) -> Any:
    """Simonyan and Zisserman 2015, configuration D."""
    number = 0
    for width in pspec.VGG:
        if width == "M":
            x = max_pool(x)
        else:
            x = T.nnet.relu(m.conv(x, f"c{number}", pad=1, bias=True))
            number += 1
    h = T.nnet.relu(m.dense(x.flatten(2), "f1"))
    return m.dense(T.nnet.relu(m.dense(h, "f2")), "f3")


def resnet50(m: Model, x: Any) -> Any:
    """He et al. 2016, version 1.5: the stride is in the 3x3 convolution."""
    h = T.nnet.relu(m.norm(m.conv(x, "conv1", 2, 3), "bn1"))
    h = max_pool(h, 3, 2, 1)
    for stage, (_, blocks, stride) in enumerate(pspec.RES):
        for block in range(blocks):
            h = _bottleneck(m, h, f"l{stage + 1}_{block}_", stride if block == 0 else 1, block == 0)
    return m.dense(h.mean(axis=(2, 3)), "fc")


def _bottleneck(m: Model, x: Any, at: str, stride: int, project: bool) -> Any:
    h = T.nnet.relu(m.norm(m.conv(x, f"{at}conv1"), f"{at}bn1"))
    h = T.nnet.relu(m.norm(m.conv(h, f"{at}conv2", stride, 1), f"{at}bn2"))
    h = m.norm(m.conv(h, f"{at}conv3"), f"{at}bn3")
    if project:
        x = m.norm(m.conv(x, f"{at}dconv", stride), f"{at}dbn")
    return T.nnet.relu(h + x)


NETWORKS = {"lenet5": lenet5, "mlp": mlp, "vgg16": vgg16, "resnet50": resnet50}


def input_of(net: pspec.Net, dtype: str, layout: str) -> tuple[Any, Any]:
    """(the function's input, what the network reads): rows, or images in NCHW order."""
    if len(net.inshape) == 1:
        x = T.matrix("x", dtype=dtype)
        return x, x
    x = T.tensor4("x", dtype=dtype)
    return x, x.dimshuffle(0, 3, 1, 2) if layout == "nhwc" else x


def train_function(model: Model, dtype: str = "float32", layout: str = "nchw") -> Any:
    """(images, labels) -> loss; a call is a step of SGD with momentum 0.9."""
    x, h = input_of(model.net, dtype, layout)
    labels = T.ivector("labels")
    scores = model.logits(h.astype("float32"))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels).mean()
    rate, updates = np.float32(model.net.lr), list(model.updates)
    parameters = list(model.parameters.values())
    for p, g in zip(parameters, T.grad(loss, parameters), strict=True):
        v = symdnn.shared(np.zeros_like(p.get_value(borrow=True)), name=f"{p.name}.momentum")
        step = MOMENTUM * v + g
        updates += [(v, step), (p, p - rate * step)]
    inputs = [symdnn.In(x, borrow=True), symdnn.In(labels, borrow=True)]
    return symdnn.function(inputs, symdnn.Out(loss, borrow=True), updates=updates, name="train")


def infer_function(model: Model, dtype: str = "float32", layout: str = "nchw") -> Any:
    """Images -> class scores."""
    x, h = input_of(model.net, dtype, layout)
    scores = symdnn.Out(model.logits(h), borrow=True)
    return symdnn.function([symdnn.In(x, borrow=True)], scores, name="infer")


# -- recurrent nets -------------------------------------------------------------------------------


def rnn_vector(kind: str, sizes: dict[str, int]) -> np.ndarray:
    """The parameters of ``pspec`` as one vector: all matrices, layer by layer, then all biases."""
    parts = pspec.rnn_params(kind, sizes["inp"], sizes["hid"], sizes["layers"])
    matrices = [a.ravel() for _, a in parts if a.ndim == 2]
    return np.concatenate([*matrices, *(a for _, a in parts if a.ndim == 1)])


def rnn_function(kind: str, sizes: dict[str, int], dtype: str, backward: bool) -> Any:
    """x -> y, or (x, dy) -> (y, dx, dw); states start at zero."""
    from symdnn.gpu import dnn

    block = dnn.RNNBlock(dtype, sizes["hid"], sizes["layers"], kind)
    w = symdnn.shared(rnn_vector(kind, sizes).astype(symdnn_dtype(dtype)), name="w")
    shape = (sizes["layers"], sizes["B"], sizes["hid"])
    zero = symdnn.shared(np.zeros(shape, symdnn_dtype(dtype)), name="zero")
    x = T.tensor3("x", dtype=dtype)
    y = block.apply(w, x, zero, zero if kind == "lstm" else None, train=backward)[0]
    if not backward:
        return symdnn.function([symdnn.In(x, borrow=True)], symdnn.Out(y, borrow=True), name=kind)
    return _with_gradients(y, [x, w], [x])


def _with_gradients(y: Any, wrt: list[Any], inputs: list[Any], layout: str = "") -> Any:
    """(inputs, dy) -> (y, the gradients); ``layout`` 'nhwc': the first two are handed out so."""
    dy = y.type("dy") if layout != "nhwc" else T.tensor4("dy", dtype=y.type.dtype)
    seen = dy.dimshuffle(0, 3, 1, 2) if layout == "nhwc" else dy
    grads = T.grad(None, wrt, known_grads={y: seen})
    outputs = [y, *grads]
    if layout == "nhwc":
        outputs[0] = y.dimshuffle(0, 2, 3, 1)
    given = [symdnn.In(v, borrow=True) for v in (*inputs, dy)]
    return symdnn.function(given, [symdnn.Out(o, borrow=True) for o in outputs], name="fwdbwd")


# -- single operations ----------------------------------------------------------------------------


def softmax(x: Any) -> tuple[Any, list[Any]]:
    """Over axis 1."""
    return T.nnet.softmax(x, axis=1), []


def batch_norm(x: Any, channels: int = 256) -> tuple[Any, list[Any]]:
    """By the batch's statistics, with scale and shift."""
    rng = np.random.default_rng(3)
    p = [symdnn.shared(rng.standard_normal(channels, np.float32), name=n) for n in ("g", "b")]
    return T.nnet.bn.batch_normalization_train(x, *p, "spatial", 1e-5)[0], p


def batch_norm_relu(x: Any, channels: int = 256) -> tuple[Any, list[Any]]:
    """The same, then relu."""
    y, p = batch_norm(x, channels)
    return T.nnet.relu(y), p


def pooled(x: Any) -> tuple[Any, list[Any]]:
    """3x3 maxima, stride 2, padding 1."""
    return max_pool(x, 3, 2, 1), []


def chain(x: Any) -> tuple[Any, list[Any]]:
    """The elementwise chain of ``pspec``."""
    a, b, c, d = (np.float32(pspec.EW[k]) for k in "abcd")
    return T.tanh(a * x + b) * T.nnet.sigmoid(c * x) + T.nnet.relu(x - d), []


def op_function(op: Any, x: Any, backward: bool, layout: str) -> Any:
    """One operation, and with ``backward`` its gradients; ``x`` may be shared (then no input).

    In NHWC order, ``x`` and ``y`` are that at the border.
    """
    nhwc = layout == "nhwc"
    y, parameters = op(x.dimshuffle(0, 3, 1, 2) if nhwc else x)
    inputs = [] if isinstance(x, symdnn.Shared) else [x]
    if backward:
        return _with_gradients(y, [x, *parameters], inputs, layout if nhwc else "")
    out = symdnn.Out(y.dimshuffle(0, 2, 3, 1) if nhwc else y, borrow=True)
    return symdnn.function([symdnn.In(v, borrow=True) for v in inputs], out, name="op")


def dispatch_function(kind: str, count: int) -> Any:
    """``count`` small dependent operations: elementwise (``ew``) or products (``mm``)."""
    x = T.vector("x") if kind == "ew" else T.matrix("x")
    w = symdnn.shared(pspec.ortho32(), name="w")
    y = x
    for i in range(count):
        if kind == "mm":
            y = T.dot(y, w)
        else:
            y = T.tanh(y) if i % 2 == 0 else y * np.float32(1.01)
    return symdnn.function([symdnn.In(x, borrow=True)], symdnn.Out(y, borrow=True), name="small")

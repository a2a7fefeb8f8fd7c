"""The cases in symdnn, as a user writes them: arguments and results are borrowed NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from benchmarks.cpu import spec
from benchmarks.cpu.jobs import Job, rotating
from benchmarks.gpu import symdnn_nets
from symdnn import nn
from symdnn.nn.formats.torch import torch_slots

_F = np.float32


def facts() -> dict[str, Any]:
    """Version, threads, and which oneDNN there is."""
    from symdnn.cpu.threads import threads

    return {"symdnn": symdnn.__version__, "symdnn_threads": threads.allowed()}


def drop() -> None:
    """Nothing is kept but kernels."""


def prepare(case: spec.Case, variant: str) -> Job:
    """The case's job; there is one variant."""
    if case.family == "net":
        return _network(case)
    if case.family == "model":
        return _model(case)
    if case.family == "rnn":
        return _recurrent(case)
    given = spec.inputs(case)
    if case.family == "adam":
        return _adam(given)
    if case.family == "call":
        return _call(case, given)
    if case.family == "conv":
        return _conv(case, given)
    return _operation(case, given)


def _function(inputs: Sequence[Any], outputs: Any, **more: Any) -> Any:
    borrowed = [symdnn.In(v, borrow=True) for v in inputs]
    if isinstance(outputs, list):
        results: Any = [symdnn.Out(o, borrow=True) for o in outputs]
    else:
        results = symdnn.Out(outputs, borrow=True)
    return symdnn.function(borrowed, results, **more)


# -- images at the border --------------------------------------------------------------------------


def _symbol(case: spec.Case, name: str, value: Any) -> tuple[Any, Any, Any]:
    """(input, what the graph reads, the array) of an image tensor in the case's order."""
    if not case.channels_last or value.ndim != 4:
        v = T.TensorType(str(value.dtype), (None,) * value.ndim)(name)
        return v, v, value
    v = T.tensor4(name)
    return v, v.dimshuffle(0, 3, 1, 2), np.ascontiguousarray(value.transpose(0, 2, 3, 1))


def _out(case: spec.Case, y: Any) -> Any:
    return y.dimshuffle(0, 2, 3, 1) if case.channels_last and y.ndim == 4 else y


def _nchw(case: spec.Case, y: Any) -> Any:
    return y.transpose(0, 3, 1, 2) if case.channels_last and np.ndim(y) == 4 else y


def _conv(case: spec.Case, given: dict[str, Any]) -> Job:
    """Weights are shared; their gradient is an OIHW array."""
    s, way = case.sizes, case.sizes["pass"]
    pad, stride = (s["pad"],) * 2, (s["stride"],) * 2
    more = {"border_mode": pad, "subsample": stride, "filter_flip": False}
    x, seen_x, a = _symbol(case, "x", given["x"])
    dy, seen_dy, b = _symbol(case, "dy", given["dy"])
    w = symdnn.shared(given["w"], name="w")
    grads = T.nnet.abstract_conv
    if way == "fwd":
        y = T.nnet.conv2d(seen_x, w, num_groups=s["groups"], **more)
        f = _function([x], _out(case, y))
        return Job(partial(f, a), lambda y: {"y": _nchw(case, y)}, f)
    more["num_groups"] = s["groups"]
    if way == "bwd_d":
        dx = grads.conv2d_grad_wrt_inputs(seen_dy, w, given["x"].shape, **more)
        f = _function([dy], _out(case, dx))
        return Job(partial(f, b), lambda dx: {"dx": _nchw(case, dx)}, f)
    dw = grads.conv2d_grad_wrt_weights(seen_x, seen_dy, given["w"].shape, **more)
    f = _function([x, dy], dw)
    return Job(partial(f, a, b), lambda dw: {"dw": dw}, f)


# -- operations ------------------------------------------------------------------------------------


def _pool(case: spec.Case) -> Callable[..., Any]:
    mode = "max" if case.sizes["kind"] == "max" else "average_inc_pad"
    return lambda x: T.signal.pool.pool_2d(x, (2, 2), ignore_border=True, mode=mode)


def _attention(case: spec.Case) -> Callable[..., Any]:
    """16-bit operands are cast in the graph."""
    s = case.sizes

    def attend(*qkv: Any) -> Any:
        narrow = [T.cast(x, s["dtype"]) for x in qkv]
        y = T.nnet.scaled_dot_product_attention(*narrow, is_causal=s["causal"])
        return T.cast(y, "float32")

    return attend


def _batch_norm(x: Any, g: Any, b: Any) -> Any:
    return T.nnet.bn.batch_normalization_train(x, g, b, "spatial", 1e-5)[0]


def _cross_entropy(x: Any, labels: Any) -> Any:
    return T.nnet.categorical_crossentropy(T.nnet.softmax(x), labels).mean()


_FORWARD: dict[str, tuple[Callable[[spec.Case], Callable[..., Any]], str]] = {
    "pool": (_pool, "x"),
    "bn": (lambda _: _batch_norm, "x g b"),
    "softmax": (lambda _: lambda x: T.nnet.softmax(x, axis=1), "x"),
    "logsoftmax": (lambda _: lambda x: T.nnet.logsoftmax(x), "x"),
    "layernorm": (lambda _: lambda x, g, b: T.nnet.layer_norm(x, g, b, epsilon=1e-5), "x g b"),
    "matmul": (lambda _: T.matmul, "a b"),
    "attention": (_attention, "q k v"),
    "chain": (lambda _: lambda x: symdnn_nets.chain(x)[0], "x"),
    "gelu": (lambda _: T.nnet.gelu, "x"),
    "sumsq": (lambda _: lambda x: (x * x).sum(), "x"),
    "sum_rows": (lambda _: lambda x: x.sum(axis=1), "x"),
    "sum_columns": (lambda _: lambda x: x.sum(axis=0), "x"),
    "max_channels": (lambda _: lambda x: x.max(axis=(0, 2, 3)), "x"),
    "bias_relu": (lambda _: lambda x, b: T.nnet.relu(x + b), "x b"),
    "xent": (lambda _: _cross_entropy, "x labels"),
}


def _operation(case: spec.Case, given: dict[str, Any]) -> Job:
    make, names = _FORWARD[case.family]
    if case.family == "xent":
        given["labels"] = given["labels"].astype(np.int32)
    inputs, seen, arrays = map(
        list, zip(*(_symbol(case, n, given[n]) for n in names.split()), strict=True)
    )
    y = make(case)(*seen)
    if not case.backward and case.family != "xent":
        f = _function(inputs, _out(case, y))
        return Job(partial(f, *arrays), lambda y: {"y": _nchw(case, y)}, f)
    wrt = [v for v, n in zip(seen, names.split(), strict=True) if n != "labels"]
    known = {}
    if case.family != "xent":
        dy, seen_dy, array = _symbol(case, "dy", given["dy"])
        known, inputs, arrays = {y: seen_dy}, [*inputs, dy], [*arrays, array]
    found = T.grad(None, wrt, known_grads=known) if known else T.grad(y, wrt)
    f = _function(inputs, [_out(case, v) for v in (y, *found)])
    results = ["y", *(f"d{n}" for n in names.split() if n != "labels")]
    return Job(
        partial(f, *arrays),
        lambda out: {n: _nchw(case, v) for n, v in zip(results, out, strict=True)}, f,
    )  # fmt: skip


def _adam(given: dict[str, Any]) -> Job:
    p, m, v = (symdnn.shared(given[k], name=k) for k in "pmv")
    g = T.vector("g", dtype="float32")
    new_m = _F(0.9) * m + _F(0.1) * g
    new_v = _F(0.999) * v + _F(0.001) * g * g
    new_p = p - _F(1e-3) * new_m / (T.sqrt(new_v) + _F(1e-8))
    f = _function([g], [], updates=[(m, new_m), (v, new_v), (p, new_p)])
    return Job(
        partial(f, given["g"]),
        lambda _: {"p": p.get_value(), "m": m.get_value(), "v": v.get_value()}, f,
    )  # fmt: skip


def _call(case: spec.Case, given: dict[str, Any]) -> Job:
    """``own``: nothing is checked or copied (``trust_input``, borrowed); else the defaults."""
    what, own = case.sizes["what"], case.sizes["border"] == "own"
    x = T.matrix("x", dtype="float32") if what == "mm100" else T.vector("x", dtype="float32")
    w = symdnn.shared(given["w"]) if what == "mm100" else None
    y: Any = x + _F(1) if what == "x+1" else x
    for i in range(0 if what == "x+1" else 100):
        y = T.dot(y, w) if what == "mm100" else T.tanh(y) if i % 2 == 0 else y * _F(1.01)
    f = _function([x], y) if own else symdnn.function([x], y)
    f.trust_input = own
    return Job(partial(f, given["x"]), lambda y: {"y": y}, f)


# -- networks --------------------------------------------------------------------------------------


def _recurrent(case: spec.Case) -> Job:
    s = case.sizes
    given = spec.inputs(case)
    f = symdnn_nets.rnn_function(s["kind"], {**s, "layers": 1}, "float32", case.backward)
    if not case.backward:
        return Job(partial(f, given["x"]), lambda y: {"y": y}, f)
    names = ("y", "dx", "dw")
    return Job(
        partial(f, given["x"], given["dy"]), lambda out: dict(zip(names, out, strict=True)), f
    )


class Model(symdnn_nets.Model):
    """With the networks that only the CPU's cases have."""

    def logits(self, x: Any) -> Any:
        """Class scores (N, classes)."""
        if self.net.name != "resnet20":
            return super().logits(x)
        h = T.nnet.relu(self.norm(self.conv(x, "conv1", pad=1), "bn1"))
        for stage in range(3):
            for block in range(3):
                h = self._block(h, f"l{stage + 1}_{block}_", 2 if stage and not block else 1)
        return self.dense(h.mean(axis=(2, 3)), "fc")

    def _block(self, x: Any, at: str, stride: int) -> Any:
        h = T.nnet.relu(self.norm(self.conv(x, f"{at}conv1", stride, 1), f"{at}bn1"))
        h = self.norm(self.conv(h, f"{at}conv2", pad=1), f"{at}bn2")
        if f"{at}dconv.w" in self.parameters:
            x = self.norm(self.conv(x, f"{at}dconv", stride), f"{at}dbn")
        return T.nnet.relu(h + x)


def _network(case: spec.Case) -> Job:
    net = spec.networks()[case.sizes["net"]]()
    training = case.sizes["mode"] == "train"
    model = Model(net, training=training)
    batches = [(x, y.astype(np.int32)) for x, y in spec.ring(net, case.sizes["batch"])]
    if not training:
        f = symdnn_nets.infer_function(model)
        return Job(rotating([partial(f, x) for x, _ in batches]), lambda y: {"scores": y}, f)
    f = symdnn_nets.train_function(model)
    step = rotating([partial(f, *b) for b in batches])
    return Job(
        step, lambda first: {"losses": [float(first), *(float(step()) for _ in range(3))]}, f
    )


def _model(case: spec.Case) -> Job:
    """A network of ``nn.models``; a step of training is one of SGD with momentum."""
    training = case.sizes["mode"] == "train"
    with nn.init.skipped():
        net = _made(case.sizes["model"])
    nn.load_torch(net, {n: spec.model_value(n, s.shape) for n, s in torch_slots(net).items()})
    batches = [(x, y.astype(np.int32)) for x, y in spec.model_batches(case)]
    first, wanted = batches[0]
    x, labels = T.tensor(str(first.dtype), first.shape, name="x"), T.tensor("int32", wanted.shape)
    if not training:
        f = _function([x], net.evaluate()(x))
        return Job(rotating([partial(f, x) for x, _ in batches]), lambda y: {"scores": y}, f)
    scores = net(x)
    scores = scores.reshape((-1, scores.shape[scores.ndim - 1]))
    loss = nn.CrossEntropyCriterion()(scores, labels.flatten())
    f = _function([x, labels], loss, updates=nn.optim.sgd(loss, net, 1e-4, momentum=0.9))
    step = rotating([partial(f, *b) for b in batches])
    return Job(
        step, lambda first: {"losses": [float(first), *(float(step()) for _ in range(3))]}, f
    )


def _made(name: str) -> Any:
    if name == "bert_layer":
        return nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
    if name == "vit_tiny":
        return nn.models.vit_b_16(width=192, heads=3, hidden=768)
    if name == "gpt_small":
        return nn.models.gpt2(96, 64, 128, 4, 4, dropout=0.0)
    options = {k.replace("stochastic_depth_prob", "depth_dropout"): v
               for k, v in spec.MODELS[name].items()}  # fmt: skip
    return getattr(nn.models, name)(**options)

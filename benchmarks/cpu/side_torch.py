"""The cases in PyTorch: eager, or compiled; images in NCHW order or channels last."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.cpu import spec
from benchmarks.cpu.jobs import Job, rotating
from benchmarks.workloads import pspec

warnings.filterwarnings("ignore")
for _name in ("torch._inductor", "torch._dynamo", "torch._functorch"):
    logging.getLogger(_name).setLevel(logging.ERROR)

_LAST = torch.channels_last


def facts() -> dict[str, Any]:
    """Version and threads."""
    return {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}


def drop() -> None:
    """Forget what was compiled."""
    torch._dynamo.reset()


def prepare(case: spec.Case, variant: str) -> Job:
    """``torch``, ``torch.compile``; with ``.cl`` the network is kept channels last."""
    wrap = torch.compile if "compile" in variant else lambda f: f
    if case.family == "net":
        return _network(case, wrap, variant.endswith(".cl"))
    if case.family == "model":
        return _model(case, wrap, variant.endswith(".cl"))
    given = {k: torch.from_numpy(v) for k, v in spec.inputs(case).items()}
    if case.channels_last:
        given = {k: _last(v) for k, v in given.items()}
    if case.family == "rnn":
        return _recurrent(case, given)
    if case.family == "adam":
        return _adam(given, wrap)
    if case.family == "call":
        return _call(case, given, wrap)
    if case.family in _FORWARD and (case.backward or case.family == "xent"):
        return _with_gradients(case, given, wrap)
    return _forward(case, given, wrap)


def _last(v: torch.Tensor) -> torch.Tensor:
    return v.contiguous(memory_format=_LAST) if v.dim() == 4 else v


def _numpy(names: str, out: Any) -> dict[str, Any]:
    values = out if isinstance(out, tuple) else (out,)
    return {n: v.detach().numpy() for n, v in zip(names.split(), values, strict=True)}


# -- operations ------------------------------------------------------------------------------------


def _conv(case: spec.Case) -> tuple[Callable[..., Any], str, str]:
    """(function, its arguments, its result's name) of one of a convolution's three passes."""
    s = case.sizes
    step, pad, groups = [s["stride"]] * 2, [s["pad"]] * 2, s["groups"]
    if s["pass"] == "fwd":
        return lambda x, w: F.conv2d(x, w, None, step, pad, 1, groups), "x w", "y"
    mask = [s["pass"] == "bwd_d", s["pass"] == "bwd_w", False]

    def backward(dy: Any, x: Any, w: Any) -> Any:
        found = torch.ops.aten.convolution_backward(
            dy, x, w, None, step, pad, [1, 1], False, [0, 0], groups, mask
        )
        return found[0] if mask[0] else found[1]

    return backward, "dy x w", "dx" if mask[0] else "dw"


def _chain(x: Any) -> Any:
    e = pspec.EW
    return torch.tanh(e["a"] * x + e["b"]) * torch.sigmoid(e["c"] * x) + F.relu(x - e["d"])


def _pool(case: spec.Case) -> Callable[..., Any]:
    pool = F.max_pool2d if case.sizes["kind"] == "max" else F.avg_pool2d
    return lambda x: pool(x, 2)


def _attention(case: spec.Case) -> Callable[..., Any]:
    dtype, causal = getattr(torch, case.sizes["dtype"]), case.sizes["causal"]

    def attend(*qkv: Any) -> Any:
        narrow = [x.to(dtype) for x in qkv]
        return F.scaled_dot_product_attention(*narrow, is_causal=causal).float()

    return attend


#: family -> (case -> function), arguments
_FORWARD: dict[str, tuple[Callable[[spec.Case], Callable[..., Any]], str]] = {
    "pool": (_pool, "x"),
    "bn": (lambda _: lambda x, g, b: F.batch_norm(x, None, None, g, b, True, 0.1, 1e-5), "x g b"),
    "softmax": (lambda _: lambda x: F.softmax(x, 1), "x"),
    "logsoftmax": (lambda _: lambda x: F.log_softmax(x, 1), "x"),
    "layernorm": (
        lambda _: lambda x, g, b: F.layer_norm(x, x.shape[1:], g, b, 1e-5), "x g b"),
    "matmul": (lambda _: torch.matmul, "a b"),
    "attention": (_attention, "q k v"),
    "chain": (lambda _: _chain, "x"),
    "gelu": (lambda _: F.gelu, "x"),
    "sumsq": (lambda _: lambda x: (x * x).sum(), "x"),
    "sum_rows": (lambda _: lambda x: x.sum(1), "x"),
    "sum_columns": (lambda _: lambda x: x.sum(0), "x"),
    "max_channels": (lambda _: lambda x: x.amax((0, 2, 3)), "x"),
    "bias_relu": (lambda _: lambda x, b: F.relu(x + b), "x b"),
    "xent": (lambda _: F.cross_entropy, "x labels"),
}  # fmt: skip


def _forward(case: spec.Case, given: dict[str, Any], wrap: Any) -> Job:
    function: Any
    if case.family == "conv":
        function, names, result = _conv(case)
    else:
        make, names = _FORWARD[case.family]
        function, result = make(case), "y"
    function = wrap(function)
    args = [given[n] for n in names.split()]

    def step() -> Any:
        with torch.no_grad():
            return function(*args)

    return Job(step, partial(_numpy, result))


def _with_gradients(case: spec.Case, given: dict[str, Any], wrap: Any) -> Job:
    """y, and the gradients to all that is not an integer."""
    make, names = _FORWARD[case.family]
    function = wrap(make(case))
    args = [given[n] for n in names.split()]
    wrt = [a.requires_grad_() for a in args if a.is_floating_point()]
    dy = given.get("dy")
    if case.family == "xent":
        dy = torch.ones(())

    def step() -> Any:
        y = function(*args)
        return y, *torch.autograd.grad(y, wrt, dy)

    gradients = [f"d{n}" for n in names.split() if n != "labels"]
    return Job(step, partial(_numpy, " ".join(["y", *gradients])))


def _adam(given: dict[str, Any], wrap: Any) -> Job:
    p, m, v, g = (given[k] for k in "pmvg")

    def update(p: Any, m: Any, v: Any, g: Any) -> None:
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.sub_(1e-3 * m / (v.sqrt() + 1e-8))

    update = wrap(update)

    def step() -> Any:
        with torch.no_grad():
            update(p, m, v, g)
        return p, m, v

    return Job(step, partial(_numpy, "p m v"))


def _call(case: spec.Case, given: dict[str, Any], wrap: Any) -> Job:
    what, x, w = case.sizes["what"], given["x"], given.get("w")

    def small(x: Any) -> Any:
        if what == "x+1":
            return x + 1
        for i in range(100):
            x = x @ w if what == "mm100" else torch.tanh(x) if i % 2 == 0 else x * 1.01
        return x

    function = wrap(small)
    array = x.numpy()

    def own() -> Any:
        with torch.no_grad():
            return function(x)

    def numpy() -> Any:
        with torch.no_grad():
            return function(torch.from_numpy(array)).numpy()

    if case.sizes["border"] == "own":
        return Job(own, partial(_numpy, "y"))
    return Job(numpy, lambda y: {"y": y})


def _recurrent(case: spec.Case, given: dict[str, Any]) -> Job:
    s = case.sizes
    net = (nn.LSTM if s["kind"] == "lstm" else nn.GRU)(s["inp"], s["hid"])
    order = ("w_ih", "w_hh", "b_ih", "b_hh")
    parameters = [
        getattr(net, n) for n in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    ]
    with torch.no_grad():
        for p, name in zip(parameters, order, strict=True):
            p.copy_(given[f"{name}_l0"])
    x, dy = given["x"], given["dy"]

    def forward() -> Any:
        with torch.no_grad():
            return net(x)[0]

    def both() -> Any:
        y = net(x)[0]
        dx, *dws = torch.autograd.grad(y, [x, *parameters], dy)
        return y, dx, dws

    if not case.backward:
        return Job(forward, partial(_numpy, "y"))
    x.requires_grad_()
    return Job(
        both,
        lambda out: {**_numpy("y dx", out[:2]), "dw": torch.cat([d.ravel() for d in out[2]])},
    )


# -- networks --------------------------------------------------------------------------------------


class Network(nn.Module):
    """A network of ``pspec``: its modules by the names there."""

    def __init__(self, net: pspec.Net) -> None:
        super().__init__()
        self.net = net
        for name, cin, cout, k, stride, pad, _, _, bias in net.convs:
            self.add_module(name, nn.Conv2d(cin, cout, k, stride, pad, bias=bias))
        for name, channels in net.bn:
            self.add_module(name, nn.BatchNorm2d(channels))
        for name, nin, nout in net.fcs:
            self.add_module(name, nn.Linear(nin, nout))
        values = net.init()
        for name, *_ in net.params:
            module, leaf = name.rsplit(".", 1)
            value = torch.from_numpy(values[name])
            owner = self.get_submodule(module)
            with torch.no_grad():
                (owner.bias if leaf == "b" else owner.weight).copy_(
                    value.t() if value.dim() == 2 else value
                )

    def forward(self, x: Any) -> Any:
        """Class scores."""
        m = self._modules
        if self.net.name == "mlp":
            return m["f3"](F.relu(m["f2"](F.relu(m["f1"](x)))))
        if self.net.name == "lenet5":
            x = torch.tanh(F.max_pool2d(m["c1"](x), 2))
            x = torch.tanh(F.max_pool2d(m["c2"](x), 2))
            return m["f2"](torch.tanh(m["f1"](x.flatten(1))))
        x = F.relu(m["bn1"](m["conv1"](x)))
        for stage in range(3):
            for block in range(3):
                x = self._block(x, f"l{stage + 1}_{block}_")
        return m["fc"](x.mean((2, 3)))

    def _block(self, x: Any, at: str) -> Any:
        m = self._modules
        y = F.relu(m[f"{at}bn1"](m[f"{at}conv1"](x)))
        y = m[f"{at}bn2"](m[f"{at}conv2"](y))
        if f"{at}dconv" in m:
            x = m[f"{at}dbn"](m[f"{at}dconv"](x))
        return F.relu(y + x)


def _network(case: spec.Case, wrap: Any, channels_last: bool) -> Job:
    net = spec.networks()[case.sizes["net"]]()
    return _steps(
        case, Network(net), spec.ring(net, case.sizes["batch"]), net.lr, wrap, channels_last
    )


def _model(case: spec.Case, wrap: Any, channels_last: bool) -> Job:
    """A network of torchvision, PyTorch or Hugging Face."""
    model = _made(case.sizes["model"])
    state = {
        n: torch.from_numpy(spec.model_value(n, tuple(v.shape))) if v.is_floating_point() else v
        for n, v in model.state_dict().items()
    }
    model.load_state_dict(state)
    return _steps(case, model, spec.model_batches(case), 1e-4, wrap, channels_last)


def _steps(
    case: spec.Case, model: Any, arrays: Any, rate: float, wrap: Any, channels_last: bool
) -> Job:
    """Inference, or steps of SGD with momentum."""
    batches = [tuple(map(torch.from_numpy, b)) for b in arrays]
    if channels_last:
        model = model.to(memory_format=_LAST)
        batches = [(_last(x), y) for x, y in batches]
    if case.sizes["mode"] == "infer":
        model.eval()
        function = wrap(lambda x: _scores(model(x)))

        def infer(x: Any) -> Any:
            with torch.no_grad():
                return function(x)

        return Job(rotating([partial(infer, x) for x, _ in batches]), partial(_numpy, "scores"))
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)
    loss_of = wrap(lambda x, y: F.cross_entropy(_scores(model(x)).flatten(0, -2), y.flatten()))

    def train(x: Any, y: Any) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    step = rotating([partial(train, *b) for b in batches])
    return Job(step, lambda first: {"losses": [first, step(), step(), step()]})


def _scores(found: Any) -> Any:
    """The tensor in the result of a model of Hugging Face."""
    return found.logits if hasattr(found, "logits") else found


def _made(name: str) -> Any:
    import torchvision

    if name == "bert_layer":
        return torch.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
    if name == "vit_tiny":
        return torchvision.models.VisionTransformer(224, 16, 12, 3, 192, 768)
    if name == "gpt_small":
        import transformers

        config = transformers.GPT2Config(
            vocab_size=96, n_positions=64, n_embd=128, n_layer=4, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    return getattr(torchvision.models, name)(**spec.MODELS[name])

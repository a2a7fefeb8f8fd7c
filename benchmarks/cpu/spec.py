"""The CPU's cases without any framework: names, sizes, inputs, goals.

A case's name is ``family/what/...``; every side (symdnn and the peers) builds it from
:func:`inputs` and answers with results of the same names, so that they can be compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.random  # else loaded on first use, which is no side's compile time

from benchmarks.workloads import pspec

__all__ = [
    "CASES", "MODELS", "TRANSFORMERS", "Case", "find", "inputs", "model_batches", "model_value",
    "networks", "resnet20", "ring",
]  # fmt: skip

#: What the project promises: symdnn's time over the best peer's.
KERNEL, FIRST = 1.05, 1.0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One row: ``sizes`` say all that builds it, ``goal`` is the most that symdnn's time may be of
    the best peer's, ``sides`` who runs it, ``channels_last`` in which order images are handed over
    (only what the border is: all inside is each side's own choice).
    """

    name: str
    family: str
    sizes: dict[str, Any] = field(hash=False)
    goal: float = FIRST
    sides: tuple[str, ...] = ("symdnn", "torch", "torch.compile", "jax")
    channels_last: bool = False
    slow: bool = False

    @property
    def backward(self) -> bool:
        """Whether gradients are part of it."""
        return self.sizes.get("pass") == "fwdbwd"


# -- convolutions ----------------------------------------------------------------------------------

#: name -> N, C, H=W, K, kernel, stride, padding, groups
CONVOLUTIONS = {
    "c1": (64, 1, 28, 20, 5, 1, 0, 1),
    "c2": (64, 20, 12, 50, 5, 1, 0, 1),
    "c3": (16, 64, 56, 64, 3, 1, 1, 1),
    "c4": (16, 256, 14, 256, 3, 1, 1, 1),
    "c5": (16, 256, 56, 64, 1, 1, 0, 1),
    "c6": (4, 3, 224, 64, 7, 2, 3, 1),
    "c7": (16, 64, 56, 64, 3, 1, 1, 64),
}
_CONV_KEYS = ("n", "c", "h", "k", "r", "stride", "pad", "groups")


def _convolutions() -> Iterator[Case]:
    for layout in ("nchw", "nhwc"):
        for name, numbers in CONVOLUTIONS.items():
            for direction in ("fwd", "bwd_d", "bwd_w"):
                sizes = {**dict(zip(_CONV_KEYS, numbers, strict=True)), "pass": direction}
                yield Case(
                    f"conv/{name}/{direction}/{layout}", "conv", sizes, KERNEL,
                    channels_last=layout == "nhwc",
                )  # fmt: skip


def conv_out(s: dict[str, Any]) -> int:
    """Height and width of a convolution's result."""
    return int((s["h"] + 2 * s["pad"] - s["r"]) // s["stride"] + 1)


# -- other operations ------------------------------------------------------------------------------

_IMAGES = {"16x64x56x56": (16, 64, 56, 56), "64x20x24x24": (64, 20, 24, 24)}
_PRODUCTS = {
    "512x512x512": ((512, 512), (512, 512)),
    "64x500x10": ((64, 500), (500, 10)),
    "64x800x500": ((64, 800), (800, 500)),
    "2048x2048x2048": ((2048, 2048), (2048, 2048)),
    "32x128x64x128": ((32, 128, 64), (32, 64, 128)),
}
_ALL = ("symdnn", "torch", "torch.compile", "jax", "pytensor")


def _images() -> Iterator[Case]:
    for layout in ("nchw", "nhwc"):
        last = layout == "nhwc"
        for size, shape in _IMAGES.items():
            for way in ("fwd", "fwdbwd"):
                for kind in ("max", "avg"):
                    sizes = {"kind": kind, "x": shape, "pass": way}
                    name = f"pool/{kind}2x2_{size}/{way}/{layout}"
                    yield Case(name, "pool", sizes, KERNEL, channels_last=last)
        for way in ("fwd", "fwdbwd"):
            sizes = {"x": _IMAGES["16x64x56x56"], "pass": way}
            name = f"bn/train_16x64x56x56/{way}/{layout}"
            yield Case(name, "bn", sizes, KERNEL, channels_last=last)


def _rows() -> Iterator[Case]:
    for family in ("softmax", "logsoftmax", "layernorm"):
        for shape in ((4096, 1024), (128, 10)):
            if family == "layernorm" and shape[0] == 128:
                continue
            for way in ("fwd", "fwdbwd"):
                name = f"{family}/{shape[0]}x{shape[1]}/{way}"
                yield Case(name, family, {"x": shape, "pass": way}, KERNEL)
    for name, (a, b) in _PRODUCTS.items():
        yield Case(f"matmul/{name}", "matmul", {"a": a, "b": b}, KERNEL, _ALL)


#: Batch, heads, time, features: a small model's, that of BERT and GPT-2, a long sequence.
_ATTENTION = ((16, 4, 64, 32), (1, 12, 128, 64), (8, 12, 512, 64), (1, 12, 2048, 64))


def _attention() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        for shape in _ATTENTION:
            for causal in (False, True):
                for way in ("fwd", "fwdbwd"):
                    what = f"{'x'.join(map(str, shape))}{'_causal' if causal else ''}_{dtype}"
                    sizes = {"x": shape, "causal": causal, "dtype": dtype, "pass": way}
                    yield Case(f"attention/{what}/{way}", "attention", sizes)


def _recurrent() -> Iterator[Case]:
    for kind, goal in (("lstm", 0.95), ("gru", 0.5)):
        for width in (128, 256):
            for way in ("fwd", "fwdbwd"):
                sizes = {"kind": kind, "T": 50, "B": 32, "inp": width, "hid": 256, "pass": way}
                name = f"rnn/{kind}_T50_B32_I{width}_H256/{way}"
                limit = goal if width == 128 and way == "fwdbwd" else KERNEL
                yield Case(name, "rnn", sizes, limit, ("symdnn", "torch", "jax"))


def _fused() -> Iterator[Case]:
    for name, family, shape in (
        ("chain4M", "chain", (4 << 20,)), ("chain64k", "chain", (64 << 10,)),
        ("sumsq4M", "sumsq", (4 << 20,)), ("gelu4M", "gelu", (4 << 20,)),
        ("bias_relu_1024x4096", "bias_relu", (1024, 4096)), ("adam1M", "adam", (1 << 20,)),
        ("sum_rows_4096x1024", "sum_rows", (4096, 1024)),
        ("sum_columns_4096x1024", "sum_columns", (4096, 1024)),
        ("max_channels_64x20x24x24", "max_channels", (64, 20, 24, 24)),
    ):  # fmt: skip
        yield Case(f"fused/{name}", family, {"x": shape}, KERNEL, _ALL)
    yield Case("fused/crossentropy_4096x1000", "xent", {"x": (4096, 1000)}, KERNEL)


# -- networks --------------------------------------------------------------------------------------


def resnet20() -> pspec.Net:
    """He et al. 2016 for 32x32 images: three stages of three blocks; shortcuts by 1x1 products."""
    net = pspec.Net("resnet20", (3, 32, 32), 10, 1e-4)
    side = net.conv("conv1", 3, 16, 3, 1, 1, 32, False)
    net.bnorm("bn1", 16)
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            at, stride = f"l{stage + 1}_{block}_", 2 if stage and not block else 1
            after = net.conv(f"{at}conv1", before, width, 3, stride, 1, side, False)
            net.bnorm(f"{at}bn1", width)
            net.conv(f"{at}conv2", width, width, 3, 1, 1, after, False)
            net.bnorm(f"{at}bn2", width)
            if before != width:
                net.conv(f"{at}dconv", before, width, 1, stride, 0, side, False)
                net.bnorm(f"{at}dbn", width)
            before, side = width, after
    net.fc("fc", 64, 10, 0.1)
    return net


def networks() -> dict[str, Callable[[], pspec.Net]]:
    """name -> what makes its description."""
    return {
        "lenet5": pspec.lenet5,
        "mlp512": lambda: pspec.mlp((784, 512, 512, 10)),
        "resnet20": resnet20,
    }


def _nets() -> Iterator[Case]:
    image = ("symdnn", "torch", "torch.cl", "torch.compile", "torch.compile.cl", "jax")
    for net, batch, mode, goal, sides in (
        ("lenet5", 64, "train", 0.5, image), ("lenet5", 64, "infer", FIRST, image),
        ("mlp512", 128, "train", 0.75, _ALL), ("resnet20", 64, "train", 0.7, image),
        ("resnet20", 64, "infer", FIRST, image),
    ):  # fmt: skip
        sizes = {"net": net, "batch": batch, "mode": mode}
        yield Case(f"net/{net}_b{batch}/{mode}", "net", sizes, goal, sides)


#: Those of ``symdnn.nn.models`` and torchvision that only they have, with their options there.
MODELS: dict[str, dict[str, float]] = {
    "mobilenet_v2": {"dropout": 0.0},
    "mobilenet_v3_large": {"dropout": 0.0},
    "mobilenet_v3_small": {"dropout": 0.0},
    "efficientnet_b0": {"dropout": 0.0, "stochastic_depth_prob": 0.0},
    "convnext_tiny": {"stochastic_depth_prob": 0.0},
}


#: The shape of a batch, the number of classes, and (batch, mode) of the cases: a layer of BERT-base
#: on 128 positions, ViT-Ti/16, a small GPT-2.
TRANSFORMERS: dict[str, tuple[tuple[int, ...], int, tuple[tuple[int, str], ...]]] = {
    "bert_layer": ((128, 768), 768, ((1, "infer"), (8, "infer"), (8, "train"))),
    "vit_tiny": ((3, 224, 224), 1000, ((1, "infer"), (8, "infer"), (8, "train"))),
    "gpt_small": ((64,), 96, ((16, "infer"), (16, "train"))),
}


def _transformers() -> Iterator[Case]:
    for model, (_, _, cases) in TRANSFORMERS.items():
        for batch, mode in cases:
            sizes = {"model": model, "batch": batch, "mode": mode}
            sides = ("symdnn", "torch", "torch.compile")
            yield Case(f"model/{model}_b{batch}/{mode}", "model", sizes, FIRST, sides)


def _models() -> Iterator[Case]:
    sides = ("symdnn", "torch", "torch.cl", "torch.compile", "torch.compile.cl")
    for model in MODELS:
        for batch, mode in ((1, "infer"), (8, "infer"), (8, "train")):
            sizes = {"model": model, "batch": batch, "mode": mode, "image": 224}
            yield Case(f"model/{model}_b{batch}/{mode}", "model", sizes, FIRST, sides)


def _calls() -> Iterator[Case]:
    for what in ("x+1", "ew100", "mm100"):
        for border in ("numpy", "own"):
            yield Case(
                f"call/{what}/{border}", "call", {"what": what, "border": border}, FIRST, _ALL
            )


CASES: tuple[Case, ...] = (
    *_nets(), *_models(), *_transformers(), *_recurrent(), *_calls(), *_fused(), *_rows(),
    *_attention(), *_images(), *_convolutions(),
)  # fmt: skip


# -- inputs ----------------------------------------------------------------------------------------


def find(name: str, tiny: bool = False) -> Case:
    """The case of this name; ``tiny``, with small sizes that show no speed."""
    case = next(c for c in CASES if c.name == name)
    if not tiny:
        return case
    shrunk = {k: _shrink(k, v) for k, v in case.sizes.items()}
    if case.family == "conv" and case.sizes["groups"] > 1:
        shrunk["c"] = shrunk["k"] = shrunk["groups"] = 4
    return Case(
        case.name, case.family, shrunk, case.goal, case.sides, case.channels_last, case.slow
    )


def _shrink(key: str, value: Any) -> Any:
    if key in ("x", "a", "b"):
        return tuple(min(n, 8) for n in value)
    limits = {
        "n": 2, "c": 4, "k": 4, "h": 12, "T": 3, "B": 2, "inp": 8, "hid": 8, "batch": 4,
        "image": 32,
    }  # fmt: skip
    return min(value, limits[key]) if key in limits else value


def _normal(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    values = np.random.default_rng([pspec.SEED, seed]).standard_normal(shape, dtype=np.float32)
    return values * np.float32(scale)


def inputs(case: Case) -> dict[str, Array]:
    """The case's arrays: float32, images in NCHW order, whatever the border is."""
    s = case.sizes
    if case.family == "conv":
        out = conv_out(s)
        per_group = s["c"] // s["groups"]
        return {
            "x": _normal(1, (s["n"], s["c"], s["h"], s["h"])),
            "w": _normal(2, (s["k"], per_group, s["r"], s["r"]), (per_group * s["r"] ** 2) ** -0.5),
            "dy": _normal(3, (s["n"], s["k"], out, out)),
        }
    if case.family == "matmul":
        return {"a": _normal(1, s["a"]), "b": _normal(2, s["b"], s["b"][-2] ** -0.5)}
    if case.family == "rnn":
        x, dy = pspec.rnn_data(s["T"], s["B"], s["inp"], s["hid"], 0)
        return {"x": x, "dy": dy, **dict(pspec.rnn_params(s["kind"], s["inp"], s["hid"], 1))}
    if case.family == "call":
        return _call_inputs(s["what"])
    return _op_inputs(case.family, s["x"])


def _call_inputs(what: str) -> dict[str, Array]:
    if what == "mm100":
        return {"x": _normal(1, (32, 32)), "w": pspec.ortho32()}
    return {"x": _normal(1, (10 if what == "x+1" else 1024,))}


def _op_inputs(family: str, shape: tuple[int, ...]) -> dict[str, Array]:
    x = _normal(1, shape)
    if family == "pool":
        return {"x": x, "dy": _normal(2, (*shape[:2], shape[2] // 2, shape[3] // 2))}
    if family == "attention":
        return {name: _normal(i, shape) for i, name in enumerate(("q", "k", "v", "dy"))}
    if family == "adam":
        m, v, g = (_normal(i, shape, 0.1) for i in (2, 3, 4))
        return {"p": x, "m": m, "v": v * v, "g": g}
    if family == "xent":
        labels = np.random.default_rng(5).integers(0, shape[1], shape[0])
        return {"x": x, "labels": labels.astype(np.int64)}
    width = shape[1] if len(shape) > 1 else 1
    given = {"x": x, "dy": _normal(2, shape)}
    if family in ("bn", "layernorm", "bias_relu"):
        given |= {"g": 1 + _normal(3, (width,), 0.1), "b": _normal(4, (width,), 0.1)}
    return given


def model_value(name: str, shape: tuple[int, ...]) -> Array:
    """A parameter or statistic of a model, by its name in PyTorch's state dict."""
    name = "transformer.wte.weight" if name == "lm_head.weight" else name  # one matrix
    leaf = name.rpartition(".")[2]
    if leaf == "layer_scale":
        return np.full(shape, 0.1, np.float32)
    if leaf in ("running_mean", "running_var"):
        return np.full(shape, float(leaf == "running_var"), np.float32)
    scale = (2 / prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.01
    centre = np.float32(leaf == "weight" and len(shape) == 1)
    return _normal(zlib.crc32(name.encode()), shape, scale) + centre


def model_batches(case: Case) -> list[tuple[Array, Array]]:
    """The batches that take turns: images, values or tokens, and int64 labels."""
    s = case.sizes
    if s["model"] in TRANSFORMERS:
        own, classes, _ = TRANSFORMERS[s["model"]]
        rng = np.random.default_rng(5)
        whole = (s["batch"], *own)
        labelled = whole[:1] if len(own) == 3 else whole[:2]
        return [
            (
                rng.integers(0, classes, whole) if len(own) == 1 else _normal(i, whole),
                rng.integers(0, classes, labelled),
            )
            for i in range(4)
        ]
    shape = (s["batch"], 3, s["image"], s["image"])
    labels = np.random.default_rng(5).integers(0, 1000, (4, s["batch"]))
    return [(_normal(i, shape), y.astype(np.int64)) for i, y in enumerate(labels)]


def ring(net: pspec.Net, batch: int) -> list[tuple[Array, Array]]:
    """The batches that take turns: images and int64 labels."""
    count = 8 if prod(net.inshape) < 1000 else 4
    batches = [net.data(batch, i) for i in range(count)]
    net.drop_data()
    return batches

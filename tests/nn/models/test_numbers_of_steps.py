"""Networks have no more steps on a GPU than they had: a bias that leaves its product adds some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, nn
from symdnn.config import config
from symdnn.nn import models

#: Ops that move nothing where they are views, and copies of arguments and results.
NO_STEPS = {"DimShuffle", "Reshape", "Subtensor", "Split", "GpuFromHost", "HostFromGpu"}
WORDS = {"words": 99, "width": 64, "layers": 2, "heads": 2, "dropout": 0.0}
TEXT, IMAGES = (2, 16), (2, 3, 64, 64)


class Net(NamedTuple):
    """A network, the shape of its input, and its steps in inference and in a step of training."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    inference: int
    training: int


NETS = {
    "gpt2": Net(lambda: models.gpt2(**WORDS), TEXT, 17, 95),
    "bert": Net(lambda: models.bert_base(**WORDS), TEXT, 20, 120),
    "llama": Net(
        lambda: models.llama(words=99, width=64, layers=2, heads=4, groups=2, hidden=96),
        TEXT, 36, 125,
    ),
    "vit": Net(lambda: models.vit_b_16(layers=1), (2, 3, 224, 224), 14, 73),
    "convnext": Net(lambda: models.convnext_tiny(depth_dropout=0.0), IMAGES, 125, 586),
    "mobilenet": Net(lambda: models.mobilenet_v2(dropout=0.0), IMAGES, 160, 567),
    "resnet": Net(models.resnet18, IMAGES, 65, 231),
}  # fmt: skip


def output(net: Any, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x = T.tensor("int64" if shape == TEXT else dtype, shape)
    y = net(x)
    return x, y[0] if isinstance(y, (tuple, list)) else y


def steps(f: Any) -> int:
    return sum(type(n.op).__name__ not in NO_STEPS for n in f.fgraph.toposort())


@pytest.mark.parametrize("name", NETS)
def test_inference(name: str) -> None:
    net = NETS[name]
    x, y = output(net.make().evaluate().astype("bfloat16"), "bfloat16", net.shape)
    assert steps(symdnn.function([x], y, mode=Mode(target="cuda:sm_90"))) <= net.inference


@pytest.mark.parametrize("name", NETS)
def test_training(name: str) -> None:
    made = NETS[name].make().train()
    x, y = output(made, "float32", NETS[name].shape)
    loss = T.sqr(y).mean()
    updates = nn.optim.adamw(loss, made, lr=1e-3, disconnected_inputs="ignore")
    with config.change_flags(amp="bf16"):
        f = symdnn.function([x], loss, updates=updates, mode=Mode(target="cuda:sm_90"))
    assert steps(f) <= NETS[name].training

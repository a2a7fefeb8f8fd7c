"""Writes torch_layers.npz: outputs and gradients of PyTorch's layers in float64.

python -m tests.nn.make_torch_layers        (needs PyTorch, which the tests do not)
"""

from pathlib import Path

import numpy as np
import torch

from tests.nn.torch_cases import CASES, inputs, loss_weights, parameter


class Turned(torch.nn.Module):
    """A layer of (N, features, frames) for (N, frames, features)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(-1, -2)).transpose(-1, -2)


class OverImages(Turned):
    """A layer of rows for (N, C, H, W)."""

    def forward(self, x):
        return self.inner(x.flatten(1)).reshape(x.shape)


class Alone(Turned):
    """A layer of batches for one example."""

    def forward(self, x):
        return self.inner(x[None])[0]


NAMES = {
    **{k: getattr(torch.nn, k) for k in dir(torch.nn) if k[0].isupper()},
    "Turned": Turned, "OverImages": OverImages, "Alone": Alone, "Seq": torch.nn.Sequential,
}  # fmt: skip


def named(module):
    """Parameters and statistics under the names that the layer itself gives them."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {k.replace("inner.", ""): v for k, v in found.items() if "num_batches" not in k}


def values(case):
    """Output, gradients in the input and the parameters, statistics afterwards."""
    module = eval(case.theirs, dict(NAMES)).double()
    with torch.no_grad():
        for i, (name, p) in enumerate(named(module).items()):
            p.copy_(torch.tensor(parameter(name, p.shape, i)))
    module.train(case.training)
    x = torch.tensor(inputs(case), requires_grad=not case.integers)
    y = module(x)
    (y * torch.tensor(loss_weights(y.shape))).sum().backward()
    found = {"y": y, **({} if case.integers else {"dx": x.grad})}
    for name, p in named(module).items():
        found[f"value {name}" if p.grad is None else f"grad {name}"] = (
            p if p.grad is None else p.grad
        )
    return {k: v.detach().numpy().astype(np.float32) for k, v in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    stored = {f"{c.key}|{name}": v for c in CASES for name, v in values(c).items()}
    target = Path(__file__).with_name("torch_layers.npz")
    np.savez_compressed(target, torch=np.array(torch.__version__), **stored)
    print(f"{target}: {len(CASES)} cases, {target.stat().st_size} bytes")

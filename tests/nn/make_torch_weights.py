"""A checkpoint as torch.save writes it, kept in torch_net.pt, and the network's output in it.

    python -m tests.nn.make_torch_weights

It needs PyTorch (CPU), the tests do not. ``state_dict`` is that of a small network of a
convolution, normalisation and a dense layer, ``x`` and ``y`` an input and its output in evaluation,
``kinds`` a tensor of each dtype, ``forms`` tensors that share or stride over their numbers.
"""

from pathlib import Path

import torch
from torch import nn

OUT = Path(__file__).parent / "torch_net.pt"

if __name__ == "__main__":
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 5 * 5, 3),
    )  # fmt: skip
    x = torch.randn(4, 2, 5, 5)
    for _ in range(3):
        net(x)
    with torch.no_grad():
        net[1].weight.uniform_(0.5, 1.5)
        net[1].bias.normal_()
    dtypes = (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool", "complex64", "complex128",
    )  # fmt: skip
    numbers = torch.arange(12.0)
    checkpoint = {
        "epoch": 3,
        "state_dict": net.state_dict(),
        "x": x,
        "y": net.eval()(x).detach(),
        "kinds": {d: torch.tensor([0, 1, 3]).to(getattr(torch, d)) for d in dtypes},
        "forms": {
            "numbers": numbers, "transposed": numbers.view(3, 4).T, "part": numbers[5:9],
            "steps": numbers[1::3], "scalar": torch.tensor(7.0), "empty": torch.zeros(0, 3),
            "parameter": nn.Parameter(numbers[:2].clone()),
        },
    }  # fmt: skip
    torch.save(checkpoint, OUT)
    print(f"{OUT.stat().st_size} bytes")

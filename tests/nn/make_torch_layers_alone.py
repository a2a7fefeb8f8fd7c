"""Values and gradients of layers that PyTorch alone has, kept in torch_layers_alone.npz.

    python -m tests.nn.make_torch_layers_alone

It needs PyTorch (CPU), the tests do not.
"""

from pathlib import Path

import numpy as np
import torch

from tests.nn.torch_layer_cases import CASES

OUT = Path(__file__).parent / "torch_layers_alone.npz"
RNG = np.random.default_rng(5)


def main() -> None:
    torch.manual_seed(5)
    kept: dict[str, np.ndarray] = {}
    for name, (kind, args, options, shapes) in CASES.items():
        layer = getattr(torch.nn, kind)(*args, **options)
        for key, value in layer.state_dict().items():
            value.copy_(torch.tensor(RNG.normal(size=value.shape)))
            kept[f"{name}/weights/{key}"] = value.numpy()
        xs = [
            torch.tensor(RNG.normal(size=s).astype("float32"), requires_grad=True) for s in shapes
        ]
        out = layer(*xs)
        outs = list(out) if isinstance(out, tuple) else [out]
        sum((o * o).sum() for o in outs).backward()
        for i, x in enumerate(xs):
            kept[f"{name}/x{i}"], kept[f"{name}/dx{i}"] = x.detach().numpy(), x.grad.numpy()
        for i, o in enumerate(outs):
            kept[f"{name}/y{i}"] = o.detach().numpy()
    np.savez_compressed(OUT, **kept)
    print(f"{OUT.name}: {len(kept)} arrays, {OUT.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()

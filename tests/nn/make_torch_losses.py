"""Values and gradients of PyTorch's losses, kept in torch_losses.npz.

    python -m tests.nn.make_torch_losses

It needs PyTorch (CPU), the tests do not. Each case of :mod:`tests.nn.torch_loss_cases` has
``name/loss`` and ``name/0``, ... (the gradients of the sum of the losses).
"""

from pathlib import Path

import numpy as np
import torch

from tests.nn.torch_loss_cases import CASES, differentiated, options_of

OUT = Path(__file__).parent / "torch_losses.npz"


def main() -> None:
    kept: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        wrt = differentiated(case)
        inputs = [torch.tensor(a, requires_grad=i in wrt) for i, a in enumerate(case[2])]
        loss = getattr(torch.nn, case[0])(**options_of(case, torch.tensor))(*inputs)
        loss.sum().backward()
        kept[f"{name}/loss"] = loss.detach().numpy()
        for i in wrt:
            kept[f"{name}/{i}"] = inputs[i].grad.numpy()
    np.savez_compressed(OUT, **kept)
    print(f"{OUT.name}: {len(kept)} arrays, {OUT.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()

"""Outputs and gradients of PyTorch's recurrent networks, kept in torch_rnn.npz.

    python -m tests.nn.make_torch_rnn

It needs PyTorch (CPU), the tests do not. Each case ``name`` has the inputs ``name/x``, ``name/hx``
(``name/cx``, ``name/lengths``), PyTorch's parameters ``name/w/weight_ih_l0``, ..., the outputs
``name/y``, ``name/hy`` (``name/cy``), and the gradients of ``sum(y p) + sum(hy p')`` under
``name/dx``, ``name/dhx``, ``name/dw/weight_ih_l0``, ..., where ``p`` are ``name/py`` and
``name/phy``.
"""

from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).parent / "torch_rnn.npz"
RNG = np.random.default_rng(20251)
STEPS, BATCH, INPUT, HIDDEN, LAYERS = 5, 3, 4, 3, 2
LENGTHS = np.array([3, 5, 1], "int32")
KINDS = {
    "RNNReLU": (torch.nn.RNN, {"nonlinearity": "relu"}), "RNNTanh": (torch.nn.RNN, {}),
    "LSTM": (torch.nn.LSTM, {}), "GRU": (torch.nn.GRU, {}),
}  # fmt: skip
kept = {}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def case(name: str, kind: str, both: bool, lengths: np.ndarray | None) -> None:
    """Keep a net of two layers, with all its gradients."""
    make, options = KINDS[kind]
    net = make(INPUT, HIDDEN, LAYERS, bidirectional=both, **options)
    for p in net.parameters():
        p.data = torch.tensor(0.6 * normal(*p.shape))
    depth = LAYERS * (1 + both)
    given = {"x": normal(STEPS, BATCH, INPUT), "hx": normal(depth, BATCH, HIDDEN)}
    if kind == "LSTM":
        given["cx"] = normal(depth, BATCH, HIDDEN)
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in given.items()}
    x, *states = tensors.values()
    if lengths is not None:
        n = torch.tensor(lengths)
        x = torch.nn.utils.rnn.pack_padded_sequence(x, n, enforce_sorted=False)
    y, last = net(x, states[0] if len(states) == 1 else tuple(states))
    if lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=STEPS)
        given["lengths"] = lengths
    lasts = last if isinstance(last, tuple) else (last,)
    outputs = dict(zip(("y", "hy", "cy"), (y, *lasts), strict=False))
    weights = {k: normal(*v.shape) for k, v in outputs.items()}
    sum((outputs[k] * torch.tensor(weights[k])).sum() for k in outputs).backward()
    found = {k: v.detach().numpy() for k, v in outputs.items()}
    found |= {f"d{k}": v.grad.numpy() for k, v in tensors.items()}
    found |= {f"p{k}": v for k, v in weights.items()}
    for k, p in net.named_parameters():
        found |= {f"w/{k}": p.detach().numpy(), f"dw/{k}": p.grad.numpy()}
    kept.update({f"{name}/{k}": v for k, v in {**given, **found}.items()})


if __name__ == "__main__":
    for kind in KINDS:
        for both in (False, True):
            name = ("B" if both else "") + kind
            case(name, kind, both, None)
            case(f"{name}/lengths", kind, both, LENGTHS)
    np.savez_compressed(OUT, **kept)
    print(f"{OUT.name}: {len(kept)} arrays, {OUT.stat().st_size} bytes, torch {torch.__version__}")

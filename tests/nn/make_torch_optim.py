"""Parameters after 1 and 5 steps of PyTorch's optimisers, kept in torch_optim.npz.

    python -m tests.nn.make_torch_optim

It needs PyTorch (CPU), the tests do not. ``x``, ``y``, ``w``, ``b`` are the data of the steps and
the parameters at first, in float64; ``name/dtype/w1``, ``.../b5`` the parameters of case ``name``
after so many steps of the loss ``mean((tanh(x w.T + b) - y) ** 2)``.
"""

from pathlib import Path

import numpy as np
import torch
from torch import optim

OUT = Path(__file__).parent / "torch_optim.npz"
RNG = np.random.default_rng(1066)
STEPS = 5
DATA = {
    "x": RNG.normal(size=(STEPS, 6, 4)), "y": RNG.normal(size=(STEPS, 6, 3)),
    "w": RNG.normal(size=(3, 4)), "b": RNG.normal(size=3),
}  # fmt: skip

DECAY = {"weight_decay": 0.1}
CASES = {
    "sgd": (optim.SGD, {"lr": 0.3}),
    "sgd_decay": (optim.SGD, {"lr": 0.3, **DECAY}),
    "momentum": (optim.SGD, {"lr": 0.2, "momentum": 0.9, **DECAY}),
    "nesterov": (optim.SGD, {"lr": 0.2, "momentum": 0.9, "nesterov": True, **DECAY}),
    "adagrad": (optim.Adagrad, {"lr": 0.2}),
    "adagrad_all": (
        optim.Adagrad, {"lr": 0.2, "lr_decay": 0.2, "initial_accumulator_value": 0.3, **DECAY},
    ),
    "rmsprop": (optim.RMSprop, {"lr": 0.05}),
    "rmsprop_centered": (optim.RMSprop, {"lr": 0.05, "centered": True, "alpha": 0.8}),
    "rmsprop_all": (
        optim.RMSprop, {"lr": 0.05, "alpha": 0.9, "centered": True, "momentum": 0.7, **DECAY},
    ),
    "adadelta": (optim.Adadelta, {"lr": 1.0}),
    "adadelta_decay": (optim.Adadelta, {"lr": 2.0, "rho": 0.7, "eps": 1e-3, **DECAY}),
    "adam": (optim.Adam, {"lr": 0.1}),
    "adam_decay": (optim.Adam, {"lr": 0.1, "betas": (0.5, 0.8), "eps": 1e-3, **DECAY}),
    "adam_amsgrad": (optim.Adam, {"lr": 0.1, "betas": (0.6, 0.5), "amsgrad": True}),
    "adamw": (optim.AdamW, {"lr": 0.1, **DECAY}),
    "adamw_amsgrad": (optim.AdamW, {"lr": 0.1, "amsgrad": True, "betas": (0.6, 0.5), **DECAY}),
    "adamax": (optim.Adamax, {"lr": 0.1, **DECAY}),
    "nadam": (optim.NAdam, {"lr": 0.1}),
    "nadam_all": (optim.NAdam, {"lr": 0.1, "betas": (0.7, 0.8), "momentum_decay": 0.1, **DECAY}),
}  # fmt: skip

#: Cases with groups, or with clipping, made of SGD with momentum.
EXTRAS = {
    "groups": lambda w, b: optim.SGD(
        [{"params": [w], "lr": 0.3}, {"params": [b], "weight_decay": 0.0}], lr=0.1,
        momentum=0.9, weight_decay=0.1,
    ),
    "clip_norm": lambda w, b: optim.SGD([w, b], lr=0.3, momentum=0.9),
    "clip_value": lambda w, b: optim.SGD([w, b], lr=0.3, momentum=0.9),
}  # fmt: skip
CLIPS = {
    "clip_norm": lambda params: torch.nn.utils.clip_grad_norm_(params, 0.2),
    "clip_value": lambda params: torch.nn.utils.clip_grad_value_(params, 0.05),
}


def run(name: str, dtype: str, make) -> dict[str, np.ndarray]:
    """The parameters after 1 and 5 steps."""
    # Scalars of the state are of this dtype.
    torch.set_default_dtype(getattr(torch, dtype))
    w, b = (torch.tensor(DATA[k].astype(dtype), requires_grad=True) for k in "wb")
    optimiser, kept = make(w, b), {}
    for step, (x, y) in enumerate(zip(DATA["x"], DATA["y"], strict=True), 1):
        optimiser.zero_grad()
        x, y = torch.tensor(x.astype(dtype)), torch.tensor(y.astype(dtype))
        ((torch.tanh(x @ w.T + b) - y) ** 2).mean().backward()
        CLIPS.get(name, lambda params: None)([w, b])
        optimiser.step()
        if step in (1, STEPS):
            kept[f"{name}/{dtype}/w{step}"] = w.detach().numpy().copy()
            kept[f"{name}/{dtype}/b{step}"] = b.detach().numpy().copy()
    return kept


def main() -> None:
    kept = dict(DATA)
    made = {name: lambda w, b, c=c, o=o: c([w, b], **o) for name, (c, o) in CASES.items()}
    for name, make in {**made, **EXTRAS}.items():
        for dtype in ("float32", "float64"):
            kept |= run(name, dtype, make)
    np.savez(OUT, **kept)


if __name__ == "__main__":
    main()

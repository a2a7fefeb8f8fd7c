"""Losses and gradients of PyTorch's criterions, kept in torch_criterion.npz.

    python -m tests.nn.make_torch_criterion

It needs PyTorch (CPU), the tests do not. Each case ``name`` has the arrays ``name/x`` (the output;
``name/x0``, ``name/x1`` of a table), ``name/t`` (the target), ``name/loss`` and ``name/dx`` (the
gradient of the sum of the losses).
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

OUT = Path(__file__).parent / "torch_criterion.npz"
RNG = np.random.default_rng(20250)
WEIGHTS = np.array([0.5, 1.5, 1.0, 2.0, 0.25], "float32")  # one for each class; the tests have them
kept: dict[str, np.ndarray] = {}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def case(name: str, loss, x, t) -> None:
    """Keep a case; ``x`` is an array or a list of them."""
    arrays = x if isinstance(x, list) else [x]
    names = [f"x{i}" for i in range(len(arrays))] if isinstance(x, list) else ["x"]
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    value = loss(*inputs, torch.tensor(t))
    value.sum().backward()
    kept[f"{name}/t"] = t
    kept[f"{name}/loss"] = value.detach().numpy()
    for key, array, tensor in zip(names, arrays, inputs, strict=True):
        kept[f"{name}/{key}"] = array
        kept[f"{name}/d{key}"] = tensor.grad.numpy()


def classes() -> None:
    """Cross-entropy and NLL over their options."""
    w, c = torch.tensor(WEIGHTS), len(WEIGHTS)
    shapes = {"plain": (6, c), "one": (c,), "maps": (2, c, 3, 4), "map": (c, 3, 4)}
    shapes |= {"volumes": (2, c, 2, 3, 2), "volume": (c, 2, 3, 2)}
    options = {
        "mean": {}, "sum": {"reduction": "sum"}, "weights": {"weight": w},
        "ignore": {"ignore_index": 2}, "both": {"weight": w, "ignore_index": 2},
    }  # fmt: skip
    smooth = {
        "smooth": {"label_smoothing": 0.1},
        "smooth_all": {"label_smoothing": 0.3, "weight": w, "ignore_index": 2},
        "smooth_none": {"label_smoothing": 0.3, "weight": w, "reduction": "none"},
    }
    for kind, shape in shapes.items():
        rows = shape[1:] if kind in ("one", "map", "volume") else (shape[0], *shape[2:])
        x, t = 3 * normal(*shape), RNG.integers(0, c, rows)
        if kind == "one":
            t = np.asarray(1)
        axis = 0 if kind in ("one", "map", "volume") else 1
        logp = F.log_softmax(torch.tensor(x), axis).numpy()

        def lift(f, more, single=axis == 0):
            def loss(a, b):
                a, b = (a[None], b[None]) if single else (a, b)
                found = f(a, b, **more)
                return found[0] if single and found.ndim else found

            return loss

        for name, more in (options | smooth).items():
            case(f"cross/{kind}/{name}", lift(F.cross_entropy, more), x, t)
        for name, more in options.items():
            case(f"nll/{kind}/{name}", lift(F.nll_loss, more), logp, t)


def values() -> None:
    """Regression, probabilities, distributions."""
    w, x, t = torch.tensor(WEIGHTS), normal(4, 5), normal(4, 5)
    case("mse", F.mse_loss, x, t)
    case("mse_sum", lambda a, b: F.mse_loss(a, b, reduction="sum"), x, t)
    case("abs", F.l1_loss, x, t)
    case("smooth_l1", F.smooth_l1_loss, 2 * x, t)
    case("smooth_l1_beta", lambda a, b: F.smooth_l1_loss(a, b, beta=0.3), 2 * x, t)
    p = RNG.uniform(0.02, 0.98, (4, 5)).astype("float32")
    b = RNG.integers(0, 2, (4, 5)).astype("float32")
    case("bce", F.binary_cross_entropy, p, b)
    case("bce_weights", lambda x, t: F.binary_cross_entropy(x, t, weight=w), p, b)
    wild = 40 * normal(4, 5)
    logits = F.binary_cross_entropy_with_logits
    case("logits", logits, wild, b)
    case("logits_all", lambda x, t: logits(x, t, weight=w, pos_weight=2 * w), wild, b)
    case("multilabel", F.multilabel_soft_margin_loss, wild, b)
    case("multilabel_w", lambda x, t: F.multilabel_soft_margin_loss(x, t, weight=w), wild, b)
    logp = F.log_softmax(torch.tensor(x), 1).numpy()
    q = F.softmax(torch.tensor(t), 1).numpy()
    q[:, 2] = 0
    case("kl", lambda a, b: F.kl_div(a, b, reduction="mean"), logp, q)


def margins() -> None:
    """Hinge losses; targets are 1 and -1."""
    x, t = normal(4, 5), (2 * RNG.integers(0, 2, (4, 5)) - 1).astype("float32")
    signs = t[:, 0].copy()
    case("margin", lambda a, b: torch.relu(0.7 - a * b).mean(), x, t)
    case("soft_margin", F.soft_margin_loss, 30 * x, t)
    case("hinge", lambda a, b: F.hinge_embedding_loss(a, b, margin=0.6), x, t)
    cosine = lambda a, b, c: F.cosine_embedding_loss(a, b, c, margin=0.1)  # noqa: E731
    case("cosine", cosine, [x, normal(4, 5)], signs)
    ranking = lambda a, b, c: F.margin_ranking_loss(a, b, c, margin=0.2)  # noqa: E731
    case("ranking", ranking, [x[:, 0].copy(), normal(4)], signs)


def ctc() -> None:
    """The CTC loss of three sequences, one of them short, one with few labels."""
    x = normal(9, 3, 6)
    t = np.array([[1, 2, 2, 5], [3, -1, -1, -1], [4, 4, 1, -1]])
    lengths = np.array([9, 4, 7], "int32")

    def loss(a, b):
        logp = F.log_softmax(a, 2)
        n = (b > 0).sum(1)
        return F.ctc_loss(logp, b.clamp(min=0), torch.tensor(lengths), n, reduction="none")

    case("ctc", loss, x, t)
    kept["ctc/lengths"] = lengths


if __name__ == "__main__":
    classes()
    values()
    margins()
    ctc()
    np.savez_compressed(OUT, **kept)
    print(f"{OUT.name}: {len(kept)} arrays, {OUT.stat().st_size} bytes, torch {torch.__version__}")

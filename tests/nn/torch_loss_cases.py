"""Losses under PyTorch's names: the same classes and options there and here, and their inputs.

``CASES``: name -> (class, options, inputs). An option that is a string of ``ARRAYS`` is that array.
"""

from itertools import product

import numpy as np

RNG = np.random.default_rng(20261122)
WEIGHTS = np.array([0.5, 1.5, 1.0, 2.0, 0.25], "float32")
ARRAYS = {"W": WEIGHTS, "2W": 2 * WEIGHTS}
REDUCTIONS = ("mean", "sum", "none")
Case = tuple[str, dict[str, object], list[np.ndarray]]


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return (e / e.sum(axis, keepdims=True)).astype("float32")


def classes() -> dict[str, Case]:
    found: dict[str, Case] = {}
    shapes = {"rows": (6, 5), "one": (5,), "steps": (3, 5, 4), "maps": (2, 5, 3, 2)}
    weights = ({}, {"weight": "W"})
    for (kind, shape), reduction, weight in product(shapes.items(), REDUCTIONS, weights):
        rows = shape[:0] if kind == "one" else (shape[0], *shape[2:])
        x, t = 3 * normal(*shape), RNG.integers(0, 5, rows)
        gaps = np.where(RNG.uniform(size=rows) < 0.3, -100, t) if kind != "one" else t
        q = softmax(normal(*shape), 0 if kind == "one" else 1)
        logp = np.log(softmax(x, 0 if kind == "one" else 1))
        more = {"reduction": reduction, **weight}
        name = f"{kind} {reduction} {'weight' if weight else ''}".strip()
        for s, (word, target) in product((0.0, 0.2), (("gaps", gaps), ("soft", q))):
            options = {**more, **({"label_smoothing": s} if s else {})}
            found[f"cross {word} {name} {s}"] = ("CrossEntropyLoss", options, [x, target])
        found[f"cross ignore {name}"] = ("CrossEntropyLoss", {**more, "ignore_index": 2}, [x, t])
        found[f"nll {name}"] = ("NLLLoss", more, [logp, gaps])
        found[f"nll ignore {name}"] = ("NLLLoss", {**more, "ignore_index": 2}, [logp, t])
    return found


def values() -> dict[str, Case]:
    x, t, wild = normal(4, 5), normal(4, 5), 40 * normal(4, 5)
    b = RNG.integers(0, 2, (4, 5)).astype("float32")
    p = RNG.uniform(0.02, 0.98, (4, 5)).astype("float32")
    q = softmax(t)
    logp, counts = np.log(softmax(x)), RNG.poisson(2.0, (4, 5)).astype("float32")
    sparse = q.copy()
    sparse[:, 2] = 0
    var = RNG.uniform(0.1, 2, (4, 5)).astype("float32")
    var[0, 0] = 1e-9
    singles: list[tuple[str, dict[str, object], list[np.ndarray]]] = [
        ("MSELoss", {}, [x, t]),
        ("L1Loss", {}, [x, t]),
        ("SmoothL1Loss", {}, [2 * x, t]),
        ("SmoothL1Loss", {"beta": 0.3}, [2 * x, t]),
        ("SmoothL1Loss", {"beta": 0.0}, [x, t]),
        ("HuberLoss", {}, [2 * x, t]),
        ("HuberLoss", {"delta": 0.4}, [2 * x, t]),
        ("BCELoss", {}, [p, b]),
        ("BCELoss", {"weight": "W"}, [p, q]),
        ("BCEWithLogitsLoss", {}, [wild, b]),
        ("BCEWithLogitsLoss", {"weight": "W", "pos_weight": "2W"}, [wild, q]),
        ("KLDivLoss", {}, [logp, sparse]),
        ("KLDivLoss", {"log_target": True}, [logp, np.log(q)]),
        ("PoissonNLLLoss", {}, [x, counts]),
        ("PoissonNLLLoss", {"log_input": False}, [p, counts]),
        ("PoissonNLLLoss", {"full": True}, [x, counts]),
        ("GaussianNLLLoss", {}, [x, t, var]),
        ("GaussianNLLLoss", {"full": True}, [x, t, var]),
        ("GaussianNLLLoss", {"eps": 0.5}, [x, t, var[:, 0].copy()]),
    ]
    return _reduced(singles) | {
        f"batchmean {target}": ("KLDivLoss", {"reduction": "batchmean", **options}, arrays)
        for target, options, arrays in (
            ("probabilities", {}, [logp, sparse]),
            ("logarithms", {"log_target": True}, [logp, np.log(q)]),
        )
    }


def margins() -> dict[str, Case]:
    a, b, c = normal(4, 5), normal(4, 5), normal(4, 5)
    signs = (2 * RNG.integers(0, 2, (4, 5)) - 1).astype("float32")
    sign, t = signs[:, 0].copy(), RNG.integers(0, 5, 4)
    listed = np.array([[3, 0, -1, 1, 2], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [4, -1, -1, -1, -1]])
    b01 = (signs > 0).astype("float32")
    return _reduced([
        ("CosineEmbeddingLoss", {}, [a, b, sign]),
        ("CosineEmbeddingLoss", {"margin": 0.3}, [a, b, sign]),
        ("CosineEmbeddingLoss", {}, [a[0], b[0], sign[0]]),
        ("MarginRankingLoss", {}, [a, b, signs]),
        ("MarginRankingLoss", {"margin": 0.4}, [a, b, signs]),
        ("HingeEmbeddingLoss", {}, [a, signs]), ("HingeEmbeddingLoss", {"margin": 0.5}, [a, signs]),
        ("SoftMarginLoss", {}, [30 * a, signs]),
        ("MultiLabelSoftMarginLoss", {}, [30 * a, b01]),
        ("MultiLabelSoftMarginLoss", {"weight": "W"}, [a, b01]),
        ("MultiLabelMarginLoss", {}, [a, listed]), ("MultiLabelMarginLoss", {}, [a[0], listed[0]]),
        ("MultiMarginLoss", {}, [a, t]), ("MultiMarginLoss", {"p": 2, "margin": 0.7}, [a, t]),
        ("MultiMarginLoss", {"weight": "W", "p": 2}, [a, t]), ("MultiMarginLoss", {}, [a[1], t[1]]),
        ("TripletMarginLoss", {}, [a, b, c]), ("TripletMarginLoss", {"swap": True}, [a, b, c]),
        ("TripletMarginLoss", {"p": 1.0, "margin": 3.0}, [a, b, c]),
        ("TripletMarginLoss", {"p": 3.0, "eps": 0.1, "margin": 2.0}, [a, b, c]),
    ])  # fmt: skip


def sequences() -> dict[str, Case]:
    logp = np.log(softmax(normal(9, 4, 6), 2))
    lengths, counts = np.array([9, 4, 7, 2]), np.array([4, 1, 3, 3])
    rows = np.array([[1, 2, 2, 5], [3, 1, 1, 1], [4, 4, 1, 1], [5, 5, 5, 1]])
    flat = np.concatenate([r[:n] for r, n in zip(rows, counts)])
    fits = [logp[:, :3].copy(), rows[:3], lengths[:3], counts[:3]]
    return _reduced([
        ("CTCLoss", {}, fits), ("CTCLoss", {"zero_infinity": True}, [logp, rows, lengths, counts]),
        ("CTCLoss", {"zero_infinity": True}, [logp, flat, lengths, counts]),
        ("CTCLoss", {"blank": 5}, [fits[0], rows[:3] - 1, *fits[2:]]),
        ("CTCLoss", {"blank": 3}, [fits[0], np.where(rows[:3] == 3, 0, rows[:3]), *fits[2:]]),
    ])  # fmt: skip


def _reduced(cases: list[Case]) -> dict[str, Case]:
    found: dict[str, Case] = {}
    for number, (kind, options, arrays) in enumerate(cases):
        for reduction in REDUCTIONS:
            found[f"{kind} {number} {reduction}"] = (
                kind, {"reduction": reduction, **options}, [np.asarray(a) for a in arrays],
            )  # fmt: skip
    return found


CASES: dict[str, Case] = {**classes(), **values(), **margins(), **sequences()}


def options_of(case: Case, made: object) -> dict[str, object]:
    """The options, with arrays as ``made`` makes them."""
    return {
        k: made(ARRAYS[v]) if isinstance(v, str) and v in ARRAYS else v  # type: ignore[operator]
        for k, v in case[1].items()
    }


def differentiated(case: Case) -> list[int]:
    """Which inputs get a gradient: floats that are no targets."""
    count = {"CosineEmbeddingLoss": 2, "MarginRankingLoss": 2, "TripletMarginLoss": 3}
    return [*range(count.get(case[0], 1)), *([2] if case[0] == "GaussianNLLLoss" else [])]

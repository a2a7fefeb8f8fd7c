"""Networks of random layers with checkpoints and bounds on memory, against the same without."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.errors import OverBudget, SymdnnError
from symdnn.ops.random.random_stream import RandomStream
from tests.fuzz.areas import Area, Context, Failure, error_text
from tests.fuzz.checkpoint_loops import check_loops

__all__ = ["AREA"]

#: Layers of (values, a square matrix, a stream).
LAYERS: dict[str, Callable[..., Any]] = {
    "dense": lambda h, w, s: T.tanh(T.dot(h, w)),
    "residual": lambda h, w, s: h + T.nnet.gelu(T.dot(h, w)),
    "norm": lambda h, w, s: (h - h.mean(axis=1, keepdims=True)) * T.nnet.sigmoid(h),
    "softmax": lambda h, w, s: T.dot(T.nnet.softmax(h), w),
    "dropout": lambda h, w, s: T.nnet.dropout(h, 0.3, s) * T.sqrt(abs(h) + 1),
    "sorted": lambda h, w, s: T.sort(h, axis=1) * w[0],
    "scan": lambda h, w, s: symdnn.scan(
        lambda v: T.tanh(T.dot(v, w)) + v, outputs_info=h, n_steps=3
    )[0][-1],
    "choice": lambda h, w, s: symdnn.ifelse(h.sum() > 0, T.exp(-h * h), T.dot(h, w)),
}


def check(ctx: Context) -> list[Failure]:
    """A network's or a loop's value, gradients and updates: plain, in parts, within a bound."""
    rng = ctx.rng
    if rng.random() < 0.4:
        return check_loops(ctx)
    names = [str(n) for n in rng.choice([*LAYERS], int(rng.integers(2, 10)))]
    width, batch = int(rng.choice([1, 3, 8, 17])), int(rng.choice([1, 2, 16, 33]))
    cuts = sorted({0, len(names), *(int(n) for n in rng.integers(0, len(names), 3))})
    nested, twice = rng.random() < 0.3, rng.random() < 0.2
    data = rng.standard_normal((batch, width))
    matrices = [rng.standard_normal((width, width)) / width**0.5 for _ in names]
    what = f"{names} of ({batch}, {width}), parts at {cuts}{', nested' * nested}"

    def made(wrap: Any, **words: Any) -> Any:
        ws, stream = [symdnn.shared(m) for m in matrices], RandomStream(7)

        def part(h: Any, first: int, last: int) -> Any:
            for i in range(first, last):
                h = LAYERS[names[i]](h, ws[i], stream)
            return h

        def whole(h: Any) -> Any:
            for first, last in pairwise(cuts):
                h = wrap(lambda v, a=first, b=last: part(v, a, b))(h)
            return h

        x = T.dmatrix("x")
        y = (wrap(whole) if nested else whole)(x)
        wrt = [x, *ws]
        found = symdnn.grad((y * y).sum(), wrt, disconnected_inputs="ignore")
        if twice:
            terms = [(g * g).sum() for g in found]
            found = symdnn.grad(sum(terms[1:], terms[0]), wrt, disconnected_inputs="ignore")
        return symdnn.function([x], [y, *found], **words)

    def compared(f: Any, name: str, exact: bool) -> list[Failure]:
        for call in wanted:
            results = f(data)
            # A loop in segments adds its gradients up segment by segment.
            exact = exact and not any(p.pieces for p in f.memory_report().loops)
            for got, want in zip(results, call):
                same = np.array_equal(got, want, equal_nan=True) if exact else np.allclose(
                    got, want, 1e-9, 1e-9 * max(1, float(np.max(np.abs(want), initial=0))),
                    equal_nan=True,
                )  # fmt: skip
                if not same:
                    return [ctx.fail(f"{what}: {name} differs")]
        return []

    try:
        plain = made(lambda f: f)
        wanted = [plain(data), plain(data)]
        failures = compared(made(symdnn.checkpoint), "a checkpoint", False)
        bound = max(1, int(plain.memory_report().peak * rng.uniform(0.3, 1.1)))
        try:
            failures += compared(made(lambda f: f, memory_budget=bound), f"a bound {bound}", True)
        except OverBudget as error:
            if "least" not in str(error):
                failures.append(ctx.fail(f"{what}: {error_text(error)}"))
    except SymdnnError as error:
        return [ctx.fail(f"{what}: {error_text(error)}")]
    ctx.count("checkpoints")
    return failures


AREA = Area("checkpoints", "checkpoints", check, in_tests=12)

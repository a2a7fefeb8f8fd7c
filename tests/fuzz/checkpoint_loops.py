"""Random loops with gradients within a ``memory_budget``, against the same without."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.errors import OverBudget, SymdnnError
from symdnn.ops.random.random_stream import RandomStream
from tests.fuzz.areas import Context, Failure, error_text

__all__ = ["check_loops"]

#: What a step makes of a state, of another one and of the sequence's entry.
STEPS = (
    lambda h, g, v, w, s: T.tanh(T.dot(h, w) + v),
    lambda h, g, v, w, s: T.nnet.sigmoid(T.dot(v, w)) * h + T.tanh(g) / 2,
    lambda h, g, v, w, s: T.tanh(T.dot(h * v, w)) + 0.3 * g,
    lambda h, g, v, w, s: T.nnet.dropout(T.tanh(h + T.dot(g, w)), 0.4, s),
    lambda h, g, v, w, s: T.switch(h > g, h * 0.9, T.sin(T.dot(g, w))) + v,
    lambda h, g, v, w, s: T.maximum(T.dot(h, w), v) * 0.5,
)
#: What the cost reads of a loop's states: the last one, all, some.
READINGS = (
    lambda h: (h[-1] ** 2).sum(),
    lambda h: (h**2).mean(),
    lambda h: h[-3:].sum() + (h[0] ** 2).sum(),
)


def _loop(rng: Any, x: Any, h: Any, ws: list[Any], stream: Any) -> Any:
    """A random loop over ``x`` from ``h`` on: all values of its states, and its updates."""
    count, taps = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    rules = [STEPS[int(rng.integers(len(STEPS)))] for _ in range(count)]
    collects, back, w = bool(rng.random() < 0.3), bool(rng.random() < 0.2), ws[0]

    def step(v: Any, *states: Any) -> Any:
        if taps == 2:  # of the first state
            old, *states = states  # type: ignore[assignment]
            states = (states[0] + 0.2 * old, *states[1:])
        news = [
            r(states[i], states[i - 1], v, ws[(i + 1) % len(ws)] if i else w, stream)
            for i, r in enumerate(rules)
        ]
        return [*news, (news[0] * v).sum(axis=1)] if collects else news

    first = {"initial": T.stack([h, h * 0.5]), "taps": [-2, -1]} if taps == 2 else h
    starts = [first, *(h * (0.1 * i) for i in range(1, count)), *([None] if collects else [])]
    return symdnn.scan(step, x, starts, go_backwards=back, return_list=True)


def check_loops(ctx: Context) -> list[Failure]:
    """One or two loops, their gradients and updates, twice: plain, and within a bound."""
    rng = ctx.rng
    steps, batch, width = (
        int(rng.integers(2, 41)),
        int(rng.integers(1, 9)),
        int(rng.integers(1, 13)),
    )
    seed, deep = int(rng.integers(1 << 30)), bool(rng.random() < 0.4)
    share = float(rng.uniform(0.3, 1.05))
    what = f"loops of seed {seed}, {steps} steps of ({batch}, {width}), {share:.2f} of the memory"

    def made(budget: int | None) -> tuple[Any, Any]:
        own = np.random.default_rng(seed)
        x, h, stream = T.dtensor3("x"), T.dmatrix("h"), RandomStream(7)
        ws = [symdnn.shared(own.standard_normal((width, width)) / width**0.5) for _ in range(3)]
        found, updates = _loop(own, x, h, ws, stream)
        if deep:
            found, more = _loop(own, found[0], h, ws[::-1], stream)
            updates = {**updates, **more}
        cost = READINGS[int(own.integers(len(READINGS)))](found[0])
        if found[-1].type.ndim == 2:
            cost = cost + (found[-1] ** 2).mean()
        outs = [cost, *symdnn.grad(cost, [x, h, *ws], disconnected_inputs="ignore")]
        f = symdnn.function([x, h], outs, updates=updates, memory_budget=budget)
        given = own.standard_normal((steps, batch, width)), own.standard_normal((batch, width))
        return f, given

    try:
        plain, given = made(None)
        wanted = [plain(*given), plain(*given)]
        bound = max(1, int(plain.memory_report().peak * share))
        f, given = made(bound)
        try:
            results = [f(*given), f(*given)]
        except OverBudget as error:
            ctx.count("loops over their bound")
            said = "least" in str(error)
            return [] if said else [ctx.fail(f"{what}: {error_text(error)}")]
    except SymdnnError as error:
        return [ctx.fail(f"{what}: {error_text(error)}")]
    report = f.memory_report()
    if report.peak > bound:
        return [ctx.fail(f"{what}: {report.peak} bytes, over {bound}")]
    for got, want in zip(results, wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            room = 1e-9 * max(1.0, float(np.max(np.abs(b), initial=0)))
            if not np.allclose(a, b, 1e-9, room, equal_nan=True):
                return [ctx.fail(f"{what}: values within the bound differ")]
    ctx.count("loops in segments" if any(p.pieces for p in report.loops) else "loops as they are")
    return []

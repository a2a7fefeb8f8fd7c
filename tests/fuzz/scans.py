"""Loops by ``scan`` against the same steps written out, values and gradients.

A case is the text of a step function and how it is called; the same text is run by ``scan`` and in
a Python loop, so a failure is a short program as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from tests.fuzz.areas import Area, Context, Failure
from tests.fuzz.expressions import draw_mode, mode_text

STEPS = 5
FORMS = [
    "T.tanh({a})", "{a} * {b}", "0.5 * {a} - {b}", "T.sin({a} + {b})", "T.maximum({a}, {b})",
    "T.switch(T.gt({a}, 0.1), {a}, {b} * {c})", "T.tanh({a} + T.dot({b}, w))", "{a}[::-1]",
    "T.nnet.sigmoid({a}) * {b}", "inner({a}, {b})", "T.sqr({a}) / (1 + T.sqr({b}))",
    "{a} + {b}.sum()", "T.set_subtensor({a}[:1], {b}[:1])", "T.sort({a})", "T.cumsum({a}) / 4",
]  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """A step function as text, and the arguments of ``scan``."""

    sequences: tuple[tuple[int, ...], ...]  # the taps of each
    states: tuple[tuple[int, ...], ...]
    body: tuple[str, ...]
    results: tuple[str, ...]  # the new states, then what is only collected
    steps: int
    size: int = 2
    backwards: bool = False
    truncate: int = -1
    until: float | None = None
    given_steps: bool = False
    looks: tuple[int, ...] = field(default=())  # outputs of which only the last step is used

    def arguments(self) -> list[str]:
        """Names of what the step gets: entries of sequences, then earlier states."""
        s = [f"s{i}{'mp'[t >= 0]}{abs(t)}" for i, taps in enumerate(self.sequences) for t in taps]
        return s + [f"r{i}m{-t}" for i, taps in enumerate(self.states) for t in taps]

    def text(self) -> str:
        """The definition of ``step``."""
        returned = f"[{', '.join(self.results)}]"
        if self.until is not None:
            returned += f", until(T.gt({self.results[0]}.sum(), {self.until}))"
        lines = [f"    t{i} = {line}" for i, line in enumerate(self.body)]
        return "\n".join([f"def step({', '.join(self.arguments())}):", *lines,
                          f"    return {returned}"])  # fmt: skip

    def length(self, taps: tuple[int, ...]) -> int:
        """How long a sequence with these taps is."""
        return self.steps + max(0, *taps) - min(0, *taps)


def draw_loop(rng: np.random.Generator) -> Loop:
    """A random loop."""

    def of(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    backwards = rng.random() < 0.2
    taps = [(0,)] if backwards else [(0,), (0,), (0, 1), (-1,), (-2, 1), (2,)]
    sequences = tuple(of(taps) for _ in range(int(rng.integers(0, 3))))
    states = tuple(of([(-1,), (-1,), (-2,), (-1, -3), (-3, -1)]) for _ in range(rng.integers(1, 3)))
    shape = Loop(sequences, states, (), (), int(rng.choice([0, 1, 2, 3, 4, 6, 9])))
    names = [*shape.arguments(), "c"]
    body: list[str] = []
    for i in range(int(rng.integers(len(states), 5))):
        form = of(FORMS)
        body.append(form.format(a=of(names), b=of(names), c=of(names)))
        names.append(f"t{i}")
    made = [f"t{i}" for i in range(len(body))]
    results = [*made[-len(states) :], *(of(names) for _ in range(int(rng.integers(0, 2))))]
    return replace(
        shape, body=tuple(body), results=tuple(results), size=int(rng.choice([1, 2, 3])),
        backwards=backwards, truncate=of([-1, -1, -1, 1, 2, 3]),
        until=of([0.4, 1.0]) if rng.random() < 0.15 else None,
        given_steps=not sequences or rng.random() < 0.2,
        looks=tuple(k for k in range(len(results)) if rng.random() < 0.3),
    )  # fmt: skip


# -- the two ways ---------------------------------------------------------------------------------


def arrays(loop: Loop, seed: int = 0) -> list[np.ndarray]:
    """Sequences, initial states, a constant, and a matrix."""
    rng = np.random.default_rng(seed)
    d = loop.size
    first = [rng.uniform(-1, 1, (loop.length(t), d)) for t in loop.sequences]
    start = [rng.uniform(-1, 1, (-min(t), d) if min(t) < -1 else (d,)) for t in loop.states]
    return [*first, *start, rng.uniform(-1, 1, d), rng.uniform(-0.6, 0.6, (d, d))]


def variables(loop: Loop) -> list[Any]:
    return [T.TensorType("float64", (None,) * a.ndim)(f"x{k}") for k, a in enumerate(arrays(loop))]


def _step(loop: Loop, c: Any, w: Any, inner: Any) -> Any:
    names: dict[str, Any] = {"T": T, "until": symdnn.until, "c": c, "w": w, "inner": inner}
    exec(loop.text(), names)
    return names["step"]


def inner_scan(a: Any, b: Any) -> Any:
    """Three steps inside of a step."""
    return symdnn.scan(lambda h, b: T.tanh(h + b), None, a, b, n_steps=3)[0][-1]


def inner_loop(a: Any, b: Any) -> Any:
    """The same, written out."""
    for _ in range(3):
        a = T.tanh(a + b)
    return a


def by_scan(loop: Loop, vs: list[Any]) -> list[Any]:
    """The outputs, by scan."""
    n, m = len(loop.sequences), len(loop.states)
    sequences = [{"input": v, "taps": list(t)} for v, t in zip(vs, loop.sequences)]
    initial: list[Any] = [
        {"initial": v, "taps": list(t)} for v, t in zip(vs[n : n + m], loop.states)
    ]
    initial += [None] * (len(loop.results) - m)
    step = _step(loop, vs[-2], vs[-1], inner_scan)
    outs, _ = symdnn.scan(
        step, sequences, initial, n_steps=loop.steps if loop.given_steps else None,
        go_backwards=loop.backwards, truncate_gradient=loop.truncate, return_list=True,
    )  # fmt: skip
    return list(outs)


def by_hand(loop: Loop, vs: list[Any], steps: int) -> tuple[list[list[Any]], list[Any]]:
    """The outputs of each step, and the conditions."""
    n, m = len(loop.sequences), len(loop.states)
    if 0 <= loop.truncate < steps:  # no gradient goes as far back as the initial values
        vs = [symdnn.gradient.disconnected_grad(v) if n <= k < n + m else v
              for k, v in enumerate(vs)]  # fmt: skip
    step = _step(loop, vs[-2], vs[-1], inner_loop)
    depth = [-min(t) for t in loop.states]
    past = [[v] if k == 1 else [v[j] for j in range(k)] for v, k in zip(vs[n : n + m], depth)]
    collected: list[list[Any]] = [[] for _ in loop.results]
    conditions = []
    for k in range(steps):
        at = loop.steps - 1 - k if loop.backwards else k
        given = [v[at + t - min(0, *taps)] for v, taps in zip(vs, loop.sequences) for t in taps]
        given += [values[t] for values, taps in zip(past, loop.states) for t in taps]
        made: Any = step(*given)
        if loop.until is not None:
            made, condition = made
            conditions.append(condition.condition)
        if 0 <= loop.truncate <= steps - 1 - k:
            made = [symdnn.gradient.disconnected_grad(v) for v in made]
        for values, v in zip([*past, *[[]] * len(collected)], made):
            values.append(v)
        for c, v in zip(collected, made):
            c.append(v)
    return collected, conditions


def costs(loop: Loop, outs: list[Any], stacked: bool) -> Any:
    """A number to differentiate: all steps of some outputs, the last of others."""
    total = T.constant(0.0)
    for k, o in enumerate(outs):
        if k in loop.looks:
            total = total + (k + 1) * T.sin(o[-1]).sum()
        elif stacked:
            total = total + (k + 1) * T.sqr(o).sum()
        else:
            total = total + (k + 1) * sum((T.sqr(v).sum() for v in o), T.constant(0.0))
    return total


def steps_of(loop: Loop, values: list[np.ndarray]) -> int:
    """How many steps are made: ``until`` stops after the first true condition."""
    if loop.until is None or loop.steps == 0:
        return loop.steps
    vs = variables(loop)
    _, conditions = by_hand(replace(loop, truncate=-1), vs, loop.steps)
    true = [bool(c) for c in evaluate(conditions, dict(zip(vs, values)))]
    return true.index(True) + 1 if True in true else loop.steps


def wrong(loop: Loop, mode: Any = None) -> str:
    """What is wrong with the loop by scan, or ``""``."""
    values = arrays(loop)
    steps = steps_of(loop, values)
    if loop.until is not None and loop.truncate >= 0:
        loop = replace(loop, truncate=-1)
    vs = variables(loop)
    hand, _ = by_hand(loop, vs, steps)
    wanted = [T.stack(h) for h in hand] if steps else []
    scanned = by_scan(loop, vs)
    outs, names = list(scanned), [f"output {k}" for k in range(len(scanned))]
    if steps:
        a, b = costs(loop, scanned, True), costs(loop, hand, False)
        grads = [T.grad(c, vs, disconnected_inputs="ignore") for c in (a, b)]
        outs, wanted = outs + grads[0], wanted + grads[1]
        names += [f"gradient of x{k}" for k in range(len(vs))]
    f = symdnn.function(vs, outs, mode=mode, on_unused_input="ignore")
    found = f(*values)
    if not steps:
        empty = [r.shape[0] == 0 for r in found]
        return "" if all(empty) else "no step gives results"
    right = evaluate(wanted, dict(zip(vs, values)))
    for name, x, y in zip(names, found, right):
        size = max(1.0, float(np.abs(y).max(initial=0)))
        if x.shape != y.shape:
            return f"{name}: shape {x.shape}, written out it is {y.shape}"
        if not np.allclose(x, y, rtol=1e-9, atol=1e-10 * size):
            return f"{name}: {x.ravel()[:4]}, written out it is {y.ravel()[:4]}"
    return ""


def check(ctx: Context) -> list[Failure]:
    """One loop."""
    rng = ctx.rng
    loop = draw_loop(rng)
    mode, _ = draw_mode(rng, ctx.device)
    ctx.count("loops")
    said = _said(loop, mode)
    if not said:
        return []
    small = _reduced(loop, mode)
    return [ctx.fail(_said(small, mode), script(small, mode))]


def _said(loop: Loop, mode: Any) -> str:
    try:
        return wrong(loop, mode)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).splitlines()[0]}"


def _reduced(loop: Loop, mode: Any) -> Loop:
    """Without options and statements that do not matter."""
    changed = True
    while changed:
        changed = False
        for other in _simpler(loop):
            if _said(other, mode):
                loop, changed = other, True
                break
    return loop


def _simpler(loop: Loop) -> Any:
    plain = {"backwards": False, "truncate": -1, "until": None, "looks": (), "size": 1}
    for name, value in plain.items():
        if getattr(loop, name) != value:
            yield replace(loop, **{name: value})
    if loop.steps > 1:
        yield replace(loop, steps=loop.steps - 1)
    if len(loop.results) > len(loop.states):
        yield replace(loop, results=loop.results[:-1], looks=())
    plainest = f"{loop.arguments()[0]} * 1"
    for k, line in enumerate(loop.body):
        if line != plainest:
            yield replace(loop, body=(*loop.body[:k], plainest, *loop.body[k + 1 :]))


def script(loop: Loop, mode: Any) -> str:
    """Python that shows it."""
    return "\n".join([
        "import symdnn",
        "from tests.fuzz.scans import Loop, wrong",
        "# " + loop.text().replace("\n", "\n# "),
        f"loop = {loop!r}",
        f"print(wrong(loop, {mode_text(mode)}))",
    ])  # fmt: skip


AREA = Area("scans", "loops", check, in_tests=30, on_device=True)

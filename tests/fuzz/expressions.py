"""Expressions of all public functions: compiled, by references, and by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import symdnn
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from tests.fuzz.areas import Area, Context, Failure, error_text
from tests.fuzz.catalogue import grow
from tests.fuzz.growth import Growth, RawError, Tally, Term, replay
from tests.fuzz.program import Input, Program, pick, script, variables
from tests.fuzz.reduce import reduced
from tests.fuzz.values import LARGE, LAYOUTS, SIZES, kind

GROUP = 6  # programs in one function
TALLY = Tally()


def programs(ctx: Context, rng: np.random.Generator) -> tuple[list[Growth], list[Failure]]:
    """Some programs, of small or of large sizes."""
    grown, failures = [], []
    large = rng.random() < 0.06
    for _ in range(GROUP):
        g = Growth(rng, LARGE if large else SIZES, tally=TALLY)
        if large:
            g.sizes = [g.sizes[0], *rng.choice([1, 3, 17], 2)]
        try:
            grow(g, int(rng.integers(1, 9)))
        except RawError as error:
            failures.append(ctx.fail(f"building raises {error}", script(g.program([]), [])))
        if g.sinks():
            _lay_out(g)
            grown.append(g)
    return grown, failures


def _lay_out(g: Growth) -> None:
    g.items = [
        replace(i, layout=str(g.rng.choice(LAYOUTS))) if isinstance(i, Input) else i
        for i in g.items
    ]


def outputs_of(g: Growth) -> list[Term]:
    """What nothing reads, and now and then something in between."""
    ends = g.sinks()[-4:]
    between = [t for t in g.terms if t not in ends and not isinstance(g.items[t.ref.at], Input)]
    return [*ends, g.of(between)] if between and g.chance(0.2) else ends


def check(ctx: Context) -> list[Failure]:
    """One group of programs in one function, in one mode."""
    rng = ctx.rng
    grown, failures = programs(ctx, rng)
    if not grown:
        return failures
    ctx.count("expressions", len(grown))
    mode, flags = draw_mode(rng, ctx.device)
    with config.change_flags(**flags):
        chosen = [outputs_of(g) for g in grown]
        for g, outs in zip(grown, run(grown, chosen, mode, ctx)):
            for what, term in outs:
                failures.append(report(ctx, g.program([term]), what, mode, flags))
    return failures


def draw_mode(rng: np.random.Generator, device: str) -> tuple[Any, dict[str, Any]]:
    """Mostly the default; sometimes less rewriting, or kernels compiled for the smallest work."""
    which = rng.random()
    if which < 0.06:
        return Mode(optimizer="fast_compile"), {}
    if which < 0.09:
        return Mode(optimizer="None"), {}
    if which < 0.11 and not device:
        return Mode(), {"cpu.compile": "always"}
    return Mode(), {}


def run(
    grown: Sequence[Growth], chosen: Sequence[Sequence[Term]], mode: Any, ctx: Context
) -> list[list[tuple[str, Term]]]:
    """For each program the outputs that are wrong, and how."""
    inputs, arrays = [], []
    for g in grown:
        inputs += [g.symbols[k] for k, i in enumerate(g.items) if isinstance(i, Input)]
        arrays += [i.array() for i in g.items if isinstance(i, Input)]
    flat = [t for terms in chosen for t in terms]
    outs = [t.v for t in flat]
    try:
        f = symdnn.function(inputs, outs, mode=mode, on_unused_input="ignore")
        results = [np.asarray(r) for r in f(*arrays)]
        again = [np.asarray(r) for r in f(*arrays)]
        plain = evaluate(outs, dict(zip(inputs, arrays)))
    except Exception as error:
        return _one_by_one(grown, chosen, mode, ctx, error)
    wrong: list[list[tuple[str, Term]]] = []
    place = iter(zip(results, again, plain))
    for terms in chosen:
        wrong.append([])
        for t in terms:
            got, second, by_reference = next(place)
            what = judge(t, got, second, by_reference)
            if what:
                wrong[-1].append((what, t))
    return wrong


def _one_by_one(
    grown: Sequence[Growth], chosen: Sequence[Sequence[Term]], mode: Any, ctx: Context,
    error: Exception,
) -> list[list[tuple[str, Term]]]:  # fmt: skip
    if len(grown) > 1:
        return [run([g], [c], mode, ctx)[0] for g, c in zip(grown, chosen)]
    if len(chosen[0]) > 1:
        return [[w for t in chosen[0] for w in run(grown, [[t]], mode, ctx)[0]]]
    return [[(f"raises {error_text(error)}", chosen[0][0])]]


def judge(t: Term, got: Any, second: Any, by_reference: Any) -> str:
    """What is wrong with a result, or ``""``."""
    for name, value in (("compiled", got), ("by references", by_reference)):
        if value.dtype != t.v.type.numpy:
            return f"{name}: dtype {value.dtype}, the type says {t.v.type}"
        if value.shape != t.shape:
            return f"{name}: shape {value.shape}, NumPy's is {t.shape}"
        far = distance(t, value)
        if far:
            return f"{name}: {far}"
    if same_bits_are_promised() and got.tobytes() != second.tobytes():
        return "the second call gives other bits"
    return ""


def same_bits_are_promised() -> bool:
    """Libraries on a GPU add up in any order unless ``deterministic`` is ``more``."""
    return not str(config.device).startswith("cuda") or config.deterministic == "more"


def distance(t: Term, value: Any) -> str:
    """How a value differs from NumPy's by more than rounding explains, or ``""``."""
    if kind(t.dtype) in "biu":
        wrong = np.asarray(value != t.base)
    else:
        with np.errstate(all="ignore"):
            off = np.abs(value.astype("c16") - t.base)
            wrong = ~(off <= t.tolerance())
    if not wrong.any():
        return ""
    at = tuple(int(k[0]) for k in np.nonzero(np.atleast_1d(wrong)))
    where = at if np.ndim(value) else ()
    return f"{value[where]} at {where}, NumPy has {t.base[where]} ({int(wrong.sum())} wrong)"


# -- a failure ------------------------------------------------------------------------------------


def still_wrong(program: Program, mode: Any, rng: np.random.Generator, runs: int = 24) -> str:
    """What is wrong with a program of one output, judged with more runs; ``""``: nothing."""
    try:
        inputs, symbols = variables(program)
        (ref,) = program.outputs
        values = replay(program, symbols, rng, runs)[(ref.at, ref.item)]
    except Exception:
        return ""  # it cannot be judged any more
    term = Term(ref, pick(symbols, ref), values)
    arrays = program.arrays()
    try:
        f = symdnn.function(inputs, [term.v], mode=mode, on_unused_input="ignore")
        got, second = np.asarray(f(*arrays)[0]), np.asarray(f(*arrays)[0])
        plain = evaluate([term.v], dict(zip(inputs, arrays)))[0]
    except Exception as error:
        return f"raises {error_text(error)}"
    return judge(term, got, second, plain)


def alike(said: str, first: str) -> str:
    """``said`` if it is a failure of the kind of ``first``: the same error, or a wrong value."""
    heads = [s.split(":")[0] for s in (said, first)]
    kinds = [h[h.index("raises") :] if "raises" in h else "value" for h in heads]
    return said if kinds[0] == kinds[1] else ""


def report(ctx: Context, program: Program, what: str, mode: Any, flags: Any) -> Failure:
    """The failure, reduced; one that more runs explain as rounding is none."""
    rng = np.random.default_rng(1)

    def wrong(p: Program) -> str:
        return still_wrong(p, mode, rng)

    program = program.pruned()
    found = wrong(program)
    if not found:
        return replace(ctx.fail(what), message="")
    small = reduced(program, lambda p: alike(wrong(p), found))
    tail = [*_flag_lines(flags), *_comparison(small, mode)]
    return ctx.fail(wrong(small) or found, script(small, tail))


def _flag_lines(flags: Any) -> list[str]:
    if not flags:
        return []
    return [f"symdnn.config.change_flags({flags!r}).__enter__()"]


def _comparison(program: Program, mode: Any) -> list[str]:
    _, symbols = variables(program)
    (ref,) = program.outputs
    base = replay(program, symbols, np.random.default_rng(1), 1)[(ref.at, ref.item)][0]
    chosen = mode_text(mode)
    lines = [
        f"f = symdnn.function(inputs, outputs, mode={chosen}, on_unused_input='ignore')",
        "print('compiled', f(*arrays)[0])",
        "from symdnn.graph.evaluate import evaluate",
        "print('by references', evaluate(outputs, dict(zip(inputs, arrays)))[0])",
    ]
    if np.size(base) <= 64:
        lines.append(f"print('NumPy', {np.asarray(base).tolist()!r})")
    return lines


def mode_text(mode: Any) -> str:
    """How one writes the mode."""
    for name in ("fast_compile", "None"):
        if mode == Mode(optimizer=name):
            return f"symdnn.Mode(optimizer={name!r})"
    return "symdnn.Mode()"


AREA = Area("expressions", "expressions", check, in_tests=120, on_device=True)

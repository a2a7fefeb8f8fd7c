"""Making a failing program small: steps cut off, steps passed by, inputs made plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.fuzz.growth import replay
from tests.fuzz.program import Input, Program, Ref, Step, pick, variables

Wrong = Callable[[Program], str]


def reduced(program: Program, wrong: Wrong, budget: int = 120) -> Program:
    """The smallest program found that is still wrong, by at most ``budget`` trials."""
    changed = True
    while changed and budget > 0:
        changed = False
        for candidate in _candidates(program):
            budget -= 1
            if wrong(candidate):
                program, changed = candidate, True
                break
            if budget <= 0:
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    yield from _earlier_outputs(program)
    yield from _cut(program)
    yield from _passed_by(program)
    yield from _plainer(program)


def _earlier_outputs(program: Program) -> Iterator[Program]:
    """An operand of the output instead of it."""
    item = program.items[program.outputs[0].at]
    if isinstance(item, Step):
        for r in dict.fromkeys(item.refs()):
            if isinstance(program.items[r.at], Step):
                yield replace(program, outputs=(r,)).pruned()


def _cut(program: Program) -> Iterator[Program]:
    """A step replaced by an input that has its value."""
    try:
        _, symbols = variables(program)
        values = replay(program, symbols, np.random.default_rng(0), 0)
    except Exception:
        return
    last = program.outputs[0].at
    for k in reversed(range(len(program.items))):
        if k == last or not isinstance(program.items[k], Step):
            continue
        used = {r for i in program.items if isinstance(i, Step) for r in i.refs() if r.at == k}
        if len(used) != 1:
            continue
        (r,) = used
        t: Any = pick(symbols, r).type
        value = np.asarray(values[(r.at, r.item)][0]).astype(t.numpy)
        made = Input(value, t.shape)
        items: list[Any] = list(program.items)
        items[k] = made
        yield _rewired(items, program.outputs, r, Ref(k)).pruned()


def _passed_by(program: Program) -> Iterator[Program]:
    """An operand of a step instead of the step, where the types agree."""
    try:
        _, symbols = variables(program)
    except Exception:
        return
    for k, item in enumerate(program.items):
        if not isinstance(item, Step):
            continue
        for r in dict.fromkeys(item.refs()):
            mine = symbols[k]
            if isinstance(mine, list | tuple) or k == program.outputs[0].at:
                continue
            other = pick(symbols, r)
            if other.type.dtype == mine.type.dtype and other.type.ndim == mine.type.ndim:
                yield _rewired(list(program.items), program.outputs, Ref(k), r).pruned()


def _rewired(items: list[Any], outputs: Any, old: Ref, new: Ref) -> Program:
    def change(r: Ref) -> Ref:
        return new if r == old else r

    moved = [
        i.mapped(change) if isinstance(i, Step) and k > new.at else i for k, i in enumerate(items)
    ]
    return Program(tuple(moved), tuple(map(change, outputs)))


def _plainer(program: Program) -> Iterator[Program]:
    """Inputs in C order, of unknown sizes, of plain values."""
    for k, item in enumerate(program.items):
        if not isinstance(item, Input):
            continue
        if item.layout != "C":
            yield _with(program, k, replace(item, layout="C"))
        looser = tuple(n if n == 1 else None for n in item.static)
        if looser != item.static:
            yield _with(program, k, replace(item, static=looser))
        if item.value.dtype.kind == "f" and item.value.size:
            plain = np.round(item.value.astype("f8"), 1).astype(item.value.dtype)
            if plain.tobytes() != item.value.tobytes():
                yield _with(program, k, replace(item, value=plain))


def _with(program: Program, k: int, item: Input) -> Program:
    items = list(program.items)
    items[k] = item
    return replace(program, items=tuple(items))

"""Random programs as functions of trees, by ``symdnn.jit``: alone, in a loop, in a branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn
from symdnn import control
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.values.tree import flatten
from tests.fuzz.areas import Area, Context, Failure, error_text
from tests.fuzz.expressions import judge, outputs_of, programs
from tests.fuzz.growth import Growth
from tests.fuzz.program import Input, Ref, pick, results_of, script


def check(ctx: Context) -> list[Failure]:
    """Some programs, each as a function of a tree of its arguments."""
    rng = ctx.rng
    grown, failures = programs(ctx, rng)
    for g in grown:
        failures += _check(ctx, g)
    return failures


def _check(ctx: Context, g: Growth) -> list[Failure]:
    terms = outputs_of(g)
    arrays = [i.array() for i in g.items if isinstance(i, Input)]
    tree = _tree(ctx.rng, arrays)
    refs = [t.ref for t in terms]
    way = str(ctx.rng.choice(list(WAYS)))
    f = symdnn.jit(WAYS[way](_function(g, refs)))
    ctx.count("programs")
    try:
        found, again = (f(tree)["found"] for _ in range(2))
    except SymdnnError as error:
        # Sizes that the program's types tell are not told here: a step may need them.
        if any(n is not None for i in g.items if isinstance(i, Input) for n in i.static):
            ctx.count("need static sizes")
            return []
        return [ctx.fail(f"{way}: {error_text(error)}", script(g.program(terms), []))]
    inputs = [g.symbols[k] for k, i in enumerate(g.items) if isinstance(i, Input)]
    plain = evaluate([t.v for t in terms], dict(zip(inputs, arrays)))
    wrong = []
    for t, a, b, wanted in zip(terms, found, again, plain, strict=True):
        what = judge(t, np.asarray(a), np.asarray(b), wanted)
        if what:
            wrong.append(ctx.fail(f"{way}: {what}", script(g.program([t]), [])))
    return wrong


def _tree(rng: np.random.Generator, arrays: list[np.ndarray]) -> Any:
    """The arguments in nested containers; flattening gives them back in their order."""
    tree: Any = list(arrays)
    for _ in range(int(rng.integers(0, 3))):
        at = int(rng.integers(0, len(tree) + 1))
        kind = str(rng.choice(["tuple", "dict", "none", "list"]))
        head, tail = tree[:at], tree[at:]
        inner: Any = {
            "tuple": tuple(tail), "dict": {f"k{n:03}": v for n, v in enumerate(tail)},
            "none": (None, tail), "list": [tail],
        }[kind]  # fmt: skip
        tree = [*head, inner]
    return tree


def _function(g: Growth, refs: list[Ref]) -> Callable[[Any], Any]:
    def run(tree: Any) -> Any:
        results = results_of(g.items, flatten(tree)[0])
        return {"found": [pick(results, r) for r in refs]}

    return run


def _in_branch(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(tree: Any) -> Any:
        yes = control.fori_loop(0, 1, lambda i, v: i >= 0, symdnn.tensor.constant(False))
        return control.cond(yes, f, f, tree)

    return run


def _nested(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    inner = symdnn.jit(f)
    return lambda tree: inner(tree)


def _collected(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As what the second step of a loop collects."""

    def run(tree: Any) -> Any:
        _, found = control.scan(lambda c, _: (c, f(tree)), 0, length=2)
        return {"found": [v[1] for v in found["found"]]}

    return run


WAYS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "jit": lambda f: f, "jit in jit": _nested, "cond": _in_branch, "scan": _collected,
}  # fmt: skip

AREA = Area("jitted", "programs", check, in_tests=12, on_device=True)

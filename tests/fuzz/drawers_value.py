"""Drawers of what picks, sorts, multiplies and is used in networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.drawers_shape import alike, sizes
from tests.fuzz.drawing import Call, call, indices
from tests.fuzz.growth import Growth, Term, check_broadcast

# -- picking and sorting --------------------------------------------------------------------------


def take(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t) if g.chance(0.7) else None
    n = t.shape[a] if a is not None else int(np.prod(t.shape))
    i = indices(g, n, sizes(g, g.integer(0, 2)))
    return call(t, i, a, g.of(["raise", "raise", "wrap"]))


def take_along(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    shape = list(t.shape)
    shape[a] = g.of(g.sizes)
    return call(t, indices(g, t.shape[a], shape), a)


def put_along(g: Growth) -> Call:
    t = g.term((1, 2, 3), kinds="f")
    a = g.axis(t)
    shape = list(t.shape)
    shape[a] = min(1, t.shape[a])
    return call(t, indices(g, t.shape[a], shape), g.number(), a)


def compress(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    return call(g.rng.random(t.shape[a]) < 0.6, t, a)


def choose(g: Growth) -> Call:
    t = g.term((1, 2), kinds="f")
    parts = [t, *(alike(g, t, None) for _ in range(2))]
    return call(indices(g, 3, t.shape, negative=False), parts)


def axis_or_none(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    return call(t, axis=g.axis(t) if g.chance(0.8) else None)


def top(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    a = g.axis(t)
    k = g.integer(1, t.shape[a])
    return call(t, -k if g.chance(0.4) else k, axis=a)


def top_indices(g: Growth) -> Call:
    """Of distinct values: which of equal ones comes first is open."""
    n = max(g.of(g.sizes), 1)
    t = g.fresh((2, n), "float32", g.rng.permutation(2 * n).reshape(2, n).astype("f4"))
    return call(t, g.integer(1, n), axis=1)


def searchsorted(g: Growth) -> Call:
    t = g.term(1, kinds="f")
    edges = np.sort(g.rng.standard_normal(g.integer(0, 9))).astype("f4")
    return call(g.fresh(edges.shape, "float32", edges), t, side=g.of(["left", "right"]))


def unique(g: Growth) -> Call:
    flags = ["return_index", "return_inverse", "return_counts"]
    return call(g.term((1, 2)), **{f: True for f in flags if g.chance(0.3)})


def labels(g: Growth) -> Call:
    n = g.integer(1, 6)
    return call(indices(g, n, sizes(g, 1), negative=False), n)


def bincount(g: Growth) -> Call:
    return call(indices(g, 7, sizes(g, 1), negative=False), minlength=g.integer(0, 9))


def permutation(g: Growth) -> Call:
    p = g.rng.permutation(max(g.of(g.sizes), 1))
    return call(g.fresh(p.shape, "int64", p))


def permute_rows(g: Growth) -> Call:
    t = g.term((1, 2), low=1)
    p = g.rng.permutation(t.shape[-1])
    return call(t, g.fresh(p.shape, "int64", p), g.of([0, 1]))


# -- products -------------------------------------------------------------------------------------


def chain(g: Growth, n: int = 2) -> list[Term]:
    """Matrices whose product there is."""
    parts = [g.term(2, kinds="fic")]
    for _ in range(n - 1):
        rows = parts[-1].shape[1]
        found = [t for t in g.terms if t.ndim == 2 and t.shape[0] == rows and t.kind != "b"]
        fresh = not found or g.chance(0.4)
        parts.append(g.fresh((rows, g.of(g.sizes)), parts[0].dtype) if fresh else g.of(found))
    return parts


def dot(g: Growth) -> Call:
    if g.chance(0.5):
        return call(*chain(g))
    t = g.term((1, 2, 3), kinds="fic")
    other = g.fresh((t.shape[-1],), t.dtype)
    return call(t, other)


def matmul(g: Growth) -> Call:
    t = g.term((2, 3), kinds="fic")
    lead = t.shape[:-2] if g.chance(0.6) else ()
    return call(t, g.fresh((*lead, t.shape[-1], g.of(g.sizes)), t.dtype))


def batched(g: Growth) -> Call:
    t = g.term(3, kinds="fc")
    return call(t, g.fresh((t.shape[0], t.shape[2], g.of(g.sizes)), t.dtype))


def tensordot(g: Growth) -> Call:
    t = g.term((1, 2, 3), kinds="fc")
    n = g.integer(0, t.ndim)
    mine = g.order(t.ndim)[:n]
    shape = [t.shape[a] for a in mine] + [g.of(g.sizes)] * g.integer(0, 1)
    order = g.order(len(shape))
    theirs = [order.index(k) for k in range(n)]
    return call(t, g.fresh([shape[k] for k in order], t.dtype), axes=[mine, theirs])


def einsum(g: Growth) -> Call:
    t = g.term((2, 3), kinds="fc")
    names = [g.of("abc") for _ in t.shape] if len(set(t.shape)) == 1 else list("abc")[: t.ndim]
    size = dict(zip(names, t.shape))
    theirs = [k for k in dict.fromkeys([*names, "d"]) if g.chance(0.6)]
    size["d"] = g.of(g.sizes)
    other = g.fresh([size[k] for k in theirs], t.dtype)
    out = [k for k in dict.fromkeys(names + theirs) if g.chance(0.6)]
    return call(f"{''.join(names)},{''.join(theirs)}->{''.join(out)}", t, other)


def vectors(g: Growth) -> Call:
    t = g.term(1, kinds="fic")
    return call(t, g.term(1, kinds=t.kind))


def kron(g: Growth) -> Call:
    t = g.term((1, 2), kinds="fc")
    return call(t, g.term(t.ndim, kinds=t.kind))


# -- the rest -------------------------------------------------------------------------------------


def cast(g: Growth) -> Call:
    t = g.term()
    among = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool"]
    return call(t, g.of(among if t.kind != "c" else ["complex64", "complex128"]))


def complex(g: Growth) -> Call:
    t = g.term(kinds="f")
    return call(t, g.partner(t, "f"))


def rounding(g: Growth) -> Call:
    return call(g.term(kinds="f"), mode=g.of(["half_to_even", "half_away_from_zero"]))


def several(g: Growth) -> Call:
    t = g.term(kinds="fi")
    others = [g.partner(t, "fi") for _ in range(g.integer(0, 2))]
    check_broadcast([t, *others])
    return call(t, *others)


def softmax(g: Growth) -> Call:
    t = g.term((1, 2, 3, 4), kinds="f")
    return call(t, axis=g.axis(t))


def attention(g: Growth) -> Call:
    t = g.term(4, kinds="f")
    b, h, _, d = t.shape
    keys = g.of(g.sizes)
    key, value = (g.fresh((b, h, keys, n), t.dtype) for n in (d, g.of(g.sizes)))
    masks: list[dict[str, Any]] = [
        {}, {"is_causal": True}, {"causal": "bottom_right"}, {"window": (1, 0)}, {"softcap": 2.0},
    ]  # fmt: skip
    return call(t, key, value, scale=0.5, **masks[g.integer(0, len(masks) - 1)])


def with_row(g: Growth) -> Call:
    t = g.term(2, kinds="f")
    return call(t, g.fresh((t.shape[1],), t.dtype))


def norm(g: Growth) -> Call:
    t = g.term((1, 2, 3), kinds="fc", low=1)
    return call(t, g.of([1, 2, 3, float("inf"), -float("inf"), 0]), axis=g.axis(t))


def probabilities(g: Growth) -> Call:
    t = g.term(kinds="f")
    p = g.rng.uniform(0.05, 0.95, t.shape)
    return call(g.fresh(t.shape, t.dtype, p.astype(t.v.type.numpy)), t)


def with_targets(g: Growth) -> Call:
    """Any numbers, and targets between 0 and 1: beyond, terms cancel."""
    x = g.term(kinds="f")
    t = g.rng.uniform(0, 1, x.shape)
    return call(x, g.fresh(x.shape, x.dtype, t.astype(x.v.type.numpy)))


def vector(g: Growth) -> Call:
    return call([g.term(0) for _ in range(g.integer(1, 4))])


def two_labels(g: Growth) -> Call:
    n = max(g.of(g.sizes), 1)
    return call(indices(g, 5, (n,), negative=False), indices(g, 5, (n,), negative=False))


def classes(g: Growth) -> Call:
    x = g.term(2, "f", low=2)
    b = g.fresh((x.shape[1],), x.dtype)
    return call(x, b, indices(g, x.shape[1], (x.shape[0],), negative=False))


def hierarchy(g: Growth) -> Call:
    """Of two levels, in Theano's arguments."""
    n, width, classes, per_class = (
        g.integer(1, 4),
        g.integer(1, 4),
        g.integer(1, 3),
        g.integer(1, 3),
    )
    draws = [(n, width), (width, classes), (classes,), (classes, width, per_class),
             (classes, per_class)]  # fmt: skip
    x, w1, b1, w2, b2 = (g.fresh(s, "float64", g.rng.uniform(-1, 1, s)) for s in draws)
    return call(x, n, classes * per_class, classes, per_class, w1, b1, w2, b2)

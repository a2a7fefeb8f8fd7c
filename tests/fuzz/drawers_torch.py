"""Drawers of PyTorch's functions; ``oracle_names.py`` has what they mean."""

from __future__ import annotations

import numpy as np

from tests.fuzz.drawers_numpy import parts
from tests.fuzz.drawers_shape import concatenate, expand, moveaxis
from tests.fuzz.drawers_value import rounding
from tests.fuzz.drawing import Call, Drawer, call, factors, indices
from tests.fuzz.growth import Growth, Term, check_broadcast

# -- arithmetic -----------------------------------------------------------------------------------


def added(x: str, a: str, b: str) -> Drawer:
    """``beta x + alpha a b``; letters are sizes, as in ``einsum``."""

    def draw(g: Growth) -> Call:
        sizes = {k: g.of(g.sizes) for k in x + a + b}
        dtype = g.of(g.dtypes or ["float32", "float64"])
        made = [g.fresh([sizes[k] for k in names], dtype) for names in (x, a, b)]
        return call(*made, **{k: g.number() for k in ("beta", "alpha") if g.chance(0.5)})

    return draw


def three(g: Growth) -> Call:
    t = g.term(kinds="f")
    found = [t, g.partner(t, "f"), g.partner(t, "f")]
    check_broadcast(found)
    return call(*found, **({"value": g.number()} if g.chance(0.5) else {}))


def clamped(g: Growth) -> Call:
    t = g.term(kinds="if")
    low, high = g.integer(-2, 1), g.integer(1, 3)
    return call(t, *g.of([(low, high), (low,), (None, high)]))


def bounded(g: Growth) -> Call:
    t = g.term(kinds="if")
    return call(t, g.integer(-2, 3) if g.chance(0.6) else g.partner(t, t.kind))


def kth(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iuf", low=1)
    a = g.axis(t)
    return call(t, g.integer(1, t.shape[a]), a, g.chance(0.5))


# -- shapes ---------------------------------------------------------------------------------------


def swapped(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    return call(t, g.axis(t), g.axis(t))


def repeated(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    if g.chance(0.4):
        return call(t, [g.integer(0, 2) for _ in range(t.shape[a])], a)
    return call(t, g.integer(0, 3), a if g.chance(0.8) else None)


def unflattened(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    sizes = factors(g, t.shape[a])
    if g.chance(0.5) and 0 not in sizes:
        sizes[g.integer(0, len(sizes) - 1)] = -1
    return call(t, a, tuple(sizes))


def unfolded(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    a = g.axis(t)
    return call(t, a, g.integer(1, t.shape[a]), g.integer(1, 3))


# -- by index -------------------------------------------------------------------------------------


def gathered(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    a = g.integer(0, t.ndim - 1)
    shape = [g.integer(1, n) for n in t.shape]
    shape[a] = g.of(g.sizes)
    return call(t, a, indices(g, t.shape[a], shape, negative=False))


def scattered(again: bool) -> Drawer:
    """Into different places, or into some of them ``again``."""

    def draw(g: Growth) -> Call:
        t = g.term((1, 2, 3), "iufc", low=1)
        a = g.integer(0, t.ndim - 1)
        if again:
            at = indices(g, t.shape[a], t.shape, negative=False)
        else:
            order = np.argsort(g.rng.random(t.shape), a)
            at = g.fresh(t.shape, "int64", order)
        src = g.fresh(t.shape, t.dtype)
        return call(t, a, at, src, *(["add"] if not again and g.chance(0.3) else []))

    return draw


def of_rows(source: str, again: bool = True) -> Drawer:
    """Entries of an axis, taken, or given others: a ``scalar``, ``rows``, or nothing."""

    def draw(g: Growth) -> Call:
        t = g.term((1, 2, 3), "iufc", low=1)
        a = g.integer(0, t.ndim - 1)
        n = t.shape[a]
        order = g.rng.permutation(n)[: g.integer(1, n)]
        at = (
            indices(g, n, (g.of(g.sizes),), negative=False)
            if again
            else g.fresh(order.shape, "int64", order)
        )
        if source == "rows":
            shape = [at.shape[0] if d == a else m for d, m in enumerate(t.shape)]
            return call(t, a, at, g.fresh(shape, t.dtype))
        return call(t, a, at, *([g.integer(0, 3)] if source else []))

    return draw


#: PyTorch's words for reductions.
REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


def reduced(rows: bool) -> Drawer:
    """Elements, or whole ``rows``, reduced with values that an index sends to them."""

    def draw(g: Growth) -> Call:
        t = g.term((1, 2, 3), "iuf", low=1)
        a = g.integer(0, t.ndim - 1)
        at = indices(g, t.shape[a], (g.of(g.sizes),) if rows else t.shape, negative=False)
        shape = [at.shape[0] if rows and d == a else m for d, m in enumerate(t.shape)]
        more = {"include_self": False} if g.chance(0.5) else {}
        return call(t, a, at, g.fresh(shape, t.dtype), g.of(REDUCTIONS), **more)

    return draw


def segmented(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iuf", low=1)
    count = g.of(g.sizes) or 1
    ids = indices(g, count, t.shape[:1], negative=False)
    return call(t, ids, *([count] if g.chance(0.5) else []))


def masked(value: bool) -> Drawer:
    def draw(g: Growth) -> Call:
        t = g.term((1, 2, 3))
        mask = g.fresh(t.shape, "bool")
        return call(t, mask, *([g.integer(0, 1)] if value else []))

    return draw


# -- distances, blocks, parts ----------------------------------------------------------------------


def of_shape(sizes: str, count: int = 1) -> Drawer:
    """``count`` new arrays of floats; letters are sizes."""

    def draw(g: Growth) -> Call:
        given = {k: g.of(g.sizes) for k in sizes}
        dtype = g.of(g.dtypes or ["float32", "float64"])
        return call(*[g.fresh([given[k] for k in sizes], dtype) for _ in range(count)])

    return draw


def listed(g: Growth) -> Call:
    """A list of vectors of one dtype."""
    dtype = g.of(["float32", "int64"])
    return call(*[g.fresh([g.integer(1, 3)], dtype) for _ in range(g.integer(1, 3))])


def broadcast(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    other = g.partner(t, t.kind)
    check_broadcast([t, other])
    return call(t, other)


def gamma_of_many(g: Growth) -> Call:
    return call(g.term(kinds="f"), g.integer(1, 3))


def sorted_into(g: Growth) -> Call:
    t = g.term(kinds="f")
    edges = np.sort(g.rng.normal(size=g.integer(0, 4))).astype(t.dtype)
    return call(t, g.fresh(edges.shape, t.dtype, edges), right=g.chance(0.5))


def taken_along(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    a = g.integer(0, t.ndim - 1)
    shape = [g.integer(1, 3) if d == a else n for d, n in enumerate(t.shape)]
    return call(t, indices(g, t.shape[a], shape), a)


def divided(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.integer(0, t.ndim - 1)
    first = g.integer(0, t.shape[a])
    return call(t, (first, t.shape[a] - first), a)


def selected(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iufc", low=1)
    a = g.integer(0, t.ndim - 1)
    shape = [n for d, n in enumerate(t.shape) if d != a]
    return call(t, g.fresh(shape, t.dtype), a, g.integer(0, t.shape[a] - 1))


def sliced(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iufc", low=1)
    a = g.integer(0, t.ndim - 1)
    start, step = g.integer(0, t.shape[a] - 1), g.integer(1, 2)
    shape = [len(range(start, n, step)) if d == a else n for d, n in enumerate(t.shape)]
    return call(t, g.fresh(shape, t.dtype), a, start, None, step)


def on_diagonal(g: Growth) -> Call:
    t = g.term((2,), "iufc")
    offset = g.integer(-1, 1)
    count = np.diagonal(np.empty(t.shape), offset).size
    return call(t, g.fresh([count], t.dtype), offset)


# -- signals --------------------------------------------------------------------------------------


def periodic(*shape: float) -> Drawer:
    def draw(g: Growth) -> Call:
        return call(g.integer(0, 9), g.chance(0.5), *(shape if g.chance(0.5) else ()))

    return draw


def _framed(g: Growth, n_fft: int, dtype: str) -> list[object]:
    """``hop_length``, ``win_length`` and a window without zeros."""
    width = g.of([None, g.integer((n_fft + 1) // 2, n_fft)])
    if g.chance(0.4):
        return [g.integer(1, (n_fft + 1) // 2), width, None]
    weights = g.rng.uniform(0.5, 1.5, width or n_fft).astype(dtype)
    return [g.integer(1, (n_fft + 1) // 2), width, g.fresh(weights.shape, dtype, weights)]


def _real(t: Term) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(t.dtype, t.dtype)


def short_time(g: Growth) -> Call:
    t = g.term((1, 2), "fc", low=2)
    n_fft = g.integer(2, t.shape[-1])
    words = {"normalized": g.chance(0.5), "center": g.chance(0.5)}
    if t.kind == "f" and g.chance(0.5):
        words["onesided"] = False
    return call(t, n_fft, *_framed(g, n_fft, _real(t)), **words)


def back(g: Growth) -> Call:
    t = g.term((2, 3), "c", low=2)
    n_fft = g.of([2 * t.shape[-2] - 2, 2 * t.shape[-2] - 1])
    hop, _, window = _framed(g, n_fft, _real(t))
    window = window if isinstance(window, Term) and window.shape == (n_fft,) else None
    return call(t, n_fft, hop, None, window, normalized=g.chance(0.5), onesided=True,
                **({"length": g.integer(1, 9)} if g.chance(0.4) else {}))  # fmt: skip


DRAWERS: dict[str, Drawer] = {
    "stft": short_time, "istft": back, "kaiser_window": periodic(2.5),
    **{f"{w}_window": periodic() for w in ("bartlett", "blackman", "hamming", "hann")},
    "pairwise_distance": of_shape("nk", 2), "cosine_similarity": of_shape("nk", 2),
    "matrix_exp": of_shape("nn"), "cartesian_prod": listed, "broadcast_tensors": broadcast,
    "mvlgamma": gamma_of_many, "bucketize": sorted_into, "take_along_dim": taken_along,
    "split_with_sizes": divided, "select_scatter": selected, "slice_scatter": sliced,
    "diagonal_scatter": on_diagonal,
    "addmm": added("np", "nm", "mp"), "addmv": added("n", "nm", "m"), "addr": added("nm", "n", "m"),
    "baddbmm": added("bnp", "bnm", "bmp"), "addbmm": added("np", "bnm", "bmp"),
    "mv": lambda g: (lambda args: call(*args[1:]))(added("n", "nm", "m")(g)[0]),
    "addcmul": three, "addcdiv": three, "clamp": clamped, "clamp_min": bounded,
    "clamp_max": bounded, "around": rounding, "kthvalue": kth, "cat": concatenate,
    "movedim": moveaxis, "swapdims": swapped, "unsqueeze": expand, "repeat_interleave": repeated,
    "tensor_split": parts(None, False), "unflatten": unflattened, "unfold": unfolded,
    "gather": gathered, "scatter": scattered(False), "scatter_add": scattered(True),
    "scatter_reduce": reduced(False),
    "index_reduce": reduced(True), "segment_sum": segmented, "segment_prod": segmented,
    "segment_max": segmented, "segment_min": segmented,
    "index_select": of_rows(""), "index_add": of_rows("rows"),
    "index_copy": of_rows("rows", False), "index_fill": of_rows("scalar"),
    "masked_fill": masked(True), "masked_select": masked(False),
}  # fmt: skip

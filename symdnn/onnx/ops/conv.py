"""Convolutions over any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.dims import ceil_div, dim_max
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv import Conv, grad_input


class Window:
    """The sizes of a sliding window: kernel, strides, dilations, and padding before and after."""

    def __init__(
        self, kernel: Sequence[int], strides: Any, dilations: Any, pads: Sequence[tuple[Any, Any]]
    ) -> None:
        n = len(kernel)
        self.kernel = [int(k) for k in kernel]
        self.strides = [int(s) for s in strides] if strides else [1] * n
        self.dilations = [int(d) for d in dilations] if dilations else [1] * n
        self.pads = list(pads)


def window_of(node: Node, kernel: Sequence[int], spatial: Sequence[Any]) -> Window:
    """The window of a convolution or pooling, with ``auto_pad`` worked out for these sizes."""
    n = len(kernel)
    if len(spatial) != n:
        raise node.error(f"a window of {n} dimension(s) over {len(spatial)}")
    strides, dilations = node.attribute("strides"), node.attribute("dilations")
    for name, given, least in (("strides", strides, 1), ("dilations", dilations, 1),
                               ("kernel_shape", kernel, 1)):  # fmt: skip
        if given is not None and (len(given) != n or min(given, default=1) < least):
            raise node.error(f"{name} {list(given)}: wanted {n} numbers of at least {least}")
    pads = node.attribute("pads")
    if pads is not None and len(pads) != 2 * n:
        raise node.error(f"pads {list(pads)}: wanted {2 * n} numbers")
    auto = node.attribute("auto_pad", "NOTSET")
    window = Window(kernel, strides, dilations, [(0, 0)] * n)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        window.pads = [_same(node, d, window, i, auto) for i, d in enumerate(spatial)]
    elif auto == "NOTSET" and pads is not None:
        window.pads = [(int(b), int(a)) for b, a in zip(pads[:n], pads[n:])]
    elif auto not in ("NOTSET", "VALID"):
        raise node.error(f"auto_pad {auto!r}")
    return window


def _same(node: Node, size: Any, window: Window, i: int, auto: str) -> tuple[Any, Any]:
    """The padding with which the result has ``size / stride`` elements."""
    stride, reach = window.strides[i], (window.kernel[i] - 1) * window.dilations[i] + 1
    if isinstance(size, Variable) and stride == 1:
        total: Any = reach - 1
    else:
        size = node.size(size, "a size that decides the padding")
        total = dim_max((ceil_div(size, stride) - 1) * stride + reach - size, 0)
    small = total // 2
    return (small, total - small) if auto == "SAME_UPPER" else (total - small, small)


def convolution(
    x: Variable, w: Variable, b: Variable | None, window: Window, groups: int
) -> Variable:
    """Cross-correlation of (N, C, ...) with filters (M, C / groups, ...), plus a bias."""
    rank = len(window.kernel)
    if rank > 3:
        return _by_slices(x, w, b, window, groups)
    if any(isinstance(p, Variable) for pair in window.pads for p in pair):
        x = T.pad(x, [(0, 0), (0, 0), *window.pads], constant_values=np.asarray(0, x.type.numpy))
        window = Window(window.kernel, window.strides, window.dilations, [(0, 0)] * rank)
    pads = [(int(p), int(q)) for p, q in window.pads]
    if any(p < 0 or q < 0 for p, q in pads):
        parts = [slice(None)] * 2 + [slice(max(-p, 0), None if q >= 0 else q) for p, q in pads]
        x, pads = x[tuple(parts)], [(max(p, 0), max(q, 0)) for p, q in pads]
    op = Conv(tuple(pads), tuple(window.strides), tuple(window.dilations), groups, False)
    return with_bias(op(x, w), b)


def with_bias(y: Variable, b: Variable | None) -> Variable:
    """``y`` with a bias for each channel."""
    return y if b is None else y + b.dimshuffle("x", 0, *["x"] * (y.ndim - 2))


def _by_slices(
    x: Variable, w: Variable, b: Variable | None, window: Window, groups: int
) -> Variable:
    """A convolution over four dimensions or more: a product for each place of the window."""
    x = T.pad(x, [(0, 0), (0, 0), *window.pads], constant_values=np.asarray(0, x.type.numpy))
    sizes = dims_of(x)[2:]
    total: Variable | None = None
    for place in np.ndindex(*window.kernel):
        parts: list[Any] = [slice(None)] * 2
        for i, k in enumerate(place):
            reach = (window.kernel[i] - 1) * window.dilations[i]
            start = k * window.dilations[i]
            parts.append(slice(start, sizes[i] - reach + start, window.strides[i]))
        piece = x[tuple(parts)]
        n, c, *rest = dims_of(piece)
        grouped = piece.reshape((n, groups, c // groups, *rest))
        filters = w[(slice(None), slice(None), *place)]
        filters = filters.reshape((groups, dims_of(w)[0] // groups, c // groups))
        letters = "uvwxyz"[: len(rest)]
        term = T.einsum(f"ngc{letters},gmc->ngm{letters}", grouped, filters)
        total = term if total is None else total + term
    assert total is not None, "a window has at least one place"
    out = dims_of(total)
    return with_bias(total.reshape((out[0], dims_of(w)[0], *out[3:])), b)


def _static_kernel(node: Node, w: Variable) -> list[int]:
    kernel = list(w.type.shape[2:])
    given = node.attribute("kernel_shape")
    if given is not None:
        if any(k is not None and k != g for k, g in zip(kernel, given)) or len(given) != len(
            kernel
        ):
            raise node.error(f"kernel_shape {list(given)}, and filters of shape {w.type.shape}")
        return [int(g) for g in given]
    if None in kernel:
        return [int(node.settled(d, "the size of the filters")) for d in dims_of(w)[2:]]
    return kernel  # type: ignore[return-value]


def conv_of(node: Node, x: Variable, w: Variable, b: Variable | None) -> Variable:
    """A convolution by the attributes of ``node``."""
    if x.ndim < 3 or w.ndim != x.ndim:
        raise node.error(f"an input of {x.ndim} and filters of {w.ndim} dimensions")
    window = window_of(node, _static_kernel(node, w), dims_of(x)[2:])
    groups = int(node.attribute("group", 1))
    if groups < 1:
        raise node.error(f"group {groups}")
    return convolution(x, w, b, window, groups)


def conv_op(node: Node, x: Variable, w: Variable) -> Conv | None:
    """The op of a convolution of 1 to 3 dimensions; None for another, or one padded by sizes."""
    n = x.ndim - 2
    if not 1 <= n <= 3 or w.ndim != x.ndim:
        return None
    window = window_of(node, _static_kernel(node, w), dims_of(x)[2:])
    if any(isinstance(p, Variable) or p < 0 for pair in window.pads for p in pair):
        return None
    groups = int(node.attribute("group", 1))
    pads = tuple((int(a), int(b)) for a, b in window.pads)
    return Conv(pads, tuple(window.strides), tuple(window.dilations), groups, False)


def _conv(node: Node) -> Variable:
    return conv_of(node, node.x(), node.x(1), node.optional(2))


def _conv_transpose(node: Node) -> Variable:
    x, w = node.x(), node.x(1)
    kernel = _static_kernel(node, w)
    rank, groups = len(kernel), int(node.attribute("group", 1))
    strides = node.attribute("strides") or [1] * rank
    dilations = node.attribute("dilations") or [1] * rank
    extra = node.attribute("output_padding") or [0] * rank
    shape = node.attribute("output_shape")
    sizes = dims_of(x)[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    full = [(n - 1) * s + e + r for n, s, e, r in zip(sizes, strides, extra, reach)]
    pads = _transposed_pads(node, full, [e + r - s for e, r, s in zip(extra, reach, strides)],
                            shape, rank)  # fmt: skip
    op = Conv(tuple((0, 0) for _ in range(rank)), tuple(strides), tuple(dilations), groups, False)
    # Without padding first; padding then cuts the ends off, and may be larger than the filters.
    inner = [(n - 1) * s + r for n, s, r in zip(sizes, strides, reach)]
    if rank <= 3:
        plain = _padded_gradient(op, w, x, pads, inner, full, strides, reach)
        if plain is not None:
            return with_bias(plain, node.optional(2))
        y = grad_input(op, w, x, inner)
    else:
        raise node.error(f"a transposed convolution over {rank} dimensions")
    grown = [(0, 0), (0, 0), *((0, f - i) for f, i in zip(full, inner))]
    if any(isinstance(g, Variable) or g for _, g in grown):
        y = T.pad(y, grown, constant_values=np.asarray(0, y.type.numpy))
    negative = [(max(-b, 0), max(-a, 0)) for b, a in pads]
    if any(b or a for b, a in negative):
        y = T.pad(y, [(0, 0), (0, 0), *negative], constant_values=np.asarray(0, y.type.numpy))
        pads = [(max(b, 0), max(a, 0)) for b, a in pads]
    cut = tuple(slice(b, -a if a else None) for b, a in pads)
    return with_bias(y[(slice(None), slice(None), *cut)], node.optional(2))


def _padded_gradient(
    op: Conv, w: Variable, x: Variable, pads: Sequence[tuple[int, int]], inner: Any, full: Any,
    strides: Any, reach: Any,
) -> Variable | None:  # fmt: skip
    """The transposed convolution as the gradient of one with this padding, if it is one."""
    if any(not isinstance(n, int) for p in pads for n in p):
        return None
    wanted = [f - b - a for f, (b, a) in zip(full, pads)]
    for f, i, (b, a), s, r in zip(full, inner, pads, strides, reach):
        grown = f - i
        if isinstance(grown, Variable) or b < 0 or a < 0 or b >= r or a >= r or grown >= s:
            return None
    padded = Conv(tuple(pads), op.stride, op.dilation, op.groups, False)
    return grad_input(padded, w, x, wanted)


def _transposed_pads(
    node: Node, full: list[Any], same: list[int], shape: Any, rank: int
) -> list[tuple[int, int]]:
    """How much of each end of the full result is cut off; ``same`` is both for ``n * stride``."""
    auto = node.attribute("auto_pad", "NOTSET")
    if shape is not None:
        totals = [f - w for f, w in zip(full, list(shape)[-rank:])]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = list(same)
    else:
        pads = node.attribute("pads") or [0] * (2 * rank)
        return [(int(b), int(a)) for b, a in zip(pads[:rank], pads[rank:])]
    found = []
    for total in totals:
        if isinstance(total, Variable):
            total = int(node.settled(total, "the padding"))
        small = total // 2
        found.append((total - small, small) if auto != "SAME_UPPER" else (small, total - small))
    return found


def _col2im(node: Node) -> Variable:
    """Blocks added to the places of an image from which they may have been taken."""
    x = node.x()
    image, block = node.ints(1, "the image's shape"), node.ints(2, "the block's shape")
    rank = len(block)
    strides = node.attribute("strides") or [1] * rank
    dilations = node.attribute("dilations") or [1] * rank
    pads = node.attribute("pads") or [0] * (2 * rank)
    wide = [i + pads[k] + pads[rank + k] for k, i in enumerate(image)]
    counts = [(w - d * (b - 1) - 1) // s + 1 for w, d, b, s in zip(wide, dilations, block, strides)]
    n, lead, _ = dims_of(x)
    channels = lead // int(np.prod(block))
    y = x.reshape((n, channels, *block, *counts))
    out = T.zeros((n, channels, *wide), dtype=x.type.dtype)
    for place in np.ndindex(*block):
        parts: list[Any] = [slice(None)] * 2
        for k, p in enumerate(place):
            start = p * dilations[k]
            parts.append(slice(start, start + (counts[k] - 1) * strides[k] + 1, strides[k]))
        out = T.inc_subtensor(out[tuple(parts)], y[(slice(None), slice(None), *place)])
    cut = tuple(slice(pads[k], pads[k] + i) for k, i in enumerate(image))
    return out[(slice(None), slice(None), *cut)]


OPS: dict[str, Any] = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Col2Im": _col2im}

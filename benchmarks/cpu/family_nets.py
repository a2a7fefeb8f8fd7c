"""The families of :mod:`benchmarks.cpu.survey_families` of moves, windows, products of small
matrices, losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.family_rows import Texts, each, made, row_of
from benchmarks.cpu.nest import Nest, np
from benchmarks.cpu.survey_wide import graded, shape_text

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """Their rows."""
    for family in (_rearranged, _windows, _small_matrices, _losses):
        yield from family()


def _rearranged() -> Iterator[Nest]:
    for shape in ((300, 1000), (20, 30, 500), (12, 13, 40, 41), (30, 20)):
        last, mark, m = len(shape) - 1, shape_text(shape), len(shape)
        x, y = made(*shape), made(*shape, seed=1)
        widths = ((0, 0),) * (m - 1) + ((2, 3),)
        both = ((1, 2),) * 2 + ((0, 0),) * (m - 2)
        table: list[tuple[str, Texts]] = [
            ("repeat 0", ("xp.repeat(x, 3, 0)",
                "x.repeat_interleave(3, 0)") + ("xp.repeat(x, 3, 0)",) * 2),
            ("repeat last", (f"xp.repeat(x, 3, {last})",
                f"x.repeat_interleave(3, {last})") + (f"xp.repeat(x, 3, {last})",) * 2),
            ("repeat 1", ("xp.repeat(x, 2, 1)",
                "x.repeat_interleave(2, 1)") + ("xp.repeat(x, 2, 1)",) * 2),
            ("tile", (f"xp.tile(x, {(2,) * m})",) * 4),
            ("stack 6", ("xp.stack([x, y, x, y, x, y], 1)",) * 4),
            ("stack last", (f"xp.stack([x, y], {last + 1})",) * 4),
            ("concat 8 first", ("xp.concatenate([x, y, x, y, x, y, x, y], 0)",) * 4),
            ("concat 8 last", (f"xp.concatenate([x, y, x, y, x, y, x, y], {last})",) * 4),
            ("concat slices", ("xp.concatenate([x[:, 1:], x[:, :1]], 1)",) * 4),
            ("pad last", (f"xp.pad(x, {widths})", "F.pad(x, (2, 3))") + (f"xp.pad(x, {widths})",
                ) * 2),
            ("pad first", (f"xp.pad(x, {both})", None) + (f"xp.pad(x, {both})",) * 2),
            ("pad symmetric", (f"xp.pad(x, {widths}, mode='symmetric')",
                None) + (f"xp.pad(x, {widths}, mode='symmetric')",) * 2),
            ("roll two", (f"xp.roll(x, (3, 5), (0, {last}))",) * 4),
            ("swap", (f"xp.swapaxes(x, 0, {last}) + 1",) * 4),
            ("swap first", ("xp.swapaxes(x, 0, 1) * 2",) * 4),
            ("interleave", (f"xp.stack([x, y], {last + 1}).reshape({(*shape[:-1], 2 * shape[-1])})",
                ) * 4),
            ("halves swapped", ("xp.concatenate([x[shape // 2:], x[:shape // 2]])".replace("shape",
                str(shape[0])),) * 4),
            ("differences", ("x[1:] - x[:-1]",) * 4),
            ("differences last", ("x[..., 1:] - x[..., :-1]",) * 4),
            ("neighbours", ("x[2:] + x[:-2] - 2 * x[1:-1]",) * 4),
            ("even odd", ("x[..., ::2] * 2 - x[..., 1:2 * (x.shape[-1] // 2):2].sum()",) * 4),
            ("reversed steps", ("xp.flip(x, 0)[::2] + 1",
                "torch.flip(x, (0,))[::2] + 1") + ("xp.flip(x, 0)[::2] + 1",) * 2),
            ("set border", ("T.set_subtensor(x[:, 0], 0)", "x.index_fill(1, torch.tensor([0]), 0)",
                "x.at[:, 0].set(0)", None)),
            ("set block", ("T.set_subtensor(x[1:5, ::2], y[1:5, ::2])",
                "x.clone().index_put_((torch.arange(1, 5)[:, None],"
                " torch.arange(0, x.shape[1], 2)), y[1:5, ::2])",
                "x.at[1:5, ::2].set(y[1:5, ::2])", None)),
            ("add block", ("T.inc_subtensor(x[1:, 2:], y[1:, 2:])", None,
                "x.at[1:, 2:].add(y[1:, 2:])", None)),
            ("diagonal", ("xp.diagonal(x).sum()",
                "torch.diagonal(x).sum()") + ("xp.diagonal(x).sum()",) * 2),
        ]  # fmt: skip
        for name, texts in table:
            row = each(f"move {name} {mark}", (x, y), texts)
            yield row
            if name in ("repeat last", "tile", "roll two", "differences", "differences last",
                "neighbours", "concat slices", "interleave",
                        "even odd", "swap", "pad last", "reversed steps", "diagonal"):  # fmt: skip
                yield graded(row)


def _windows() -> Iterator[Nest]:
    """Convolutions and pools of odd strides, dilations and groups; enlarged images."""
    for c, k, size, kernel, stride, dilation, groups in (
        (16, 24, 32, 3, 1, 1, 1), (16, 24, 32, 3, 2, 1, 1), (16, 24, 32, 3, 3, 1, 1), (16, 24, 32,
            3, 1, 2, 1),
        (16, 24, 33, 3, 2, 3, 1), (16, 32, 32, 5, 1, 1, 4), (24, 24, 30, 3, 1, 1, 8), (32, 32, 32,
            3, 1, 1, 32),
        (32, 32, 32, 5, 2, 1, 32), (32, 32, 32, 3, 1, 2, 32), (32, 64, 32, 3, 1, 1, 32), (3, 32, 64,
            7, 2, 1, 1),
        (64, 64, 16, 1, 1, 1, 1), (64, 64, 16, 1, 2, 1, 1), (1, 8, 40, 3, 1, 1, 1), (8, 1, 40, 3, 1,
            1, 1),
        (16, 16, 32, 2, 2, 1, 1), (16, 16, 32, 4, 1, 1, 2),
    ):  # fmt: skip
        x, w = made(4, c, size, size), made(k, c // groups, kernel, kernel, seed=1)
        pad = dilation * (kernel // 2)
        how = f"stride={stride}, padding={pad}, dilation={dilation}, groups={groups}"
        mark = f"{c}to{k} {size} k{kernel} s{stride} d{dilation} g{groups}"
        jax_ = (
            f"jax.lax.conv_general_dilated(x, y, ({stride},) * 2, (({pad}, {pad}),) * 2,"
            f" rhs_dilation=({dilation},) * 2, feature_group_count={groups})"
        )
        row = row_of(
            f"conv2d {mark}",
            (x, w),
            f"nn.functional.conv2d(x, y, {how})",
            f"F.conv2d(x, y, {how})",
            jax_,
            None,
            static=True,
        )
        yield row
        yield graded(row)
        other = Nest(f"{row.name} filter", row.arrays, row.symdnn, row.torch, row.jax, static=True)
        yield graded(other, 1)
    for c, size, kernel, groups in (
        (32, (8, 16, 16), 3, 32),
        (16, (8, 12, 12), 5, 16),
        (16, (6, 14, 15), 3, 4),
        (32, (8, 16, 16), (1, 3, 3), 32),
        (32, (8, 16, 16), (3, 1, 1), 32),
    ):
        sizes = (kernel,) * 3 if isinstance(kernel, int) else kernel
        x, w = made(2, c, *size), made(c, c // groups, *sizes, seed=1)
        pad = tuple(n // 2 for n in sizes)
        row = row_of(f"conv3d {c} {size} k{sizes} g{groups}", (x, w),
            f"nn.functional.conv3d(x, y, padding={pad}, groups={groups})",
                   f"F.conv3d(x, y, padding={pad}, groups={groups})", None, None,
                       static=True)  # fmt: skip
        yield row
        yield graded(row)
        yield graded(Nest(f"{row.name} filter", row.arrays, row.symdnn, row.torch, static=True), 1)
    for c, n, kernel, stride, dilation, groups in (
        (16, 200, 3, 1, 1, 1),
        (64, 300, 5, 1, 2, 64),
        (64, 300, 9, 2, 1, 64),
        (32, 400, 3, 1, 8, 1),
        (8, 2000, 25, 1, 1, 8),
    ):
        x, w = made(8, c, n), made(c, c // groups, kernel, seed=1)
        pad = dilation * (kernel // 2)
        how = f"stride={stride}, padding={pad}, dilation={dilation}, groups={groups}"
        row = row_of(f"conv1d {c} {n} k{kernel} s{stride} d{dilation} g{groups}", (x, w),
            f"nn.functional.conv1d(x, y, {how})",
                   f"F.conv1d(x, y, {how})", None, None, static=True)  # fmt: skip
        yield row
        yield graded(row)
        yield graded(Nest(f"{row.name} filter", row.arrays, row.symdnn, row.torch, static=True), 1)
    layers: list[tuple[str, tuple[int, ...], str]] = [
        *((f"max_pool2d {k}/{s}", (4, 16, 33, 35), f"max_pool2d(x, {k}, {s}, {p})") for k, s,
            p in ((2, 1, 0), (3, 2, 1), (5, 3, 2), (7, 1, 3), ((1, 4), (1, 2), 0), ((3, 1), 1, 0))),
        *((f"avg_pool2d {k}/{s}", (4, 16, 33, 35), f"avg_pool2d(x, {k}, {s}, {p})") for k, s,
            p in ((2, 1, 0), (3, 2, 1), (5, 3, 2), (7, 1, 3), ((1, 4), (1, 2), 0))),
        *((f"max_pool1d {k}/{s}", (8, 16, 1000), f"max_pool1d(x, {k}, {s})") for k, s in ((2, 2),
            (5, 1), (9, 4))),
        *((f"{m}_pool3d", (2, 8, 12, 14, 16), f"{m}_pool3d(x, 3, 2)") for m in ("max", "avg")),
        *((f"adaptive_{m}_pool2d {k}", (4, 16, 33, 35),
            f"adaptive_{m}_pool2d(x, {k})") for m in ("avg", "max") for k in (1, 3, 8)),
        *((f"interpolate {m} {s}", (4, 8, 30, 32),
            f"interpolate(x, scale_factor={s}, mode='{m}')") for m in ("nearest", "bilinear",
                "bicubic") for s in (2, 3, 0.5)),
        ("unfold 3", (4, 8, 30, 30), "unfold(x, 3)"), ("unfold 2/2", (4, 8, 30, 30),
            "unfold(x, 2, stride=2)"),
        ("fold", (4, 72, 784), "fold(x, (30, 30), 3)"), ("pixel_unshuffle", (4, 8, 30, 30),
            "pixel_unshuffle(x, 3)"),
        ("local_response_norm", (4, 16, 30, 30), "local_response_norm(x, 5)"), ("lp_pool2d", (4, 16,
            30, 30), "lp_pool2d(x, 2, 3)"),
        ("group_norm", (8, 30, 15, 15), "group_norm(x, 6)"), ("instance_norm", (8, 30, 15, 15),
            "instance_norm(x)"),
        ("glu", (300, 40, 30), "glu(x, 1)"), ("normalize", (50, 60, 100), "normalize(x, dim=1)"),
    ]  # fmt: skip
    for name, shape, text in layers:
        row = row_of(
            f"layer {name}",
            (made(*shape),),
            f"nn.functional.{text}",
            f"F.{text}",
            None,
            None,
            static=True,
        )
        yield row
        yield graded(row)


def _small_matrices() -> Iterator[Nest]:
    for dtype in ("float32", "float64", "complex64"):
        for batch, a, k, b in ((5000, 2, 2, 2), (5000, 3, 3, 1), (2000, 4, 4, 4), (1000, 5, 7, 6),
            (1000, 8, 8, 8),
                               (300, 16, 16, 16), (100, 33, 17, 9), (5000, 1, 8, 8), (64, 64, 64,
                                   64), (3000, 8, 1, 8)):  # fmt: skip
            x, y = made(batch, a, k, dtype=dtype), made(batch, k, b, dtype=dtype, seed=1)
            mark = f"{dtype} {batch} of {a}x{k}x{b}"
            row = row_of(f"small product {mark}", (x, y), "xp.matmul(x, y)")
            yield row
            if dtype == "float32":
                yield graded(row)
                yield row_of(f"small product shared {mark}", (x, made(k, b)), "xp.matmul(x, y)")
                yield row_of(
                    f"small product turned {mark}",
                    (x, made(batch, b, k)),
                    "xp.matmul(x, xp.swapaxes(y, 1, 2))",
                )
        for m, k, n in (
            (1, 300, 400),
            (300, 400, 1),
            (7, 500, 9),
            (1000, 3, 1000),
            (1000, 1000, 3),
            (30, 30, 30),
            (100, 2000, 10),
        ):
            yield row_of(
                f"product {dtype} {m}x{k}x{n}",
                (made(m, k, dtype=dtype), made(k, n, dtype=dtype)),
                "xp.matmul(x, y)",
            )
    for dtype in ("float32", "float64"):
        for batch, n, right in ((1000, 4, 1), (500, 10, 3), (100, 24, 8), (1, 200, 20)):

            def triangle(batch: int = batch, n: int = n, dtype: str = dtype) -> Any:
                return (
                    np.tril(np.random.default_rng(0).normal(size=(batch, n, n))) + n * np.eye(n)
                ).astype(dtype)

            y = made(batch, n, right, dtype=dtype)
            row = row_of(f"triangular solve {dtype} {batch} of {n}x{right}", (triangle, y),
                "T.linalg.solve_triangular(x, y, lower=True)",
                       "torch.linalg.solve_triangular(x, y, upper=False)",
                           "jax.scipy.linalg.solve_triangular(x, y, lower=True)", None)  # fmt: skip
            yield row
            yield graded(row, 1)


def _losses() -> Iterator[Nest]:
    x, y = made(500, 200), made(500, 200, seed=1)
    for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss",
        "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
            "soft_margin_loss"):  # fmt: skip
        text = f"F.{name}(x, y)"
        row = row_of(
            f"loss {name}", (x, y), f"nn.{text.replace('F.', 'functional.')}", text, None, None
        )
        yield row
        yield graded(row)
    for name in ("elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardtanh",
        "hardswish", "hardsigmoid", "softshrink", "tanhshrink", "logsigmoid", "relu6",
            "leaky_relu"):  # fmt: skip
        row = row_of(f"loss {name}", (x,), f"nn.functional.{name}(x)", f"F.{name}(x)", None, None)
        yield row
        yield graded(row)

"""Rows of :mod:`benchmarks.cpu.nest` of what networks are made of in sizes that nobody tuned:
products of small matrices, convolutions and pooling of odd windows, norms, losses, with gradients.

    python -m benchmarks.cpu.survey_nets --check
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.nest import F, Nest, T, drawn, jax, jnp, main, nn, torch
from benchmarks.cpu.survey import _positive, _whole
from benchmarks.cpu.survey_wide import SIZES, graded, plain_row, shape_text

_Call = Callable[..., Any]


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _products()
    yield from _windows()
    yield from _norms()
    yield from _losses()


def _products() -> Iterator[Nest]:
    for batch, n in ((1, 8), (1000, 4), (200, 16), (50, 64)):
        x, y = drawn(batch, n, n), drawn(batch, n, n, seed=1)
        row = plain_row(
            f"matmul {batch} of {n}x{n}", (x, y), lambda a, b: T.matmul(a, b),
            lambda a, b: a @ b, lambda a, b: a @ b,
        )  # fmt: skip
        yield row
        yield graded(row)
    specs: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
        ("bij,bjk->bik", ((50, 20, 30), (50, 30, 40))),
        ("bhid,bhjd->bhij", ((4, 6, 50, 32), (4, 6, 50, 32))),
        ("bi,bj->bij", ((100, 30), (100, 40))), ("ij,ij->i", ((300, 400), (300, 400))),
        ("ij,jk,kl->il", ((100, 50), (50, 80), (80, 60))),
        ("bijc,ij->bc", ((20, 10, 12, 30), (10, 12))),
        ("ii->i", ((300, 300),)), ("bthd,bshd->bhts", ((4, 40, 6, 32), (4, 50, 6, 32))),
        ("bi,oij,bj->bo", ((30, 20), (15, 20, 25), (30, 25))),
    ]  # fmt: skip
    for spec, shapes in specs:
        arrays = tuple(drawn(*s, seed=n) for n, s in enumerate(shapes))
        row = plain_row(
            f"einsum {spec}", arrays, lambda *a, s=spec: T.einsum(s, *a),
            lambda *a, s=spec: torch.einsum(s, *a), lambda *a, s=spec: jnp.einsum(s, *a),
        )  # fmt: skip
        yield row
        yield graded(row)
    for dtype in ("float32", "float64", "int32", "int64", "float16", "bfloat16"):
        x = (
            drawn(150, 200, dtype=dtype)
            if dtype in ("float32", "float64", "float16")
            else (
                _positive(150, 200, dtype=dtype)
                if dtype == "bfloat16"
                else _whole(dtype, 0, 9, (150, 200))
            )
        )
        yield plain_row(
            f"x @ x.T {dtype}", (x,), lambda v: T.dot(v, v.T), lambda v: v @ v.T, lambda v: v @ v.T
        )
        yield plain_row(
            f"x @ vector {dtype}", (x,), lambda v: T.dot(v, v[0]), lambda v: v @ v[0],
            lambda v: v @ v[0],
        )  # fmt: skip


def _windows() -> Iterator[Nest]:
    convs: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ("conv1d 16x40x200 k5", (16, 40, 200), (30, 40, 5), {}),
        (
            "conv1d 16x40x200 k3 dilated 4",
            (16, 40, 200),
            (40, 40, 3),
            {"dilation": 4, "padding": 4},
        ),
        ("conv1d depthwise k7", (8, 64, 300), (64, 1, 7), {"groups": 64, "padding": 3}),
        ("conv1d 1 channel k31", (8, 1, 4000), (1, 1, 31), {"padding": 15}),
        ("conv2d 8x13x31x29 k3", (8, 13, 31, 29), (17, 13, 3, 3), {"padding": 1}),
        (
            "conv2d grouped",
            (8, 32, 28, 28),
            (64, 8, 3, 3),
            {"groups": 4, "padding": 1, "stride": 2},
        ),
        ("conv2d dilated", (4, 16, 40, 40), (16, 16, 3, 3), {"dilation": 3, "padding": 3}),
        ("conv2d 1 image 1 channel", (1, 1, 200, 300), (1, 1, 5, 5), {"padding": 2}),
        ("conv3d 2x8x12x20x20 k3", (2, 8, 12, 20, 20), (12, 8, 3, 3, 3), {"padding": 1}),
    ]
    for name, xs, ws, how in convs:
        nd = len(xs) - 2
        ours = ("conv1d", "conv2d", "conv3d")[nd - 1]

        def each(value: Any, nd: int = nd) -> Any:
            return (value,) * nd

        def own(v: Any, w: Any, ours: str = ours, how: Any = how, each: Any = each) -> Any:
            return getattr(T.nnet, ours)(
                v, w, border_mode=each(how.get("padding", 0)), subsample=each(how.get("stride", 1)),
                filter_dilation=each(how.get("dilation", 1)), num_groups=how.get("groups", 1),
                filter_flip=False,
            )  # fmt: skip

        def theirs(v: Any, w: Any, ours: str = ours, how: Any = how) -> Any:
            return getattr(F, ours)(v, w, **how)

        def third(v: Any, w: Any, how: Any = how, each: Any = each) -> Any:
            pad = how.get("padding", 0)
            return jax.lax.conv_general_dilated(
                v, w, each(how.get("stride", 1)), each((pad, pad)),
                rhs_dilation=each(how.get("dilation", 1)),
                feature_group_count=how.get("groups", 1),
            )  # fmt: skip

        row = plain_row(name, (drawn(*xs), drawn(*ws, seed=1)), own, theirs, third, static=True)
        yield row
        yield graded(row, 0)
        yield graded(Nest(f"{name} filter", row.arrays, own, theirs, third, static=True), 1)
    x = drawn(4, 16, 20, 22)
    row = plain_row(
        "conv2d transposed k4 s2", (x, drawn(16, 8, 4, 4)),
        lambda v, w: T.nnet.conv2d_transpose(v, w, (4, 8, 40, 44), None, (1, 1), (2, 2), False),
        lambda v, w: F.conv_transpose2d(v, w, stride=2, padding=1), None, static=True,
    )  # fmt: skip
    yield row
    yield graded(row)
    for mode in ("max", "average_inc_pad"):
        for ws, st, pd in ((3, 2, 1), (5, 1, 2), (7, 7, 0), (3, 3, 0)):
            torch_name = "max_pool2d" if mode == "max" else "avg_pool2d"
            row = plain_row(
                f"{mode} pool {ws}/{st} pad {pd}", (drawn(8, 24, 35, 33),),
                lambda v, k=ws, s=st, p=pd, m=mode: T.signal.pool.pool_2d(
                    v, (k, k), ignore_border=True, stride=(s, s), pad=(p, p), mode=m),
                lambda v, k=ws, s=st, p=pd, n=torch_name: getattr(F, n)(v, k, s, p),
                None,
            )  # fmt: skip
            yield row
            yield graded(row)
    row = plain_row(
        "max pool 3d", (drawn(2, 8, 16, 20, 20),),
        lambda v: T.signal.pool.pool_3d(v, (2, 2, 2), ignore_border=True),
        lambda v: F.max_pool3d(v, 2), None,
    )  # fmt: skip
    yield row
    yield graded(row)
    for mode in ("nearest", "bilinear"):
        row = plain_row(
            f"upsampled {mode}", (drawn(4, 16, 24, 20),),
            lambda v, m=mode: nn.Upsample(scale_factor=2, mode=m)(v),
            lambda v, m=mode: F.interpolate(v, scale_factor=2, mode=m),
            lambda v, m=mode: jax.image.resize(v, (4, 16, 48, 40), m), static=True,
        )  # fmt: skip
        yield row
        yield graded(row)
    row = plain_row(
        "adaptive average 7x5", (drawn(4, 16, 24, 20),),
        lambda v: nn.AdaptiveAvgPool2d((7, 5))(v), lambda v: F.adaptive_avg_pool2d(v, (7, 5)), None,
        static=True,
    )  # fmt: skip
    yield row
    yield graded(row)


def _norms() -> Iterator[Nest]:
    for shape in ((2, 6, 5, 5), (8, 32, 20, 22), (32, 64, 56, 56)):
        x, g, b = drawn(*shape), drawn(shape[1]), drawn(shape[1], seed=2)
        mark = f"{shape_text(shape)}"
        table: list[tuple[str, _Call, _Call]] = [
            ("group norm", lambda v, g, b: T.nnet.group_norm(v, 2, g, b),
             lambda v, g, b: F.group_norm(v, 2, g, b)),
            ("instance norm", lambda v, g, b: T.nnet.instance_norm(v, g, b),
             lambda v, g, b: F.instance_norm(v, weight=g, bias=b)),
            ("batch norm", lambda v, g, b: T.nnet.batch_normalization_train(
                v, g.reshape((1, -1, 1, 1)), b.reshape((1, -1, 1, 1)), "spatial", 1e-5)[0],
             lambda v, g, b: F.batch_norm(v, None, None, g, b, True)),
        ]  # fmt: skip
        for name, ours, torch_ in table:
            row = plain_row(f"{name} {mark}", (x, g, b), ours, torch_, None)
            yield row
            yield graded(row)
    for shape in ((10, 10), (2000, 64), (64, 768), (2500, 4000)):
        x, g, b = drawn(*shape), drawn(shape[1]), drawn(shape[1], seed=2)
        for name, ours, torch_ in (
            ("layer norm", lambda v, g, b: T.nnet.layer_norm(v, g, b),
             lambda v, g, b: F.layer_norm(v, v.shape[1:], g, b)),
            ("rms norm", lambda v, g, b: v / T.sqrt((v * v).mean(-1, keepdims=True) + 1e-5) * g + b,
             lambda v, g, b: F.rms_norm(v, v.shape[1:], g, 1e-5) + b),
        ):  # fmt: skip
            row = plain_row(f"{name} {shape_text(shape)}", (x, g, b), ours, torch_, None)
            yield row
            yield graded(row)


def _losses() -> Iterator[Nest]:
    for shape in SIZES:
        x, y = drawn(*shape), drawn(*shape, seed=1)
        p, q = (
            _positive(*shape, dtype="float32", low=0.05, high=0.95),
            _positive(*shape, dtype="float32", low=0.1, high=0.9),
        )
        k = _whole("int64", 0, shape[1], (shape[0],))
        mark = shape_text(shape)
        table: list[tuple[str, tuple[_Call, ...], _Call, _Call, _Call | None]] = [
            ("bce", (p, q), lambda a, b: T.nnet.binary_crossentropy(a, b).mean(),
             lambda a, b: F.binary_cross_entropy(a, b),
             lambda a, b: -(b * jnp.log(a) + (1 - b) * jnp.log1p(-a)).mean()),
            ("bce of logits", (x, q), lambda a, b: nn.BCEWithLogitsLoss()(a, b),
             lambda a, b: F.binary_cross_entropy_with_logits(a, b),
             lambda a, b: (jax.nn.softplus(a) - a * b).mean()),
            ("kl", (x, p), lambda a, b: nn.KLDivLoss(reduction="batchmean")(
                T.log_softmax(a, axis=1), b),
             lambda a, b: F.kl_div(F.log_softmax(a, 1), b, reduction="batchmean"),
             lambda a, b: (b * (jnp.log(b) - jax.nn.log_softmax(a, 1))).sum() / a.shape[0]),
            ("huber", (x, y), lambda a, b: nn.HuberLoss()(a, b), lambda a, b: F.huber_loss(a, b),
             None),
            ("cosine", (x, y), lambda a, b: (
                1 - (a * b).sum(1) / T.sqrt((a * a).sum(1) * (b * b).sum(1))).mean(),
             lambda a, b: (1 - F.cosine_similarity(a, b, 1)).mean(),
             lambda a, b: (1 - (a * b).sum(1) / jnp.sqrt((a * a).sum(1) * (b * b).sum(1))).mean()),
            ("cross-entropy", (x, k), lambda a, b: nn.CrossEntropyLoss()(a, b),
             lambda a, b: F.cross_entropy(a, b),
             lambda a, b: -jnp.take_along_axis(jax.nn.log_softmax(a, 1), b[:, None], 1).mean()),
            ("smoothed cross-entropy", (x, k),
             lambda a, b: nn.CrossEntropyLoss(label_smoothing=0.1)(a, b),
             lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1), None),
        ]  # fmt: skip
        for name, arrays, ours, torch_, jax_ in table:
            row = plain_row(f"{name} {mark}", arrays, ours, torch_, jax_)
            yield row
            yield graded(row)


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_nets"))

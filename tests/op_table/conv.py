from __future__ import annotations

from itertools import product

import numpy as np
from scipy import signal
from scipy.interpolate import interp1d

from symdnn.ops.nn import conv as C
from symdnn.ops.nn import conv_builders as B
from symdnn.ops.nn.conv_abstract import (
    AbstractConv2d,
    AbstractConv2d_gradInputs,
    AbstractConv2d_gradWeights,
)
from symdnn.ops.nn.neighbours import images2neibs, neibs2images
from symdnn.ops.nn.upsample import bilinear_upsampling
from tests.op_table.record import OpCase, normal


def loop_conv(
    x, w, pad=((0, 0), (0, 0)), stride=(1, 1), dilation=(1, 1), groups=1, flip=True
) -> np.ndarray:
    """Convolution of images by the definition, one output element at a time."""
    x, w = np.asarray(x, "float64"), np.asarray(w, "float64")
    if flip:
        w = w[:, :, ::-1, ::-1]
    x = np.pad(x, ((0, 0), (0, 0), *pad))
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    rows, cols = ((n - k) // s + 1 for n, k, s in zip(x.shape[2:], spans, stride, strict=True))
    outs = len(w) // groups
    depth = w.shape[1]
    y = np.zeros((len(x), len(w), rows, cols))
    for n, o, i, j in product(*map(range, y.shape)):
        first = o // outs * depth
        top, left = i * stride[0], j * stride[1]
        window = x[n, first : first + depth, top : top + spans[0], left : left + spans[1]]
        y[n, o, i, j] = np.sum(window[:, :: dilation[0], :: dilation[1]] * w[o])
    return y


def loop_grad_input(w, dy, rows, cols, **options) -> np.ndarray:
    """Each element of x by the response to a unit impulse."""
    channels = w.shape[1] * options.get("groups", 1)
    dx = np.zeros((len(dy), channels, rows, cols))
    for c, i, j in product(range(channels), range(rows), range(cols)):
        impulse = np.zeros((1, channels, rows, cols))
        impulse[0, c, i, j] = 1
        dx[:, c, i, j] = np.sum(loop_conv(impulse, w, **options) * dy, axis=(1, 2, 3))
    return dx


def loop_grad_weight(x, dy, shape, **options) -> np.ndarray:
    dw = np.zeros(shape)
    for index in np.ndindex(*shape):
        impulse = np.zeros(shape)
        impulse[index] = 1
        dw[index] = np.sum(loop_conv(x, impulse, **options) * dy)
    return dw


def scipy_conv(x, w) -> np.ndarray:
    """True convolution without padding, by SciPy, channel by channel."""
    return np.stack(
        [
            np.stack(
                [
                    sum(
                        signal.convolve(c, k, "valid", "direct")
                        for c, k in zip(image, kernel, strict=True)
                    )
                    for kernel in w
                ]
            )
            for image in x
        ]
    )


def op(cls=C.Conv, padding=((0, 0), (0, 0)), stride=(1, 1), dilation=(1, 1), groups=1, flip=True):
    """An op that takes its host inputs as Python ints."""
    return lambda *dims: (
        lambda a, b: cls(padding, stride, dilation, groups, flip, *([dims] if dims else []))(
            a, b, *(np.int64(d) for d in dims)
        )
    )


def conv2d(**options):
    return lambda x, w: B.conv2d(x, w, **options)


def expected(**options):
    return lambda x, w: loop_conv(x, w, **options)


def _pair(name, build, want, x=(2, 3, 6, 5), w=(4, 3, 3, 2), **more) -> OpCase:
    dtype = more.pop("dtype", "float64")
    draws = (normal(*x, dtype=dtype), normal(*w, dtype=dtype))
    return OpCase(f"conv_{name}", (C.Conv,), build, draws, want, **more)


def interpolate(x, ratio):
    """Linear interpolation at shifted positions, edges continued, by SciPy."""
    for axis in (2, 3):
        n = x.shape[axis]
        at = np.clip((np.arange(n * ratio) - (ratio - 1) // 2) / ratio, 0, n - 1)
        x = interp1d(np.arange(n), x, axis=axis)(at) if n > 1 else np.repeat(x, ratio, axis)
    return x


def loop_neibs(x, size, step, wrap=False) -> np.ndarray:
    rows = []
    n, c, h, w = x.shape
    counts = [-(-n // s) if wrap else (n - k) // s + 1 for n, k, s in zip((h, w), size, step)]
    for image, channel, i, j in product(range(n), range(c), *map(range, counts)):
        corner = np.array([i, j]) * step - (np.array(size) // 2 if wrap else 0)
        a, b = (np.arange(t, t + k) % m for t, k, m in zip(corner, size, (h, w)))
        rows.append(x[image, channel][np.ix_(a, b)].ravel())
    return np.array(rows)


TRICKY = {"pad": ((1, 2), (0, 1)), "stride": (2, 3), "dilation": (2, 1), "groups": 2}
_fields = {"padding": TRICKY["pad"], **{k: TRICKY[k] for k in ("stride", "dilation", "groups")}}

CASES = [
    _pair("valid", conv2d(), scipy_conv),
    _pair("cross", conv2d(filter_flip=False), expected(flip=False)),
    _pair("half", conv2d(border_mode="half"), expected(pad=((1, 1), (1, 1)))),
    _pair(
        "half_known",
        lambda x, w: B.conv2d(x, w, filter_shape=(4, 3, 3, 2), border_mode="half"),
        expected(pad=((1, 1), (1, 1))),
    ),
    _pair("full", conv2d(border_mode="full"), expected(pad=((2, 2), (1, 1)))),
    _pair(
        "full_dilated",
        conv2d(border_mode="full", filter_dilation=(2, 1)),
        expected(pad=((4, 4), (1, 1)), dilation=(2, 1)),
    ),
    _pair("padded", conv2d(border_mode=(2, 1)), expected(pad=((2, 2), (1, 1)))),
    _pair("asymmetric", conv2d(border_mode=((0, 2), (1, 0))), expected(pad=((0, 2), (1, 0)))),
    _pair("stride", conv2d(subsample=(2, 2)), expected(stride=(2, 2))),
    _pair("stride_beyond_kernel", conv2d(subsample=(4, 3)), expected(stride=(4, 3))),
    _pair("dilation", conv2d(filter_dilation=(2, 3)), expected(dilation=(2, 3))),
    _pair("groups", conv2d(num_groups=2), expected(groups=2), x=(2, 4, 5, 4), w=(6, 2, 2, 2)),
    _pair("depthwise", conv2d(num_groups=3), expected(groups=3), x=(2, 3, 5, 4), w=(6, 1, 3, 3)),
    _pair(
        "everything",
        op(**_fields)(),
        expected(**TRICKY),
        x=(2, 4, 6, 7),
        w=(2, 2, 3, 3),
    ),
    _pair("pointwise", conv2d(), scipy_conv, w=(4, 3, 1, 1)),
    _pair("float32", conv2d(), scipy_conv, dtype="float32", rtol=1e-5, grad=False),
    _pair("float16", conv2d(), loop_conv, dtype="float16", rtol=2e-2, grad=False),
    _pair(
        "bfloat16",
        lambda x, w: B.conv2d(x, w).astype("float64"),
        loop_conv,
        dtype="bfloat16",
        rtol=1e-1,
        grad=False,
    ),
    _pair("no_batch", conv2d(), expected(), x=(0, 3, 6, 5), grad=False),
    _pair("no_channels", conv2d(), expected(), x=(2, 0, 6, 5), w=(4, 0, 3, 2), grad=False),
    _pair("no_outputs", conv2d(), expected(), w=(0, 3, 3, 2), grad=False),
    _pair("1d", lambda x, w: B.conv1d(x, w), scipy_conv, x=(2, 3, 7), w=(4, 3, 3)),
    _pair(
        "1d_causal",
        lambda x, w: B.conv1d(x, w, border_mode=((2, 0),), filter_flip=False),
        lambda x, w: scipy_conv(np.pad(x, ((0, 0), (0, 0), (2, 0))), w[:, :, ::-1]),
        x=(2, 3, 7),
        w=(4, 3, 3),
    ),
    _pair(
        "3d",
        lambda x, w: B.conv3d(x, w),
        scipy_conv,
        x=(2, 2, 4, 3, 4),
        w=(2, 2, 2, 3, 2),
    ),
    _pair(
        "3d_stride_pad",
        lambda x, w: B.conv3d(x, w, border_mode=(1, 0, 1), subsample=(2, 1, 2)),
        lambda x, w: scipy_conv(np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0), (1, 1))), w)[
            :, :, ::2, :, ::2
        ],
        x=(2, 2, 3, 3, 3),
        w=(2, 2, 2, 2, 2),
    ),
    OpCase(
        "conv_grad_input",
        (C.ConvGradInput,),
        op(C.ConvGradInput)(5, 4),
        (normal(4, 3, 3, 2), normal(2, 4, 3, 3)),
        lambda w, dy: loop_grad_input(w, dy, 5, 4),
    ),
    OpCase(
        "conv_grad_input_everything",
        (C.ConvGradInput,),
        op(C.ConvGradInput, **_fields)(6, 7),
        (normal(2, 2, 3, 3), normal(2, 2, 3, 2)),
        lambda w, dy: loop_grad_input(w, dy, 6, 7, **TRICKY),
    ),
    OpCase(
        "conv_grad_input_half",
        (C.ConvGradInput,),
        op(C.ConvGradInput, ("half", "full"), flip=False)(5, 4),
        (normal(4, 3, 2, 2), normal(2, 4, 6, 5)),
        lambda w, dy: loop_grad_input(w, dy, 5, 4, pad=((1, 1), (1, 1)), flip=False),
    ),
    OpCase(
        "conv_grad_input_float16",
        (C.ConvGradInput,),
        op(C.ConvGradInput)(5, 4),
        (normal(4, 3, 3, 2, dtype="float16"), normal(2, 4, 3, 3, dtype="float16")),
        lambda w, dy: loop_grad_input(w, dy, 5, 4),
        grad=False,
        rtol=2e-2,
    ),
    OpCase(
        "conv_grad_input_empty",
        (C.ConvGradInput,),
        op(C.ConvGradInput)(5, 4),
        (normal(4, 3, 3, 2), normal(0, 4, 3, 3)),
        lambda w, dy: np.zeros((0, 3, 5, 4)),
        grad=False,
    ),
    OpCase(
        "conv_grad_weight",
        (C.ConvGradWeight,),
        op(C.ConvGradWeight)(3, 2),
        (normal(2, 3, 5, 4), normal(2, 4, 3, 3)),
        lambda x, dy: loop_grad_weight(x, dy, (4, 3, 3, 2)),
    ),
    OpCase(
        "conv_grad_weight_everything",
        (C.ConvGradWeight,),
        op(C.ConvGradWeight, **_fields)(3, 3),
        (normal(2, 4, 6, 7), normal(2, 2, 3, 2)),
        lambda x, dy: loop_grad_weight(x, dy, (2, 2, 3, 3), **TRICKY),
    ),
    OpCase(
        "conv_grad_weight_full",
        (C.ConvGradWeight,),
        op(C.ConvGradWeight, ("full", "half"), flip=False)(2, 3),
        (normal(2, 3, 5, 4), normal(2, 4, 6, 4)),
        lambda x, dy: loop_grad_weight(x, dy, (4, 3, 2, 3), pad=((1, 1), (1, 1)), flip=False),
    ),
    OpCase(
        "conv_grad_weight_empty",
        (C.ConvGradWeight,),
        op(C.ConvGradWeight)(3, 2),
        (normal(0, 3, 5, 4), normal(0, 4, 3, 3)),
        lambda x, dy: np.zeros((4, 3, 3, 2)),
        grad=False,
    ),
    OpCase(
        "conv2d_transpose",
        (C.ConvGradInput,),
        lambda y, w: B.conv2d_transpose(y, w, (None, 3, 7, 6), input_dilation=(2, 2)),
        (normal(2, 4, 3, 3), normal(4, 3, 3, 2)),
        lambda y, w: loop_grad_input(w, y, 7, 6, stride=(2, 2)),
    ),
    OpCase(
        "conv2d_grad_wrt_weights",
        (C.ConvGradWeight,),
        lambda x, dy: B.conv2d_grad_wrt_weights(x, dy, (4, 3, 3, 2), border_mode="half"),
        (normal(2, 3, 5, 4), normal(2, 4, 5, 5)),
        lambda x, dy: loop_grad_weight(x, dy, (4, 3, 3, 2), pad=((1, 1), (1, 1))),
    ),
    OpCase(
        "abstract_conv2d",
        (),
        AbstractConv2d((2, 3, None, None), None, "half", (2, 1)),
        (normal(2, 3, 5, 4), normal(4, 3, 3, 3)),
        lambda x, w: loop_conv(x, w, pad=((1, 1), (1, 1)), stride=(2, 1)),
        grad=False,
    ),
    OpCase(
        "abstract_conv2d_grad_inputs",
        (),
        lambda w, dy: AbstractConv2d_gradInputs(subsample=(2, 2))(w, dy, (6, 5)),
        (normal(4, 3, 3, 2), normal(2, 4, 2, 2)),
        lambda w, dy: loop_grad_input(w, dy, 6, 5, stride=(2, 2)),
        grad=False,
    ),
    OpCase(
        "abstract_conv2d_grad_weights",
        (),
        lambda x, dy: AbstractConv2d_gradWeights(None, (4, 3, None, 2))(x, dy, (3, 2)),
        (normal(2, 3, 5, 4), normal(2, 4, 3, 3)),
        lambda x, dy: loop_grad_weight(x, dy, (4, 3, 3, 2)),
        grad=False,
    ),
    *(
        OpCase(
            f"bilinear_{ratio}_{'1d' if one else '2d'}",
            (C.ConvGradInput,),
            lambda x, ratio=ratio, one=one: bilinear_upsampling(x, ratio, use_1D_kernel=one),
            (normal(2, 2, 3, 2),),
            lambda x, ratio=ratio: interpolate(x, ratio),
            grad=ratio == 2,
        )
        for ratio, one in ((1, True), (2, True), (3, True), (4, False))
    ),
    OpCase(
        "neibs_tiles",
        (),
        lambda x: images2neibs(x, (2, 3)),
        (normal(2, 2, 4, 6),),
        lambda x: loop_neibs(x, (2, 3), (2, 3)),
    ),
    OpCase(
        "neibs_overlap",
        (),
        lambda x: images2neibs(x, (2, 3), (1, 2)),
        (normal(2, 2, 4, 5),),
        lambda x: loop_neibs(x, (2, 3), (1, 2)),
    ),
    OpCase(
        "neibs_ignore",
        (),
        lambda x: images2neibs(x, (2, 3), mode="ignore_borders"),
        (normal(2, 2, 5, 5),),
        lambda x: loop_neibs(x, (2, 3), (2, 3)),
    ),
    OpCase(
        "neibs_wrap",
        (),
        lambda x: images2neibs(x, (3, 3), (2, 1), "wrap_centered"),
        (normal(1, 2, 5, 4),),
        lambda x: loop_neibs(x, (3, 3), (2, 1), wrap=True),
    ),
    OpCase(
        "neibs_half",
        (),
        lambda x: images2neibs(x, (3, 3), (1, 1), "half"),
        (normal(1, 2, 3, 4),),
        lambda x: loop_neibs(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (1, 1)),
    ),
    OpCase(
        "neibs_back",
        (),
        lambda x: neibs2images(images2neibs(x, (2, 3)), (2, 3), (2, 2, 4, 6)),
        (normal(2, 2, 4, 6),),
        lambda x: x,
    ),
    OpCase(
        "neibs_back_borders",
        (),
        lambda x: neibs2images(
            images2neibs(x, (2, 3), mode="ignore_borders"), (2, 3), (2, 2, 5, 7), "ignore_borders"
        ),
        (normal(2, 2, 5, 7),),
        lambda x: np.pad(x[:, :, :4, :6], ((0, 0), (0, 0), (0, 1), (0, 1))),
    ),
]

"""What Theano's older page, on `theano.sandbox.cuda.dnn`, lists, in symdnn: functions and ops.

Normally one calls neither: `T.nnet.conv2d`, `pool_2d` and `softmax` become these ops where cuDNN
is. Runs on the CPU, and with `--device cuda` on a GPU by cuDNN; the results are compared with those
of the interface that knows of no device, on the CPU.
"""

import numpy as np
from samples import Samples, rand

import symdnn
import symdnn.tensor as T
from symdnn.gpu import dnn

SAMPLES = Samples(str(__doc__))
sample = SAMPLES.add


def on_cpu(inputs, outputs):
    """What to compare with: never by cuDNN."""
    return symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cpu"))


def compare_all(f, g, *values: np.ndarray) -> list[float]:
    """Print and return the largest difference of each result of `f`, a dict, from that of `g`."""
    differences = []
    for (name, found), wanted in zip(f(*values).items(), g(*values), strict=True):
        differences.append(float(np.abs(found - wanted).max()))
        print(f"  {name}: {found.shape}, differs by at most {differences[-1]:.1e}")
    return differences


@sample
def required() -> bool:
    """`optimizer_including=cudnn` as a mode: an error says why cuDNN can't be used."""
    x = T.tensor4("x")
    try:
        symdnn.function([x], dnn.dnn_pool(x, (2, 2)), mode=symdnn.Mode().including("cudnn"))
    except symdnn.errors.CudnnRequired as error:
        print(f"  {str(error).splitlines()[0]}")
        return False
    print("  cuDNN is used")
    return True


@sample
def functions() -> list[float]:
    """`dnn_conv` and `dnn_pool` against the interface that knows of no device."""
    x, w = T.tensor4("x"), T.tensor4("w")
    # Both mirror the kernels unless they are told otherwise.
    found = {
        "dnn_conv": dnn.dnn_conv(x, w, subsample=(2, 2)),
        "dnn_conv, cross-correlation": dnn.dnn_conv(x, w, conv_mode="cross"),
        "dnn_pool": dnn.dnn_pool(x, (2, 2), stride=(2, 2)),
    }
    wanted = [
        T.nnet.conv2d(x, w, subsample=(2, 2)),
        T.nnet.conv2d(x, w, filter_flip=False),
        T.signal.pool.pool_2d(x, (2, 2), ignore_border=True),
    ]
    values = rand(2, 3, 9, 9), rand(4, 3, 3, 3, seed=1)
    return compare_all(symdnn.function([x, w], found), on_cpu([x, w], wanted), *values)


@sample
def convolution_ops() -> list[float]:
    """GpuDnnConvDesc, GpuDnnConv, GpuDnnConvGradW, GpuDnnConvGradI, with alpha and beta."""
    x, w, out = T.tensor4("x"), T.tensor4("w"), T.tensor4("out")
    desc = dnn.GpuDnnConvDesc(border_mode="half", subsample=(1, 1), conv_mode="conv")(w.shape)
    y = dnn.GpuDnnConv()(x, w, out, desc)
    found = {
        "GpuDnnConv": y,
        "GpuDnnConv, alpha=2, beta=0.5": dnn.GpuDnnConv()(x, w, out, desc, alpha=2.0, beta=0.5),
        "GpuDnnConvGradW": dnn.GpuDnnConvGradW()(x, y, w, desc),
        "GpuDnnConvGradI": dnn.GpuDnnConvGradI()(w, y, x, desc),
    }
    neutral = T.nnet.conv2d(x, w, border_mode="half")
    wanted = [neutral, 2 * neutral + 0.5 * out, *T.grad((neutral**2).sum() / 2, [w, x])]
    values = rand(2, 3, 8, 8), rand(4, 3, 3, 3, seed=1), rand(2, 4, 8, 8, seed=2)
    return compare_all(symdnn.function([x, w, out], found), on_cpu([x, w, out], wanted), *values)


@sample
def pooling_ops() -> list[float]:
    """GpuDnnPoolDesc, GpuDnnPool, GpuDnnPoolGrad."""
    x, dy = T.tensor4("x"), T.tensor4("dy")
    desc = dnn.GpuDnnPoolDesc(ws=(3, 3), stride=(2, 2), mode="max", pad=(1, 1))
    y = dnn.GpuDnnPool()(x, desc)
    dx = dnn.GpuDnnPoolGrad("max")(x, y, dy, desc.ws, desc.stride, desc.pad)
    neutral = T.signal.pool.pool_2d(x, (3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True)
    wanted = [neutral, T.grad(None, x, known_grads={neutral: dy})]
    f = symdnn.function([x, dy], {"GpuDnnPool": y, "GpuDnnPoolGrad": dx})
    return compare_all(f, on_cpu([x, dy], wanted), rand(2, 3, 8, 8), rand(2, 3, 4, 4, seed=1))


@sample
def softmax_ops() -> list[float]:
    """GpuDnnSoftmax and GpuDnnSoftmaxGrad of four dimensions, along the second."""
    x, dy = T.tensor4("x"), T.tensor4("dy")
    y = dnn.GpuDnnSoftmax("accurate", "channel")(x)
    found = {
        "GpuDnnSoftmax": y,
        "GpuDnnSoftmax, log": dnn.GpuDnnSoftmax("log", "channel")(x),
        "GpuDnnSoftmaxGrad": dnn.GpuDnnSoftmaxGrad("accurate", "channel")(dy, y),
    }
    e = T.exp(x - x.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    wanted = [p, T.log(p), T.grad(None, x, known_grads={p: dy})]
    values = rand(2, 5, 3, 3), rand(2, 5, 3, 3, seed=1)
    return compare_all(symdnn.function([x, dy], found), on_cpu([x, dy], wanted), *values)


main = SAMPLES.main

if __name__ == "__main__":
    raise SystemExit(main())

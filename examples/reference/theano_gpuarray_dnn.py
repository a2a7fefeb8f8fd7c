"""What Theano's page on `theano.gpuarray.dnn` shows, in symdnn: a function for each of its samples.

Runs on the CPU, and with `--device cuda` on a GPU by cuDNN.
"""

import os

import numpy as np
from samples import Samples, rand

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import CudnnRequired
from symdnn.gpu import dnn, gpuarray_shared_constructor
from symdnn.gpu.binding import cudnn_library

SAMPLES = Samples(str(__doc__))
sample = SAMPLES.add


# --- installing and detecting cuDNN ---------------------------------------------------------------


@sample
def paths() -> str:
    """Where cuDNN is looked for: the page's three environment variables, and everywhere else.

    `CPATH` has no counterpart, since no headers are needed.
    """
    for name in ("LD_LIBRARY_PATH", "LIBRARY_PATH"):
        print(f"  {name}={os.environ.get(name, '')}")
    tried = cudnn_library.search()
    print(cudnn_library.listing(tried))
    return next((c.path for c in tried if c.found), "")


@sample
def detection() -> bool:
    """Programs work with and without cuDNN; `dnn_available` says which it is, and why not."""
    available = dnn.dnn_available()
    print(f"  cuDNN {dnn.version()}" if available else f"  no cuDNN: {dnn.dnn_available.msg}")
    return available


@sample
def required() -> str:
    """With `optimizer_including=cudnn`, compiling is an error where cuDNN can't be used."""
    x = T.tensor4("x")
    try:
        with config.change_flags(optimizer_including="cudnn"):
            symdnn.function([x], dnn.dnn_pool(x, (2, 2)))
    except CudnnRequired as error:
        print(f"  {str(error).splitlines()[0]}")
        return str(error)
    print("  cuDNN is used")
    return ""


# --- algorithms -----------------------------------------------------------------------------------


@sample
def forward_algorithms() -> dict[str, np.ndarray]:
    """`dnn.conv.algo_fwd`: each of the page's values, with the result and what really ran."""
    x, w = T.tensor4("x"), T.tensor4("w")
    names = "small none large fft guess_once guess_on_shape_change time_once time_on_shape_change"
    found = {}
    for name in names.split():
        # fallback: for some shapes cuDNN has no FFT, and then another algorithm is taken.
        flags = {"dnn.conv.algo_fwd": name, "dnn.conv.on_unsupported": "fallback"}
        with config.change_flags(**flags):
            f = symdnn.function([x, w], dnn.dnn_conv(x, w))
            found[name] = f(rand(2, 3, 16, 16), rand(4, 3, 5, 5))
        print(f"  {name:24}{_kernel(f)}")
    return found


@sample
def backward_algorithms() -> dict[str, list[np.ndarray]]:
    """`dnn.conv.algo_bwd` for both gradients; `deterministic` gives the same bits each time."""
    x, w = T.tensor4("x"), T.tensor4("w")
    cost = (dnn.dnn_conv(x, w) ** 2).sum()
    names = "none deterministic fft guess_once guess_on_shape_change time_once time_on_shape_change"
    found = {}
    for name in names.split():
        flags = {"dnn.conv.algo_bwd": name, "dnn.conv.on_unsupported": "fallback"}
        with config.change_flags(**flags):
            f = symdnn.function([x, w], T.grad(cost, [x, w]))
            found[name] = f(rand(2, 3, 16, 16), rand(4, 3, 5, 5))
        print(f"  {name:24}{_kernel(f)}")
    return found


def _kernel(f: symdnn.Function) -> str:
    rows = [r for r in f.lowering_report().rows if "Conv" in r.op]
    return ", ".join(f"{r.op.partition('{')[0]} by {r.how}" for r in rows)


# --- the functions of the list --------------------------------------------------------------------


@sample
def convolution() -> list[tuple[int, ...]]:
    """`dnn_conv`, `dnn_conv3d` and the functions that compute their gradients by hand."""
    x, w, v, u = T.tensor4("x"), T.tensor4("w"), T.tensor5("v"), T.tensor5("u")
    y, z = dnn.dnn_conv(x, w, border_mode="half"), dnn.dnn_conv3d(v, u, subsample=(1, 2, 2))
    outputs = [
        y,
        dnn.dnn_gradweight(x, y, w.shape, border_mode="half"),
        dnn.dnn_gradinput(w, y, x.shape, border_mode="half"),
        z,
        dnn.dnn_gradweight3d(v, z, u.shape, subsample=(1, 2, 2)),
        dnn.dnn_gradinput3d(u, z, v.shape, subsample=(1, 2, 2)),
    ]
    f = symdnn.function([x, w, v, u], outputs)
    return _shapes(f(rand(2, 3, 8, 8), rand(4, 3, 3, 3), rand(2, 3, 5, 7, 7), rand(4, 3, 2, 3, 3)))


@sample
def pooling() -> list[tuple[int, ...]]:
    """`dnn_pool`; its stride is 1 unless it is given."""
    x = T.tensor4("x")
    modes = ["max", "average_inc_pad", "average_exc_pad", "sum", "max_deterministic"]
    outputs = [dnn.dnn_pool(x, (2, 2), stride=(2, 2), mode=mode) for mode in modes]
    return _shapes(symdnn.function([x], [*outputs, dnn.dnn_pool(x, (2, 2))])(rand(2, 3, 8, 8)))


@sample
def batch_normalization() -> list[tuple[int, ...]]:
    """Training with running averages, then the use of these."""
    x, gamma, beta = T.tensor4("x"), T.tensor4("gamma"), T.tensor4("beta")
    shape = (1, 3, 1, 1)
    mean = symdnn.shared(np.zeros(shape, "float32"), broadcastable=(True, False, True, True))
    var = symdnn.shared(np.ones(shape, "float32"), broadcastable=(True, False, True, True))
    out, batch_mean, invstd, new_mean, new_var = dnn.dnn_batch_normalization_train(
        x, gamma, beta, mode="spatial", running_mean=mean, running_var=var
    )
    train = symdnn.function(
        [x, gamma, beta], [out, batch_mean, invstd], updates=[(mean, new_mean), (var, new_var)]
    )
    test = symdnn.function(
        [x, gamma, beta],
        dnn.dnn_batch_normalization_test(x, gamma, beta, mean, var, mode="spatial"),
    )
    values = rand(4, 3, 8, 8), np.ones(shape, "float32"), np.zeros(shape, "float32")
    return _shapes([*train(*values), test(*values), mean.get_value()])


@sample
def softmax() -> list[tuple[int, ...]]:
    """`GpuDnnSoftmax` applied by hand: along the channels, or over all of an image; or its log."""
    x = T.tensor4("x")
    wanted = [("fast", "channel"), ("accurate", "instance"), ("log", "channel")]
    outputs = [dnn.GpuDnnSoftmax(algo, mode)(x) for algo, mode in wanted]
    return _shapes(symdnn.function([x], outputs)(rand(2, 3, 4, 4)))


@sample
def spatial_transformer() -> list[tuple[int, ...]]:
    """`dnn_spatialtf`: images half as wide, turned by 90 degrees."""
    img, theta = T.tensor4("img"), T.tensor3("theta")
    f = symdnn.function([img, theta], dnn.dnn_spatialtf(img, theta, scale_width=0.5))
    turn = np.array([[0, -1, 0], [1, 0, 0]], "float32")
    return _shapes([f(rand(2, 3, 8, 8), np.stack([turn, turn]))])


def _shapes(arrays: list[np.ndarray]) -> list[tuple[int, ...]]:
    shapes = [a.shape for a in arrays]
    print("  " + ", ".join(map(str, shapes)))
    return shapes


# --- the example of an RNN ------------------------------------------------------------------------


@sample
def rnn(steps: int = 60) -> tuple[float, float]:
    """The page's RNN example, completed to a training step: loss before and after."""
    dtype = "float32"
    input_dim = 32
    hidden_dim = 16
    batch_size = 2
    depth = 3
    timesteps = 5

    X = T.tensor3("X")
    Y = T.tensor3("Y")
    h0 = T.tensor3("h0")

    rnnb = dnn.RNNBlock(dtype, hidden_dim, depth, "gru")
    psize = rnnb.get_param_size([batch_size, input_dim])
    params_cudnn = gpuarray_shared_constructor(np.zeros((psize,), dtype=config.floatX))

    # Each part by itself: pairs of matrix and bias. They are views, so writing sets the vector.
    rng = np.random.default_rng(1)
    for layer in range(depth):
        params_layer = rnnb.split_params(params_cudnn, layer, [batch_size, input_dim])
        for matrix in params_layer[::2]:
            matrix[:] = rng.uniform(-0.3, 0.3, matrix.shape)

    y, _hy = rnnb.apply(params_cudnn, X, h0)
    loss = ((y - Y) ** 2).mean()
    step = (params_cudnn, params_cudnn - np.float32(2.0) * T.grad(loss, params_cudnn))
    train = symdnn.function([X, Y, h0], loss, updates=[step])

    values = (
        rng.standard_normal((timesteps, batch_size, input_dim)).astype(dtype),
        rng.uniform(-0.5, 0.5, (timesteps, batch_size, hidden_dim)).astype(dtype),
        np.zeros((depth, batch_size, hidden_dim), dtype),
    )
    losses = [float(train(*values)) for _ in range(steps)]
    print(f"  {psize} parameters, loss {losses[0]:.4f}, after {steps} steps {losses[-1]:.4f}")
    return losses[0], losses[-1]


main = SAMPLES.main

if __name__ == "__main__":
    raise SystemExit(main())

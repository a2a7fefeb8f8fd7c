"""What the README of cudnn.torch shows, in symdnn: its modules, modes, conversion and RNNs.

Modules are made as there, positional arguments in Torch7's order, and applied to symbolic inputs;
what they compute is compared with the same modules without cuDNN. Runs on the CPU, and with
`--device cuda` on a GPU by cuDNN.
"""

import numpy as np
from samples import Samples, rand

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import UnsupportedAlgorithm
from symdnn.nn import cudnn

SAMPLES = Samples(str(__doc__))
sample = SAMPLES.add


def compare(module: nn.Module, value: np.ndarray) -> tuple[tuple[int, ...], float]:
    """The shape of a module's output, and by how much it differs from that without cuDNN."""
    x = T.TensorType("float32", (None,) * value.ndim)("x")
    found = symdnn.function([x], module(x))(value)
    backend = module.backend
    plain = symdnn.function([x], nn.convert(module, nn)(x), mode=symdnn.Mode(target="cpu"))(value)
    nn.convert(module, backend)
    difference = float(np.abs(found - plain).max())
    print(f"  {module}: {value.shape} -> {found.shape}, differs by at most {difference:.1e}")
    return found.shape, difference


IMAGES, ONE_IMAGE = (2, 3, 12, 12), (3, 12, 12)
VOLUMES, ONE_VOLUME = (2, 3, 6, 8, 8), (3, 6, 8, 8)


@sample
def spatial() -> list[tuple[tuple[int, ...], float]]:
    """Convolution and pooling; images come in 3 dimensions or, as a batch, in 4."""
    modules = [
        cudnn.SpatialConvolution(3, 6, 5, 3, 2, 1, 2, 1),
        cudnn.SpatialConvolution(3, 6, 3, 3, 1, 1, 0, 0, 3),  # in groups
        cudnn.SpatialConvolution(3, 6, 3, 3, dilation=2),
        cudnn.SpatialMaxPooling(3, 2, 2, 2, 1, 1),
        cudnn.SpatialAveragePooling(2, 2, 2, 2, 0, 0),
    ]
    return [compare(m, rand(*shape)) for m in modules for shape in (IMAGES, ONE_IMAGE)]


@sample
def pointwise() -> list[tuple[tuple[int, ...], float]]:
    """Functions of each element. What is done in place is decided by the memory plan."""
    modules = [cudnn.ReLU(True), cudnn.ClippedReLU(0.5, True), cudnn.Tanh(), cudnn.Sigmoid()]
    return [compare(m, rand(*IMAGES)) for m in modules]


@sample
def softmax() -> list[tuple[tuple[int, ...], float]]:
    """Softmax of each image, over the maps at each pixel and at each point of a volume."""
    image = [cudnn.SoftMax(), cudnn.SoftMax(True), cudnn.LogSoftMax()]
    maps = [cudnn.SpatialSoftMax(), cudnn.SpatialLogSoftMax()]
    volumes = [cudnn.VolumetricSoftMax(), cudnn.VolumetricLogSoftMax()]
    return [
        *(compare(m, rand(2, 10)) for m in image),
        *(compare(m, rand(*IMAGES)) for m in maps),
        *(compare(m, rand(*VOLUMES)) for m in volumes),
    ]


@sample
def criterions() -> list[float]:
    """LogSoftMax and ClassNLLCriterion in one, at each pixel or point; classes count from 0."""
    losses = []
    for criterion, shape in (
        (cudnn.SpatialCrossEntropyCriterion(), IMAGES),
        (cudnn.VolumetricCrossEntropyCriterion(), VOLUMES),
    ):
        x = T.TensorType("float32", (None,) * len(shape))("x")
        t = np.random.default_rng(1).integers(0, 3, (shape[0], *shape[2:]))
        loss = criterion(x, t)
        f = symdnn.function([x], [loss, T.grad(loss, x)])
        value, gradient = f(rand(*shape))
        print(f"  {criterion}: {value:.4f}, gradient {gradient.shape}")
        losses.append(float(value))
    return losses


@sample
def batch_normalization() -> list[tuple[tuple[int, ...], float]]:
    """Of rows, images and volumes; eps, momentum and affine stand where Torch7 has them."""
    return [
        compare(cudnn.BatchNormalization(10, 1e-5, 0.1, True), rand(8, 10)),
        compare(cudnn.SpatialBatchNormalization(3, 1e-3), rand(*IMAGES)),
        compare(cudnn.VolumetricBatchNormalization(3, 1e-5, 0.1, False), rand(*VOLUMES)),
    ]


@sample
def backward_in_evaluation() -> float:
    """A backward pass through batch normalisation that evaluates, which cudnn.torch has not."""
    net = nn.Sequential(cudnn.SpatialConvolution(3, 4, 3, 3), cudnn.SpatialBatchNormalization(4))
    net.evaluate()
    x = T.tensor4("x")
    loss = (net(x) ** 2).sum()
    gradients = symdnn.function([x], T.grad(loss, net.parameters()))(rand(*IMAGES))
    largest = max(float(np.abs(g).max()) for g in gradients)
    print(f"  {len(gradients)} gradients, the largest entry {largest:.3g}")
    return largest


@sample
def volumetric() -> list[tuple[tuple[int, ...], float]]:
    """Volumes, time first among the arguments; in 4 dimensions or, as a batch, in 5."""
    modules = [
        cudnn.VolumetricConvolution(3, 4, 3, 2, 3, 1, 2, 1, 1, 0, 1),
        cudnn.VolumetricMaxPooling(2, 2, 2, 2, 2, 2, 0, 0, 0),
        cudnn.VolumetricAveragePooling(2, 2, 3, 1, 2, 2, 0, 0, 1),
    ]
    return [compare(m, rand(*shape)) for m in modules for shape in (VOLUMES, ONE_VOLUME)]


@sample
def recurrent() -> list[tuple[tuple[int, ...], float]]:
    """seqLength x batch x inputDim, or batch x seqLength x inputDim with batchFirst."""
    makers = [cudnn.RNNReLU, cudnn.RNNTanh, cudnn.LSTM, cudnn.GRU, cudnn.BLSTM]
    found = []
    for make in makers:
        found.append(compare(make(8, 16, 2), rand(5, 3, 8)))
        found.append(compare(make(8, 16, 2, True), rand(3, 5, 8)))
    return found


@sample
def persistent() -> float | None:
    """`setPersist(true)` on an LSTM: by how much its result differs from the usual one's."""
    x, lstm = T.tensor3("x"), cudnn.LSTM(32, 16, 3)
    value = rand(5, 2, 32)
    usual = symdnn.function([x], lstm(x))(value)
    try:
        found = symdnn.function([x], lstm.setPersist(True)(x))(value)
    except UnsupportedAlgorithm as error:
        print(f"  {str(error).splitlines()[0]}")
        return None
    difference = float(np.abs(found - usual).max())
    print(f"  {lstm}: differs by at most {difference:.1e}")
    return difference


def _convolutions() -> nn.Module:
    return nn.Sequential(cudnn.SpatialConvolution(3, 8, 3, 3), cudnn.SpatialConvolution(8, 4, 3, 3))


def _gradients(net: nn.Module) -> list[np.ndarray]:
    x = T.tensor4("x")
    f = symdnn.function([x], T.grad((net(x) ** 2).sum(), net.parameters()))
    found = f(rand(*IMAGES))
    print(f.dnn_report())
    return found


@sample
def modes() -> list[list[np.ndarray]]:
    """`cudnn.benchmark`, `cudnn.fastest`, `cudnn.verbose`, for what is compiled from then on."""
    nn.init.seed(0)
    net, found = _convolutions(), []
    print(f"  {cudnn}")
    found.append(_gradients(net))
    cudnn.benchmark = True  # measures all algorithms for each shape
    found.append(_gradients(net))
    cudnn.benchmark = False
    cudnn.fastest = True  # whatever memory it wants
    found.append(_gradients(net))
    cudnn.fastest = False
    cudnn.verbose = True
    found.append(_gradients(net))
    cudnn.verbose = False
    return found


@sample
def modes_of_modules() -> list[list[np.ndarray]]:
    """The same for one network, and for one convolution: `fastest()`, `setMode`, `resetMode`."""
    nn.init.seed(0)
    net = _convolutions()
    found = [_gradients(cudnn.convert(net, cudnn, benchmark=True))]
    cudnn.convert(net, cudnn, benchmark=False)
    net[0].fastest()
    net[1].setMode(1, 1, 1)  # numbers of cuDNN's enums: forward, gradients in input and weight
    found.append(_gradients(net))
    net[0].fastest(False)
    net[1].resetMode()
    found.append(_gradients(net))
    return found


@sample
def conversion() -> list[str]:
    """`cudnn.convert`, and with a function that leaves modules out."""
    net = nn.Sequential()
    net.add(nn.SpatialConvolution(3, 96, 11, 11, 3, 3))
    net.add(nn.ReLU())
    cudnn.convert(net, cudnn)
    print(net)
    trees = [str(net)]

    net = nn.Sequential()
    net.add(nn.SpatialConvolution(3, 96, 11, 11, 3, 3))
    net.add(nn.ReLU())
    cudnn.convert(net, cudnn, lambda module: "ReLU" in type(module).__name__)
    print(net)
    return [*trees, str(net)]


main = SAMPLES.main

if __name__ == "__main__":
    raise SystemExit(main())

"""ResNet-20 for 32x32 images (He et al. 2015, section 4.2): definition, gradient, a few steps."""

import argparse
import time

import numpy as np

import symdnn
import symdnn.tensor as T


class ResNet:
    """A residual network of 6 * blocks + 2 layers; parameters are collected as it is built."""

    def __init__(self, images, blocks: int, width: int, classes: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.parameters = []
        self.updates = []
        h = T.nnet.relu(self.norm(self.conv(images, 3, width, 3), width))
        channels = width
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                h = self.block(h, channels, width << stage, stride)
                channels = width << stage
        h = h.mean(axis=(2, 3))
        w = self.parameter((channels, classes), np.sqrt(1 / channels))
        self.probabilities = T.nnet.softmax(T.dot(h, w) + self.parameter((classes,), 0))

    def parameter(self, shape, scale: float, offset: float = 0.0):
        value = (offset + scale * self.rng.standard_normal(shape)).astype("float32")
        self.parameters.append(symdnn.shared(value, shape=shape))
        return self.parameters[-1]

    def conv(self, x, channels_in: int, channels: int, size: int, stride: int = 1):
        scale = np.sqrt(2 / (channels_in * size * size))
        w = self.parameter((channels, channels_in, size, size), scale)
        return T.nnet.conv2d(x, w, border_mode="half", subsample=(stride, stride))

    def norm(self, x, channels: int):
        shape = (1, channels, 1, 1)
        gamma, beta = self.parameter(shape, 0, 1.0), self.parameter(shape, 0)
        mean = symdnn.shared(np.zeros(shape, "float32"), shape=shape)
        var = symdnn.shared(np.ones(shape, "float32"), shape=shape)
        y, _, _, new_mean, new_var = T.nnet.bn.batch_normalization_train(
            x, gamma, beta, "spatial", running_mean=mean, running_var=var
        )
        self.updates += [(mean, new_mean), (var, new_var)]
        return y

    def block(self, x, channels_in: int, channels: int, stride: int):
        h = T.nnet.relu(self.norm(self.conv(x, channels_in, channels, 3, stride), channels))
        h = self.norm(self.conv(h, channels, channels, 3), channels)
        if stride != 1 or channels_in != channels:
            x = self.norm(self.conv(x, channels_in, channels, 1, stride), channels)
        return T.nnet.relu(h + x)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3, help="blocks a stage; 3 is ResNet-20")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(argv)

    x, t = T.tensor4("x"), T.ivector("t")
    start = time.perf_counter()
    net = ResNet(x, options.blocks, options.width, classes=10)
    loss = T.nnet.categorical_crossentropy(net.probabilities, t).mean()
    grads = T.grad(loss, net.parameters)
    sgd = [(p, p - 0.05 * g) for p, g in zip(net.parameters, grads, strict=True)]
    train = symdnn.function([x, t], loss, updates=sgd + net.updates)
    count = sum(p.get_value(borrow=True).size for p in net.parameters)
    print(
        f"{6 * options.blocks + 2} layers, {count} parameters, "
        f"compiled in {time.perf_counter() - start:.1f} s"
    )

    rng = np.random.default_rng(0)
    images = rng.standard_normal((options.batch, 3, options.size, options.size)).astype("float32")
    labels = rng.integers(0, 10, options.batch).astype("int32")
    value = 0.0
    for step in range(options.steps):
        start = time.perf_counter()
        value = float(train(images, labels))
        print(f"step {step}  loss {value:.4f}  {time.perf_counter() - start:.2f} s")
    return value


if __name__ == "__main__":
    main()

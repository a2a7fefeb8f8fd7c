"""``T.nnet.conv.conv2d``, the old address of :func:`symdnn.tensor.nnet.conv2d`."""

from symdnn.ops.nn.conv_builders import old_conv2d as conv2d

__all__ = ["conv2d"]

"""Each image of a stack convolved with each filter of another: ``T.signal.conv.conv2d``."""

from symdnn.ops.nn.conv_builders import signal_conv2d as conv2d

__all__ = ["conv2d"]

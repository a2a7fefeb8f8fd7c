"""The ``GpuDnn*`` ops: calls of cuDNN as plain data, which need no driver.

Each has ``unlowered``, the neutral op that computes the same, from which types, shapes, reference
and gradient come (:mod:`symdnn.ops.lowered.lowered`). :mod:`symdnn.libraries.cudnn` makes them,
:mod:`symdnn.gpu` launches them. Users may apply them too, with Theano's constructors and arguments;
on a CPU they are replaced by the neutral ops.
"""

from __future__ import annotations

from symdnn.ops.vendor.gpudnn_base import *
from symdnn.ops.vendor.gpudnn_conv import *
from symdnn.ops.vendor.gpudnn_norm import *
from symdnn.ops.vendor.gpudnn_pool import *
from symdnn.ops.vendor.gpudnn_rnn import *
from symdnn.ops.vendor.gpudnn_softmax import *
from symdnn.ops.vendor.gpudnn_spatial_transformer import *

"""Local response normalisation and its gradient by compiled loops; oneDNN has a slow reference.

Measured on two cores with AVX-512, windows of 5: activations of 32x96x55x55 take 3.5 ms forward and
9.5 backward (in NHWC 3.4 and 6.1), of 32x256x27x27 2.1 and 4.7 (in NHWC 2.1 and 3.6). Copies of
these activations take 2.5 and 1.6 ms.
"""

from __future__ import annotations

from math import prod

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.pool.lrn_ir import LrnPlan, lrn_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.nn.lrn import LRN, LRNGrad

#: Limits of the channels of a window (cuDNN's limit) and of all channels, which must fit the cache.
_MAX_WINDOW_CHANNELS, _MAX_CHANNELS = 16, 1 << 12
#: With fewer elements NumPy is as fast; elements for which waking up another thread pays.
_MIN_ELEMENTS_TO_COMPILE, _ELEMENTS_PER_THREAD = 1 << 12, 1 << 14


class LrnKernel(Kernel[LRN | LRNGrad]):
    """Local response normalisation and its gradient in float32, along any axis."""

    name = "llvm.lrn"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[LRN | LRNGrad]) -> str | None:
        """Needs float32, small windows and not too many channels."""
        op = call.op
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        x = types[0]
        if x.dtype != "float32":
            return "it computes in float32"
        if op.n > _MAX_WINDOW_CHANNELS:
            return f"its windows are of at most {_MAX_WINDOW_CHANNELS} channels"
        if (x.shape[op.axis] or 0) > _MAX_CHANNELS:
            return f"it is for at most {_MAX_CHANNELS} channels"
        return compile_refusal(
            types, lambda: prod(d or 0 for d in x.shape), _MIN_ELEMENTS_TO_COMPILE
        )

    def bind(self, call: Call[LRN | LRNGrad]) -> Launch[Array]:
        """A launch whose code is for these sizes, except the batch size."""
        op = call.op
        x = call.inputs[0]
        outer, inner = prod(x.shape[: op.axis]), prod(x.shape[op.axis + 1 :])
        settings = op.n, op.alpha, op.beta, op.k
        plan = LrnPlan(isinstance(op, LRNGrad), *settings, x.shape[op.axis], inner)
        head = [threads.threads(prod(x.shape), _ELEMENTS_PER_THREAD), plan.tasks(outer), 1, outer]
        return ContiguousLaunch(threads.kernel(lrn_ir, plan), head, len(plan.operands) - 1)


KERNELS: tuple[Row, ...] = (((LRN, LRNGrad), (LrnKernel(),)),)

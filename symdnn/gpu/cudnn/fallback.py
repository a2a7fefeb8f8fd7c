"""Fallbacks of ``GpuDnn*`` ops for sizes that cuDNN refuses.

Lowering chooses a node's device from its types. Sizes are known only when a plan is made. So each
op has more kernels after cuDNN's: the neutral op's kernel on the device, and last the reference on
the host. The lowering report shows which one runs, and why cuDNN's did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.cudnn.kernel import CUDNN
from symdnn.gpu.cudnn.nchw_fallback import reordered
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.graph.op import Op
from symdnn.graph.substitute import Substitute

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


def with_fallbacks(op_type: type[Op], *kernels: Kernel) -> Row:
    """The row of one op: its kernels, those in NCHW if the op has layouts, then the host's."""
    every = kernels
    if any(f.name == "layout" for f in fields(op_type)):  # type: ignore[arg-type]
        every = (*every, reordered(*every))
    return (op_type,), (*every, HostKernel(every))


def by_neutral_op(same: Callable[[Call], bool]) -> Substitute:
    """The neutral op's kernel on the device, for calls with the ``same`` operands as that op."""

    def rewritten(call: Call) -> Call | str:
        if not same(call):
            return "the neutral op has other operands"
        return replace(call, op=call.op.neutral())  # type: ignore[attr-defined]

    return Substitute(rewritten, "cuda", name="cudnn.neutral", traits=CUDNN, contiguous_inputs=True)


@dataclass(frozen=True)
class HostKernel(Kernel):
    """The reference on the host: operands are copied there, results back."""

    others: tuple[Kernel, ...]
    name: str = "cudnn.on_host"
    traits = Traits("cudnn", runs_user_code=True)
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Nothing for known sizes. For types alone, calls that all other kernels refuse.

        So an op of types that cuDNN always refuses is placed on the host by lowering.
        """
        if call.has_sizes:
            return None
        reasons = dict.fromkeys(kernel.refuses(call) for kernel in self.others)
        return None if None in reasons else "; ".join(map(str, reasons))

    def capturable(self, call: Call) -> bool:
        """It waits for the device."""
        return False

    def bind(self, call: Call) -> Any:
        """Waits for the operands."""

        def launch(env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
            return by_reference(env, call.op, inputs, outputs)

        return launch


def by_reference(
    env: LaunchEnv, op: Op, inputs: Sequence[Any], outputs: Sequence[Any]
) -> list[Any]:
    """Compute an op by its reference, from device arrays to the plan's outputs."""
    given = [env.download(v) if isinstance(v, RawArray) else v for v in inputs]
    results = op.compute(*given)
    return [_delivered(env, r, out) for r, out in zip(results, outputs, strict=True)]


def _delivered(env: LaunchEnv, result: Any, out: Any) -> Any:
    """The result, copied to the plan's output; unchanged if the plan has none (a reserve)."""
    if not isinstance(out, RawArray):
        return result
    if out.nbytes:
        env.copy_in(np.asarray(result), out)
    return out

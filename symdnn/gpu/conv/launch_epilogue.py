"""Launches of :class:`~symdnn.ops.vendor.gpudnn_epilogue.GpuDnnConvBiasActivation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.gpu.conv.bench import tolerance
from symdnn.gpu.conv.epilogue import Fused, Trial, choose
from symdnn.gpu.conv.graph_conv import Epilogue
from symdnn.gpu.conv.launch import ConvKernel, signature
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.graph import ALIGNMENT
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    WITH_BFLOAT16,
    CudnnKernel,
    is_empty,
    max_rows,
)
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.gpu.kernels.elementwise import ElementwiseKernel
from symdnn.graph.kernel import Alternative, Call, Kernel, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation

__all__ = ["ConvEpilogueKernel", "convolution_of", "epilogue", "KERNELS"]


def epilogue(op: GpuDnnConvBiasActivation) -> Epilogue:
    """The op's epilogue for the graph API."""
    e = op.terms
    return Epilogue(e.bias, e.residual != 0, e.activation, e.alpha, e.residual or 1.0)


class _Unfused:
    """The call as a convolution, then an elementwise kernel."""

    def __init__(self, call: Call) -> None:
        op = call.op
        assert isinstance(op, GpuDnnConvBiasActivation)
        self.op = op
        self.conv = replace(call, op=op.plain(), inputs=call.inputs[:2])
        (y,) = call.outputs
        assert isinstance(y, TensorType)
        assert op.epilogue is not None
        program = op.epilogue.after(y.dtype)
        self.rest = Call(
            FusedElemwise(program),
            (y, *call.inputs[2:]),
            (y,),
            call.hints,
            call.node,
            call.versions,
        )

    def launcher(self, kernel: ConvKernel) -> Any:
        """``launch(env, inputs, outputs)`` of both kernels."""
        first, second = kernel.launcher(self.conv), ElementwiseKernel().bind(self.rest)

        def launch(env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            first(env, inputs[:2], outputs)
            if not is_empty(outputs[0]):
                second(env, [outputs[0], *inputs[2:]], outputs)

        return launch

    def trial(self) -> Trial:
        """Both kernels, for a measurement on arrays by role."""
        kernel = ConvKernel().settled(self.conv)
        launch = self.launcher(kernel)
        roles = ("x", "w", *epilogue(self.op).roles[::-1])
        shapes = [t.shape for t in self.rest.inputs[1:]]

        def run(env: Any, arrays: Any) -> None:
            more = [_seen(arrays[r], s) for r, s in zip(roles[2:], shapes, strict=True)]
            launch(env, [arrays["x"], arrays["w"], *more], [arrays["y"]])

        return Trial(kernel.workspace_bytes(self.conv), run)


def _seen(array: RawArray, shape: tuple[int, ...]) -> RawArray:
    """A contiguous array with the shape of the op's operand."""
    return RawArray(array.ptr, shape, array.dtype, owner=array.owner)


def convolution_of(call: Call) -> Call:
    """The convolution of a call with an epilogue, alone."""
    return _Unfused(call).conv


@dataclass(frozen=True)
class ConvEpilogueKernel(CudnnKernel):
    """One fused kernel of cuDNN, or a convolution and an elementwise kernel.

    ``settled`` sets ``fused`` or ``plain`` for a call.
    """

    name: str = "cudnn.conv_epilogue"
    fused: Fused | None = None
    plain: ConvKernel | None = None
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def settled(self, call: Call) -> ConvEpilogueKernel:
        """The kernel with its choice for ``call``."""
        fused, conv = _choice(call), _Unfused(call).conv
        plain = None if fused is not None else ConvKernel().settled(conv)
        return replace(self, fused=fused, plain=plain)

    def _settled(self, call: Call) -> ConvEpilogueKernel:
        known = self.fused is not None or self.plain is not None
        return self if known else self.settled(call)

    def refuses_types(self, call: Call) -> str | None:
        """As for the convolution alone."""
        return ConvKernel().refuses_types(_Unfused(call).conv)

    def refuses_sizes(self, call: Call) -> str | None:
        """As for the convolution alone."""
        return ConvKernel().refuses_sizes(_Unfused(call).conv)

    def accepts(self, index: int, array: RawArray) -> bool:
        """Contiguous operands at addresses with the graph API's alignment."""
        return array.contiguous and array.ptr % ALIGNMENT == 0

    def workspace_bytes(self, call: Call) -> int:
        """The workspace of the chosen kernels."""
        own = self._settled(call)
        if own.fused is not None:
            return own.fused.total_bytes
        assert own.plain is not None
        return own.plain.workspace_bytes(_Unfused(call).conv)

    def alternatives(self, call: Call, room_bytes: int) -> list[Alternative]:
        """The fused kernel if it was chosen and has room, else those of the convolution alone."""
        own, conv = self._settled(call), _Unfused(call).conv
        if own.fused is not None and own.fused.total_bytes <= room_bytes:
            fused = own.fused
            return [Alternative(own, fused.total_bytes, fused.ms, error=tolerance(fused.signature))]
        found = ConvKernel().alternatives(conv, room_bytes)
        return [replace(a, kernel=_in_two(a.kernel)) for a in found]

    def details(self, call: Call) -> str:
        """The computation, and the kernels."""
        own = self._settled(call)
        if own.fused is not None:
            return f"{own.fused.signature}; {own.fused}"
        assert own.plain is not None
        return f"{own.plain.details(_Unfused(call).conv)}; then {epilogue(_op(call))} elementwise"

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``."""
        own, unfused = self._settled(call), _Unfused(call)
        if own.fused is None:
            assert own.plain is not None
            use = own.plain.library_use(unfused.conv)
            return use and replace(use, why=f"{use.why}, then {epilogue(_op(call))} elementwise")
        use = ConvKernel().settled(unfused.conv).library_use(unfused.conv)
        c = own.fused.candidate
        assert use is not None
        assert c.plan is not None
        return replace(
            use, used=c.name, api=c.api, engine=str(c.plan.engine), why=own.fused.why,
            workspace_bytes=own.fused.total_bytes, deterministic=c.deterministic, ms=own.fused.ms,
        )  # fmt: skip

    def launcher(self, call: Call) -> Any:
        """A launch that only passes pointers; plans are built here."""
        own = self._settled(call)
        if own.fused is None:
            assert own.plain is not None
            return _Unfused(call).launcher(own.plain)
        fused = own.fused
        run = query_cudnn(fused.prepared, None)
        assert run is not None, "a plan was chosen without a device"
        roles = [r for r in ("residual", "bias") if r in fused.epilogue.roles]

        def launch(env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            more = dict(zip(roles, inputs[2:], strict=True))
            run(env, {"x": inputs[0], "w": inputs[1], "y": outputs[0], **more})

        return launch


def _in_two(kernel: Kernel) -> ConvEpilogueKernel:
    """A convolution's kernel, then an elementwise one."""
    assert isinstance(kernel, ConvKernel)
    return ConvEpilogueKernel(plain=kernel)


def _op(call: Call) -> GpuDnnConvBiasActivation:
    assert isinstance(call.op, GpuDnnConvBiasActivation)
    return call.op


def _choice(call: Call) -> Fused | None:
    """The fused kernel, or None for two kernels."""
    unfused = _Unfused(call)
    s = signature(unfused.conv)
    nothing = any(0 in shape for shape in (s.x, s.w, s.y))
    if nothing or s.x[0] > max_rows(s.x, s.y):
        return None
    return choose(s, epilogue(unfused.op), unfused.trial)


KERNELS: tuple[Row, ...] = (with_fallbacks(GpuDnnConvBiasActivation, ConvEpilogueKernel()),)

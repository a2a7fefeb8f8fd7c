"""Launches of :class:`~symdnn.ops.vendor.gpudnn_epilogue.GpuDnnConvBiasActivation`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.gpu.conv import blocklist
from symdnn.gpu.conv.checked import Checked, prepared
from symdnn.gpu.conv.depthwise import DepthwiseKernel
from symdnn.gpu.conv.epilogue import TwoKernels, choose, forget
from symdnn.gpu.conv.launch import ConvKernel, Piece, library_use, piece, signature
from symdnn.gpu.conv.reference import Undecided, difference, spoil
from symdnn.gpu.conv.signature import ConvSignature, Epilogue
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.graph import ALIGNMENT
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    WITH_BFLOAT16,
    CudnnKernel,
    copy,
    is_empty,
    max_rows,
)
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import device_index
from symdnn.gpu.kernels.elementwise import ElementwiseKernel
from symdnn.graph.kernel import Alternative, Call, Kernel, Row
from symdnn.graph.library_use import Fallback, LibraryUse
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpudnn import GpuDnnConv, GpuDnnConvGradI
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.tuning import fallbacks
from symdnn.tuning.attempts import short

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


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
        self.call = call

    @cached_property
    def rest(self) -> Call[FusedElemwise]:
        """The elementwise kernel's call."""
        call, (y,) = self.call, self.call.outputs
        assert isinstance(y, TensorType)
        assert self.op.epilogue is not None
        done = FusedElemwise(self.op.epilogue.after(y.dtype))
        inputs = (y, *call.inputs[2:])
        return Call(done, inputs, (y,), call.hints, call.node, call.versions)

    def launcher(self, kernel: ConvKernel, room_bytes: int | None = None) -> Any:
        """``launch(env, inputs, outputs)`` of both kernels."""
        first = kernel.launcher(self.conv, room_bytes)
        second = ElementwiseKernel().bind(self.rest)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            first(env, inputs[:2], outputs)
            if not is_empty(outputs[0]):
                second(env, [outputs[0], *inputs[2:]], outputs)

        return launch

    def trial(self) -> TwoKernels:
        """Both kernels, for a measurement on arrays by role."""
        kernel = ConvKernel().settled(self.conv)
        with config.change_flags({"dnn.check": "off"}):  # the bench compares the results
            launch = self.launcher(kernel)
        roles = ("x", "w", *epilogue(self.op).roles[::-1])
        shapes = [t.shape for t in self.rest.inputs[1:]]

        def run(env: LaunchEnv, arrays: Any) -> None:
            more = [_seen(arrays[r], s) for r, s in zip(roles[2:], shapes, strict=True)]
            launch(env, [arrays["x"], arrays["w"], *more], [arrays["y"]])

        return TwoKernels(kernel.workspace_bytes(self.conv), run)


def _seen(array: RawArray, shape: tuple[int, ...]) -> RawArray:
    """A contiguous array with the shape of the op's operand."""
    return RawArray(array.ptr, shape, array.dtype, owner=array.owner)


def convolution_of(call: Call) -> Call:
    """The call's convolution without the epilogue."""
    return _Unfused(call).conv


@dataclass
class _Replaced:
    """The replacement of a fused kernel whose result was wrong."""

    plain: ConvKernel | None = None
    fallback: Fallback | None = None


class _FusedLaunch:
    """The launch of a fused kernel; its first run is compared with that of two kernels.

    A wrong kernel goes to the block list, and two kernels run instead, in the same call, too.
    """

    def __init__(self, call: Call, fused: Piece, state: _Replaced) -> None:
        self.call, self.fused, self.state = call, fused, state
        s, candidate = fused.signature, fused.algorithm.candidate
        self.run = prepared(candidate, s)
        self.roles = [r for r in ("residual", "bias") if r in s.epilogue.roles]
        self.checked = Checked((blocklist.asked(s), candidate.key, device_index()))
        self.two: Any = None

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        if self.two is not None:
            self.two(env, inputs, outputs)
        elif self.checked.pending and self.checked.due(env):
            self._check(env, inputs, outputs[0])
        else:
            self._enqueue(env, inputs, outputs[0])

    def _enqueue(self, env: LaunchEnv, inputs: Sequence[Any], out: RawArray) -> None:
        more = dict(zip(self.roles, inputs[2:], strict=True))
        self.run(env, {"x": inputs[0], "w": inputs[1], "y": out, **more})

    def _check(self, env: LaunchEnv, inputs: Sequence[Any], out: RawArray) -> None:
        s, unfused = self.fused.signature, _Unfused(self.call)
        plain = ConvKernel().settled(unfused.conv)
        two = unfused.launcher(plain, self.fused.total_bytes)
        start = time.perf_counter()
        found: float | str
        try:
            wanted = env.empty(out.shape, out.dtype)
            two(env, inputs, [wanted])
            spoil(env, out)
            self._enqueue(env, inputs, out)
            found = difference(env, s, out, wanted, blocklist.limit(s))
        except (Undecided, MemoryError) as problem:
            self._enqueue(env, inputs, out)
            found = short(problem)
        spent_ms = (time.perf_counter() - start) * 1e3
        said = self.checked.verdict(found, blocklist.limit(s), spent_ms)
        if said is not None:
            self.fused.in_use.check = said
            return
        assert not isinstance(found, str)
        copy(env, wanted, out)
        self.two = two
        self._replaced(plain, found, spent_ms)

    def _replaced(self, plain: ConvKernel, error: float, spent_ms: float) -> None:
        s, c, state = self.fused.signature, self.fused.algorithm.candidate, self.state
        blocklist.block(s, c, error)
        forget()
        why = blocklist.why_wrong(s, error)
        cost = f"two kernels instead of one, and {spent_ms:.3g} ms for the check"
        state.plain, state.fallback = plain, Fallback(c.name, "two kernels", why, cost)
        fallbacks.log(state.fallback, "fwd", self.call.node)


@dataclass(frozen=True)
class ConvEpilogueKernel(CudnnKernel):
    """One fused kernel of cuDNN, or a convolution and an elementwise kernel.

    ``settled`` sets ``fused`` or ``plain`` for a call; ``state`` is the result of a check.
    """

    name: str = "cudnn.conv_epilogue"
    fused: Piece | None = None
    plain: ConvKernel | None = None
    state: _Replaced = field(default_factory=_Replaced, compare=False, repr=False)
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def settled(self, call: Call) -> ConvEpilogueKernel:
        """The kernel with its choice for ``call``."""
        unfused = _Unfused(call)
        fused = _choice(unfused)
        plain = None if fused is not None else ConvKernel().settled(unfused.conv)
        return replace(self, fused=fused, plain=plain, state=_Replaced())

    def chosen(self, call: Call) -> ConvEpilogueKernel | str:
        """The kernel with its choice, or why cuDNN does not run the unfused convolution."""
        unfused = _Unfused(call)
        plain = ConvKernel().chosen(unfused.conv)
        if isinstance(plain, str):
            return plain
        (only,) = plain.parts if len(plain.parts) == 1 else (None,)
        fused = _choice(unfused, None if only is None else only.signature)
        alone = plain if fused is None else None
        return replace(self, fused=fused, plain=alone, state=_Replaced())

    def _settled(self, call: Call) -> ConvEpilogueKernel:
        known = self.fused is not None or self.plain is not None
        return self if known else self.settled(call)

    def refuses_types(self, call: Call) -> str | None:
        """As for the unfused convolution."""
        return ConvKernel().refuses_types(_Unfused(call).conv)

    def refuses_sizes(self, call: Call) -> str | None:
        """As for the unfused convolution."""
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

    def capturable(self, call: Call) -> bool:
        """Not where each call is checked."""
        return ConvKernel().capturable(call)

    def alternatives(self, call: Call, room_bytes: int) -> list[Alternative]:
        """The fused kernel if it was chosen and its workspace fits, else the unfused ones."""
        own, conv = self._settled(call), _Unfused(call).conv
        if own.fused is not None and own.fused.total_bytes <= room_bytes:
            fused = own.fused
            error = blocklist.tolerance(fused.signature)
            return [Alternative(own, fused.total_bytes, fused.algorithm.ms, error=error)]
        found = ConvKernel().alternatives(conv, room_bytes)
        return [replace(a, kernel=_in_two(a.kernel)) for a in found]

    def details(self, call: Call) -> str:
        """The computation, and the kernels."""
        own = self._settled(call)
        if own.fused is not None:
            return f"{own.fused.signature}; algorithm {own.fused.algorithm}"
        assert own.plain is not None
        return f"{own.plain.details(_Unfused(call).conv)}; then {epilogue(_op(call))} elementwise"

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``."""
        own, unfused = self._settled(call), _Unfused(call)
        plain = own.state.plain or own.plain
        if plain is not None:
            use = plain.library_use(unfused.conv)
            if use is None:
                return None
            why = f"{use.why}, then {epilogue(_op(call))} elementwise"
            return replace(use, why=why, fallback=own.state.fallback or use.fallback)
        assert own.fused is not None
        alone = replace(own.fused.signature, epilogue=Epilogue())
        use = library_use(alone, own.fused.in_use, own.fused.total_bytes)
        return replace(use, record={**use.record, "epilogue": True})

    def launcher(self, call: Call) -> Any:
        """A launch that only passes pointers; plans are built here."""
        own = self._settled(call)
        if own.fused is None:
            assert own.plain is not None
            return _Unfused(call).launcher(own.plain)
        return _FusedLaunch(call, own.fused, own.state)


def _in_two(kernel: Kernel) -> ConvEpilogueKernel:
    """A convolution's kernel, then an elementwise one."""
    assert isinstance(kernel, ConvKernel)
    return ConvEpilogueKernel(plain=kernel)


def _op(call: Call) -> GpuDnnConvBiasActivation:
    assert isinstance(call.op, GpuDnnConvBiasActivation)
    return call.op


def _choice(unfused: _Unfused, known: ConvSignature | None = None) -> Piece | None:
    """The fused kernel, or None for two kernels. ``known`` is the convolution's signature."""
    s = replace(known or signature(unfused.conv), epilogue=epilogue(unfused.op))
    nothing = any(0 in shape for shape in (s.x, s.w, s.y))
    if nothing or s.x[0] > max_rows(s.x, s.y):
        return None
    chosen = choose(s, unfused.trial)
    return None if chosen is None else piece(0, s.x[0], s, chosen)


def _row(op: type[Op], kernel: Kernel) -> Row:
    """Depthwise convolutions by our own kernel, others by cuDNN."""
    ops, kernels = with_fallbacks(op, kernel)
    return ops, (DepthwiseKernel(), *kernels)


KERNELS: tuple[Row, ...] = (
    _row(GpuDnnConv, ConvKernel()), _row(GpuDnnConvGradI, ConvKernel()),
    _row(GpuDnnConvBiasActivation, ConvEpilogueKernel()),
)  # fmt: skip

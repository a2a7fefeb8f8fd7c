"""The CTC loss by cuDNN. Labels and lengths are read on the host.

cuDNN computes only batches for which it is known to be right: all sequences use every frame, and
each label has 1 to 255 elements and fits into the frames. The reference computes other batches on
the host, with infinite costs and padded sequences, which cuDNN does not define.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import CTCLossDescription, Descriptor, descriptor
from symdnn.gpu.cudnn.fallback import by_reference, with_fallbacks
from symdnn.gpu.cudnn.kernel import CudnnKernel, is_empty, on_host, tensor
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.gpudnn import GpuDnnCTCLoss

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

_MAX_LABEL_ELEMENTS = 255
_ALGORITHM = "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC"


@dataclass(frozen=True)
class Labels:
    """Labels in cuDNN's format: all values in a row, and the number of each sequence."""

    values: tuple[int, ...]
    counts: tuple[int, ...]
    frames: tuple[int, ...]


def packed_labels(labels: Any, lengths: Any, steps: int) -> Labels | None:
    """The labels without padding; None for a batch that cuDNN must not compute."""
    kept = labels >= 0
    counts = kept.sum(1)
    repeats = np.zeros(len(labels), np.int64)
    for n, row in enumerate(labels):
        own = row[kept[n]]
        repeats[n] = int((own[1:] == own[:-1]).sum())
    fits = (counts > 0) & (counts <= _MAX_LABEL_ELEMENTS) & (counts + repeats <= steps)
    if not fits.all() or (np.asarray(lengths) != steps).any():
        return None
    values = tuple(int(v) for v in labels[kept])
    return Labels(values, tuple(map(int, counts)), tuple(map(int, lengths)))


@dataclass(frozen=True)
class CTCLossKernel(CudnnKernel):
    """``cudnnCTCLoss`` of (activations, labels, input lengths)."""

    name: str = "cudnn.ctc_loss"
    dtypes = frozenset({"float32"})

    def capturable(self, call: Call) -> bool:
        """Labels and lengths are read on the host."""
        return False

    def workspace_bytes(self, call: Call) -> int:
        """The workspace for the longest labels that the call may have."""
        scores = call.inputs[0]
        if 0 in scores.shape:
            return 0
        steps, batch, classes = scores.shape
        if classes < 2:
            return 0
        label, most_frames = ((1, 2), steps) if classes > 2 else ((1, 1), (steps + 1) // 2)
        longest = min(call.inputs[1].shape[1], most_frames, _MAX_LABEL_ELEMENTS)
        estimate = 4 * batch * steps * (classes + 4 * (2 * longest + 1)) + (1 << 16)

        def question(handle: int) -> int:
            d, how = self._descriptors(call)
            row = (label * longest)[:longest]
            most = Labels(row * batch, (longest,) * batch, (steps,) * batch)
            return _workspace(handle, d, how, most)

        return max(query_cudnn(question, estimate), estimate) if longest else estimate

    def _descriptors(self, call: Call) -> tuple[Descriptor, Descriptor]:
        scores = call.inputs[0]
        longest = min(int(call.inputs[1].shape[1]), _MAX_LABEL_ELEMENTS)
        how = descriptor(CTCLossDescription("float32", longest))
        return tensor("float32", scores.shape), how

    def details(self, call: Call) -> str:
        """Shapes and the algorithm."""
        return f"{_ALGORITHM} of {', '.join(map(str, call.inputs))}"

    def launcher(self, call: Call) -> Any:
        """cuDNN for batches that it computes correctly, else the reference."""
        promised = self.workspace_bytes(call)
        steps = call.inputs[0].shape[0]
        made = None if is_empty(call.inputs[0]) else self._descriptors(call)

        def launch(env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            labels, lengths = (on_host(env, v) for v in inputs[1:])
            call.op.neutral().check_values(inputs[0], labels, lengths)  # type: ignore[attr-defined]
            packed = None if made is None else packed_labels(labels, lengths, steps)
            if packed is None or made is None:
                by_reference(env, call.op, (inputs[0], labels, lengths), outputs)
                return
            d, how = made
            nbytes = _workspace(env.cudnn, d, how, packed)
            if nbytes > promised:
                by_reference(env, call.op, (inputs[0], labels, lengths), outputs)
                return
            libcudnn.cudnnCTCLoss(
                env.cudnn, d.handle, inputs[0].ptr, packed.values, packed.counts, packed.frames,
                outputs[0].ptr, d.handle, outputs[1].ptr, _ALGORITHM, how.handle, env.workspace,
                nbytes,
            )  # fmt: skip

        return launch


def _workspace(handle: int, d: Descriptor, how: Descriptor, labels: Labels) -> int:
    return operator.index(
        libcudnn.cudnnGetCTCLossWorkspaceSize(
            handle, d.handle, d.handle, labels.values, labels.counts, labels.frames,
            _ALGORITHM, how.handle,
        )
    )  # fmt: skip


KERNELS: tuple[Row, ...] = (with_fallbacks(GpuDnnCTCLoss, CTCLossKernel()),)

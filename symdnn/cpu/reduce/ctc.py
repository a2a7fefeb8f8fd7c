"""The CTC loss by compiled loops, in threads that share the sequences."""

from __future__ import annotations

from math import prod

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.scratch import Scratch, aligned
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.reduce.ctc_ir import FLAG, HEAD, LANES, PARTS, CtcPlan, ctc_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.nn.ctc import CTCCosts, CTCLoss

#: Exponentials below which NumPy's loops are as fast as compiling; and for a thread more.
_MIN_WORK_TO_COMPILE, _WORK_PER_THREAD = 1 << 8, 1 << 13


class CtcKernel(Kernel[CTCLoss | CTCCosts]):
    """Costs, and gradients where they are wanted, of float32 and float64."""

    name = "llvm.ctc"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[CTCLoss | CTCCosts]) -> str | None:
        """Scores in 16 bits, and scores without elements."""
        scores = call.inputs[0]
        if scores.dtype not in ("float32", "float64"):
            return f"there is no code for {scores.dtype}"
        if call.has_sizes and not prod(scores.shape):
            return "there are no elements"
        return compile_refusal(call.inputs, lambda: _work(call), _MIN_WORK_TO_COMPILE)

    def bind(self, call: Call[CTCLoss | CTCCosts]) -> Launch[Array]:
        """A launch of contiguous operands."""
        return _Launch(call)


class _Launch(ContiguousLaunch):
    """The launch, which has its scratch memory, and says which label or length is wrong."""

    def __init__(self, call: Call[CTCLoss | CTCCosts]) -> None:
        self._op = call.op
        scores, labels, lengths = call.inputs
        (steps, batch, classes), width = scores.shape, labels.shape[1]
        states, padded = (-(-n // LANES) * LANES for n in (2 * width + 1, classes))
        row = states + 2
        numbers = {
            "alpha": (steps + 1) * row, "high": steps, "log": steps, "score": padded,
            "gradient": padded, "lanes": LANES,
        }  # fmt: skip
        slot = Scratch([8 * numbers.get(part, row) for part in PARTS])
        count = min(threads.threads(_work(call), _WORK_PER_THREAD), batch)
        self._scratch = Scratch([aligned(slot.nbytes) * count])
        words = {
            "threads": count, "batch": batch, "one": 1, "flag": 0, "steps": steps,
            "classes": classes, "width": width, "states": states,
            "scratch": self._scratch.begin(None),
            "slot": aligned(slot.nbytes), **dict(zip(PARTS, slot.places, strict=True)),
        }  # fmt: skip
        plan = CtcPlan(scores.dtype, labels.dtype, lengths.dtype, len(call.outputs) > 1)
        head = [words[name] for name in HEAD]
        run = threads.kernel(ctc_ir, plan)
        super().__init__(run, head, reads=3, writes=len(call.outputs), status=FLAG)

    def failed(self, inputs: Arrays) -> None:
        """Raise the error of the reference."""
        self._op.check_values(*inputs)


def _work(call: Call[CTCLoss | CTCCosts]) -> int:
    scores, labels = call.inputs[:2]
    steps, batch, classes = scores.shape
    return steps * batch * (classes + 4 * (2 * labels.shape[1] + 1))


KERNELS: tuple[Row, ...] = (((CTCLoss, CTCCosts), (CtcKernel(),)),)

"""A GEMM with its bias and activation as one kernel of cuDNN, where that is measured to be faster.

cuBLASLt has relu, and gelu by tanh. For other activations, and where the gradient needs what is
before one, cuDNN's graph API compiles a kernel. With ``gpu.gemm.algo=time`` it is measured, on the
GEMM's own operands, beside what runs otherwise: cuBLASLt's GEMM, and, unless that has the
activation, an elementwise kernel that reads and writes the result once more. Its result has to
agree with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu.binding import frontend, libcublaslt
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph import ALIGNMENT, GraphBuilder, GraphForm, GraphLaunch
from symdnn.gpu.cudnn.graph_plan import GraphPlan, Limits
from symdnn.gpu.cudnn.version import version_number
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.clock import is_capturing
from symdnn.gpu.device.cudnn_device import device_key, library_key
from symdnn.gpu.gemm.bench import CallBench
from symdnn.gpu.gemm.plan import WORKSPACE_BYTES
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import ChoiceCache, Question, answer, plain

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Activation functions by the names of :data:`symdnn.ops.vendor.gpublas.ACTIVATIONS`, as
#: operations of cuDNN's frontend.
ACTIVATIONS = {"gelu": "gelu_approx_tanh", "gelu_erf": "gelu", "silu": "swish"}
_MEASURED_PLANS = 8
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}

#: ``launch(env, inputs, outputs)``
Launch = Callable[[Any, Sequence[RawArray], Sequence[RawArray]], None]


@dataclass(frozen=True)
class MatmulGraph(GraphForm):
    """``activation(x y + bias)`` of matrices in 16 bits, with strides in elements.

    ``kept`` is where ``x y + bias`` is written, too.
    """

    name = "symdnn_matmul"

    dtype: str
    x: tuple[tuple[int, ...], tuple[int, ...]]
    y: tuple[tuple[int, ...], tuple[int, ...]]
    out: tuple[tuple[int, ...], tuple[int, ...]]
    bias: bool
    activation: str
    kept: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        return ("x", "y", *["bias"] * self.bias, "out", *["kept"] * (self.kept is not None))

    @property
    def limits(self) -> Limits:
        return Limits(("REDUCED_PRECISION_REDUCTION",), deterministic=True)

    def describe(self, graph: GraphBuilder) -> None:
        x, y = (graph.input(r, *_one(*getattr(self, r)), self.dtype) for r in ("x", "y"))
        shape, strides = _one(*self.out)
        value = graph.add("matmul", A=x, B=y, compute_data_type=graph.type("float32"))
        value = graph.virtual(value, shape, strides)
        if self.bias:
            n = shape[-1]
            bias = graph.input("bias", (1, 1, n), (n, n, 1), self.dtype)
            value = graph.virtual(graph.add("bias", input=value, bias=bias), shape, strides)
        if self.kept is not None:
            graph.output(value, "kept", *_one(*self.kept), self.dtype)
        value = graph.add(ACTIVATIONS[self.activation], input=value)
        graph.output(value, "out", shape, strides, self.dtype)


def _one(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A matrix as a batch of one."""
    whole = max(n * s for n, s in zip(shape, strides, strict=True))
    return (1, *shape), (whole, *strides)


_choices: ChoiceCache[GraphPlan | None] = ChoiceCache()


def forget() -> None:
    """Drop the choices of this process."""
    _choices.clear()


class OneKernel:
    """The one kernel of a call, if there is one."""

    def __init__(self, activation: str, bias: bool, mode: str) -> None:
        self.activation, self.bias = activation, bias
        self.measures = mode == "time" and str(config.dnn.enabled) != "False"
        self.launches: dict[tuple[MatmulGraph, GraphPlan], GraphLaunch] = {}

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray], two: Launch
    ) -> bool:
        """Enqueue it; False if ``two``, the two kernels, are faster, or nothing was measured."""
        form = self._form(inputs, outputs) if self.measures else None
        plan = None if form is None else _choice(form, env, inputs, outputs, two)
        if form is None or plan is None:
            return False
        if (form, plan) not in self.launches:
            self.launches[form, plan] = graph.launch(form, plan, env.cudnn)
        self.launches[form, plan](env.cudnn, _pointers(form, inputs, outputs), env.workspace)
        return True

    def _form(self, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> MatmulGraph | None:
        """The graph of this call; None if cuDNN can't read its operands."""
        x, y, *rest = inputs
        arrays = (x, y, *outputs)
        if self.activation not in ACTIVATIONS or x.dtype not in _TOLERANCE:
            return None
        if any(
            a.ndim != 2 or a.dtype != x.dtype or not (a.size and _is_aligned(a)) for a in arrays
        ):
            return None
        if any(not (b.contiguous and b.ptr % ALIGNMENT == 0 and b.dtype == x.dtype) for b in rest):
            return None
        left, right, out, *kept = [
            (a.shape, tuple(s // a.itemsize for s in a.strides)) for a in arrays
        ]
        return MatmulGraph(
            x.dtype, left, right, out, self.bias, self.activation, kept[0] if kept else None
        )


def _choice(
    form: MatmulGraph, env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any], two: Launch
) -> GraphPlan | None:
    key = (env.cudnn, form)
    if key not in _choices and (is_capturing(env) or frontend.unavailable()):
        return None
    return _choices.get(key, lambda: _timed(_Question(form, env, inputs, outputs, two)))


def _is_aligned(a: RawArray) -> bool:
    """Whether a matrix has contiguous rows, or columns, that begin at multiples of 16 bytes."""
    inner, outer = sorted(a.strides)
    return a.size > 0 and inner == a.itemsize and (outer | a.ptr) % ALIGNMENT == 0


def _pointers(
    form: MatmulGraph, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
) -> Mapping[str, int]:
    return {r: a.ptr for r, a in zip(form.roles, (*inputs, *outputs), strict=True)}


def _timed(question: _Question) -> GraphPlan | None:
    found = answer(question)
    return None if found is None else found.attempt.candidate


class _Question(Question[GraphPlan | None]):
    """The fastest of cuDNN's plans and two kernels, which are the candidate None."""

    family = "matrix product with an activation"
    warns = False  # two kernels run

    def __init__(
        self, form: MatmulGraph, env: Any, inputs: Sequence[Any], outputs: Sequence[Any],
        two: Launch,
    ) -> None:  # fmt: skip
        self.form, self.env, self.two = form, env, two
        self.inputs, self.outputs = inputs, outputs
        version, product = version_number(), plain(asdict(form))
        self.key = device_key(
            cudnn=version, frontend=frontend.version(), cublaslt=libcublaslt.version(),
            plans=_MEASURED_PLANS, product=product,
        )  # fmt: skip
        self.fault = library_key("cudnn", version, product=product)

    def identity(self, candidate: GraphPlan | None) -> Any:
        """The plan's name."""
        return "two kernels" if candidate is None else candidate.name

    def measured(self) -> tuple[list[Attempt[GraphPlan | None]], str]:
        """Two kernels, whose result is the reference, then cuDNN's plans."""
        found, problem = graph.plans(self.form, self.env.cudnn, most=_MEASURED_PLANS)
        fitting = [p for p in found if p.workspace_bytes <= WORKSPACE_BYTES]
        if not fitting:
            return [Attempt(None, 0.0)], problem
        return self.attempts(_Bench(self), [None, *fitting]), ""

    def record(self, best: Attempt[GraphPlan | None]) -> dict[str, Any]:
        """The plan, None for two kernels."""
        plan = best.candidate
        return {"plan": None if plan is None else plain(asdict(plan)), "ms": best.ms}

    def revived(self, record: dict[str, Any]) -> Attempt[GraphPlan | None] | None:
        """The plan, if cuDNN still builds it."""
        if record["plan"] is None:
            return Attempt(None, record.get("ms"))
        plan = GraphPlan.of_record(record["plan"])
        if self.is_blocked(plan):
            return None
        try:
            graph.launch(self.form, plan, self.env.cudnn)
        except (SymdnnError, RuntimeError):
            return None
        return Attempt(plan, record.get("ms"))


class _Bench(CallBench[GraphPlan | None]):
    """Runs two kernels and plans."""

    compared_elements = 1 << 18

    def __init__(self, question: _Question) -> None:
        super().__init__(question.env, _TOLERANCE[question.form.dtype])
        self.q = question
        self.made = [self._like(out) for out in question.outputs]

    def _like(self, out: RawArray) -> RawArray:
        room = self.env.empty((out.extent[1] - out.ptr,), "uint8")
        self.env.zero(room.ptr, room.nbytes)  # what lies between rows is compared, too
        return RawArray(room.ptr, out.shape, out.dtype, out.strides, room)

    def enqueuing(self, candidate: GraphPlan | None) -> Callable[[], None]:
        """A function that enqueues a plan, or the two kernels."""
        q, env = self.q, self.env
        if candidate is None:
            return lambda: q.two(env, q.inputs, self.made)
        run = graph.launch(q.form, candidate, env.cudnn)
        at = _pointers(q.form, q.inputs, self.made)
        return lambda: run(env.cudnn, at, env.workspace)

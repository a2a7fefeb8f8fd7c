"""``DebugMode``: checks rewrites and kernels against the references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.compile.modes.noise import SAMPLES, rounded
from symdnn.compile.modes.rewrite_audit import RewriteAudit
from symdnn.compile.modes.tolerance import difference
from symdnn.compile.plan.specialise import TableOracle
from symdnn.compile.program.mode import Audit, Mode, Watch
from symdnn.config import config
from symdnn.errors import DebugModeError
from symdnn.graph.evaluate import note_failure
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call
from symdnn.graph.place import HOST
from symdnn.graph.runtime import garbage
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.values.guard import ValueGuard, of_constants
from symdnn.graph.variable import Apply, Variable


@dataclass(unsafe_hash=True)
class DebugMode(Mode):
    """Compiles and runs with all checks; many times slower than other modes.

    While compiling: the rewriting is repeated (flag ``DebugMode.patience``) and must give the
    same graph each time. At each call: every rewrite's result is evaluated by the references on
    the call's inputs and compared with the replaced value; every kernel is compared with its op's
    reference (``check_py_code``), also on inputs of other strides (``require_matching_strides``,
    flag ``DebugMode.check_strides``) and into memory full of garbage (``check_preallocated_output``
    and the flag of its name); no kernel may change an input that its op does not
    declare in ``may_overwrite``, nor return undeclared views; values must be finite
    (``check_isfinite``, flag ``DebugMode.check_finite``). On a GPU, kernels get no other strides
    than the plan gives them.

    Raises :class:`~symdnn.errors.DebugModeError`.
    """

    #: These compute values of elements that the program leaves out, which may be no numbers.
    excluded: ClassVar[tuple[str, ...]] = ("before_mask",)

    stability_patience: int | None = None
    check_py_code: bool | None = None
    check_isfinite: bool | None = None
    require_matching_strides: bool | None = None
    check_preallocated_output: str | bool | None = None
    #: Theano's name, accepted: there is no C code.
    check_c_code: bool | None = None

    def audit(self, fgraph: FunctionGraph, target: Target) -> Audit | None:
        flag = config.DebugMode.patience
        patience = flag if self.stability_patience is None else self.stability_patience
        return RewriteAudit(fgraph, target, self.selection, int(patience))

    def watch(self, stages: Any, values: Mapping[Variable, Any]) -> Watch | None:
        if stages.audit is not None:
            stages.audit.replay(values)
        return _Debugger(self, stages, values)


def _given(value: bool | None, flag: str) -> bool:
    return bool(config.get(f"DebugMode.{flag}")) if value is None else value


class _Debugger(Watch):
    """The checks around each kernel of one call."""

    def __init__(self, mode: DebugMode, stages: Any, values: Mapping[Variable, Any]) -> None:
        self.stages, self.values = stages, values
        self.oracle = TableOracle(HOST.kind)
        #: Nodes that run on the host; a device's plan fills memory with garbage itself.
        segments = stages.program.segments()
        self.on_host = {n for s in segments if s.place == HOST for n in s.nodes}
        self.by_reference = _given(mode.check_py_code, "check_py")
        self.finite = _given(mode.check_isfinite, "check_finite")
        self.strides = _given(mode.require_matching_strides, "check_strides")
        given = mode.check_preallocated_output
        self.garbage = _given(given if given is None else bool(given), "check_preallocated_output")
        self.before: list[Any] = []
        self.wanted: tuple[Any, ...] | None = None
        #: The values of ``wanted`` for inputs that are rounded at random.
        self.samples: list[tuple[Any, ...]] = []
        self._rng = np.random.default_rng(0)
        #: Opaque values of kernels, by identity, with those of the references.
        self.opaque: dict[int, tuple[Any, Any]] = {}
        self.entered = {v: _copy(a) for v, a in values.items()}

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        if outputs is None:
            self.before = [_copy(a) for a in inputs]
            self.wanted = self.compute_reference(node) if self.by_reference else None
            return
        if self.wanted is not None:
            self.remember_opaque(node, outputs, self.wanted)
        self.check_overwritten(node, inputs, outputs)
        self.check_views(node, inputs, outputs)
        self.check_types(node, outputs)
        if self.wanted is not None:
            self.check_values(node, outputs, self.wanted, "its kernel")
            self.check_other_memory(node)
        if self.finite:
            self.check_finite(node, outputs)

    def finish(self, results: Sequence[Any]) -> None:
        """After the call: arguments and shared variables are as they were, results are right."""
        for v, before in self.entered.items():
            if not _same_bytes(before, self.values[v]):
                raise DebugModeError(f"DebugMode: the call changed its input {v} of type {v.type}")
        if self.stages.audit is not None:
            self.stages.audit.check_results(results, self.stages.fgraph)

    # -- single checks ------------------------------------------------------------------------

    def compute_reference(self, node: Apply) -> tuple[Any, ...] | None:
        if node.op.unmergeable or node.op.private_draws:
            return None  # effects must happen once; private draws can only be checked statistically
        if any(self.is_private(v, a) for v, a in zip(node.inputs, self.before)):
            return None
        known = [self.reference_value(a) for a in self.before]
        given = [_copy(a) for a in known]
        with np.errstate(all="ignore"):
            wanted = node.op.compute(*given)
            self.samples = [self.rounded(node, known) for _ in range(SAMPLES)]
        for i, (a, b) in enumerate(zip(given, known)):
            if not _same_bytes(a, b):
                self.fail(node, f"its reference writes into input {i}; references may not")
        return tuple(_copy(w) for w in wanted)

    def rounded(self, node: Apply, known: Sequence[Any]) -> tuple[Any, ...]:
        """The reference's results for inputs that are rounded at random; None where it fails."""
        try:
            return node.op.compute(*(rounded(_copy(a), self._rng) for a in known))
        except Exception:
            return (None,) * len(node.outputs)

    def is_private(self, v: Variable, value: object) -> bool:
        """Whether it is an opaque value of a kernel without a counterpart of a reference."""
        made = v.owner is not None and not isinstance(v.type, TensorType)
        return made and id(value) not in self.opaque

    def reference_value(self, value: object) -> Any:
        """``value`` for references: for a kernel's opaque value that of the reference."""
        found = self.opaque.get(id(value))
        return value if found is None else found[1]

    def remember_opaque(self, node: Apply, outputs: Sequence[Any], wanted: Sequence[Any]) -> None:
        for v, got, own in zip(node.outputs, outputs, wanted):
            if isinstance(v.type, OpaqueType):
                self.opaque[id(got)] = (got, own)

    def check_overwritten(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for i, (value, before) in enumerate(zip(inputs, self.before)):
            if not _same_bytes(value, before) and not _may_overwrite(node, i, value, outputs):
                self.fail(
                    node,
                    f"its kernel changed input {i} ({node.inputs[i]}), which the op does not "
                    "declare in may_overwrite",
                )

    def check_views(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for o, out in enumerate(outputs):
            for i, value in enumerate(inputs):
                declared = node.op.views.get(o) == i or i in node.op.may_overwrite.get(o, ())
                if _share(out, value) and not declared and not _aliased(node, i, inputs):
                    self.fail(
                        node, f"output {o} shares memory with input {i}, which `views` does not say"
                    )
            for p in range(o):
                if _share(out, outputs[p]):
                    self.fail(node, f"outputs {p} and {o} share memory")

    def check_types(self, node: Apply, outputs: Sequence[Any]) -> None:
        for v, a in zip(node.outputs, outputs):
            if isinstance(v.type, TensorType) and (
                a.dtype != v.type.numpy or not _fits(v.type.shape, a.shape)
            ):
                self.fail(node, f"output {v.index} is {a.dtype}{a.shape}, its type {v.type}")

    def check_values(
        self, node: Apply, got: Sequence[Any], wanted: Sequence[Any], who: str
    ) -> None:
        results = [node.op.comparable(r) for r in (got, wanted, *self.samples)]
        for v, a, b, *samples in zip(node.outputs, *results):
            if not isinstance(v.type, TensorType):
                continue
            if why := difference(b, a, exact_nan=True, samples=samples):
                which = f"output {v.index}: " if len(node.outputs) > 1 else ""
                self.fail(node, f"{who} disagrees with the reference. {which}{why}")

    def check_other_memory(self, node: Apply) -> None:
        assert self.wanted is not None
        if node not in self.on_host or node.op.views or node.op.unmergeable:
            return
        variants: list[tuple[str, Any, Any]] = []
        if self.strides:
            variants.append(("its kernel on inputs of other strides", _strided, np.empty))
        if self.garbage:
            variants.append(("its kernel writing into garbage", _copy, garbage))
        for who, lay, make in variants:
            inputs = [lay(a) for a in self.before]
            outputs: list[Any] = [
                make(w.shape, w.dtype) if isinstance(w, np.ndarray) else None for w in self.wanted
            ]
            call = _call(node, self.before, self.wanted)
            results = self.oracle.choose(call).kernel.bind(call)(inputs, outputs)
            self.check_values(node, outputs if results is None else results, self.wanted, who)

    def check_finite(self, node: Apply, outputs: Sequence[Any]) -> None:
        for v, a in zip([] if of_constants(node) else node.outputs, outputs):
            checked = isinstance(v.type, TensorType) and v.type.is_float
            if checked and ValueGuard(big=False).of(v).is_faulty(a):
                self.fail(node, f"output {v.index} is not finite (flag DebugMode.check_finite)")

    def fail(self, node: Apply, why: str) -> None:
        error = DebugModeError(f"DebugMode: {node.op}: {why}")
        note_failure(error, node, self.before)
        raise error


def _may_overwrite(node: Apply, i: int, value: object, outputs: Sequence[Any]) -> bool:
    allowed = node.op.may_overwrite
    return any(_share(value, out) and i in allowed.get(o, ()) for o, out in enumerate(outputs))


def _aliased(node: Apply, i: int, inputs: Sequence[Any]) -> bool:
    """Whether input ``i`` is the same memory as another input that the op declares."""
    declared = {*node.op.views.values(), *(k for ks in node.op.may_overwrite.values() for k in ks)}
    return any(k != i and k < len(inputs) and _share(inputs[k], inputs[i]) for k in declared)


def _share(a: object, b: object) -> bool:
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and np.may_share_memory(a, b)
        and np.shares_memory(a, b)
    )


def _copy(value: object) -> Any:
    return np.array(value, copy=True) if isinstance(value, np.ndarray) else value


def _same_bytes(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ndarray):
        return True
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def _fits(static: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(static) == len(shape) and all(s is None or s == n for s, n in zip(static, shape))


def _strided(value: object) -> Any:
    """The same values in every second element of a larger array."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return _copy(value)
    wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1]), value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]


def _call(node: Apply, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    def typed(v: Variable, a: Any) -> Any:
        return v.type.with_shape(a.shape) if isinstance(v.type, TensorType) else v.type

    return Call(
        node.op,
        tuple(typed(v, a) for v, a in zip(node.inputs, inputs)),
        tuple(typed(v, a) for v, a in zip(node.outputs, outputs)),
        node.hints,
    )

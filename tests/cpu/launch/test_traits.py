"""Every kernel of the CPU says whose code it runs, and plans go by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute.targets import load_kernels
from symdnn.config import config
from symdnn.graph import kernel as table
from symdnn.graph.kernel import FOREIGN, Traits, kernels_for
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from tests.test_op_table import concrete_ops

load_kernels(Target("cpu"))
KERNELS: dict[str, Any] = {
    f"{type(k).__module__}.{type(k).__qualname__}.{k.name}": k
    for op in [*concrete_ops(), Op]
    for k in kernels_for(op, "cpu")
}


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_registered_kernel_declares_its_traits(name: str) -> None:
    kernel = KERNELS[name]
    assert isinstance(kernel.traits, Traits), "declare `traits` in the class"
    assert kernel.traits.backend in ("numpy", "llvm", "onednn", "lapack", "pocketfft", "mpi")
    prefix = kernel.name.split(".")[0]
    if prefix in ("llvm", "onednn", "lapack"):
        assert kernel.traits.backend == prefix
    assert kernel.traits.threaded <= kernel.traits.closed


def test_the_table_has_kernels_of_every_kind() -> None:
    found = {(k.traits.backend, k.traits.closed) for k in KERNELS.values()}
    assert found == {
        ("numpy", True), ("numpy", False), ("llvm", True), ("onednn", True), ("lapack", False),
        ("pocketfft", True), ("mpi", True),
    }  # fmt: skip


def test_an_undeclared_kernel_promises_nothing() -> None:
    found = FOREIGN
    assert not any([found.threaded, found.closed, found.compiled, found.replaceable])


def plan_of(build: Callable[..., Any], *arrays: Any) -> Any:
    inputs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function(inputs, build(*inputs))
        for _ in range(3):
            f(*arrays)
    (plan,) = f.plans()
    return plan.bound


WIDE = np.ones((64, 96), "float32")
VIEWS: dict[str, Callable[..., Any]] = {
    "none": lambda x: T.exp(x) * 2,
    "reshape": lambda x: T.exp(x).reshape((96, 64)) * 2,
    "transpose": lambda x: T.exp(x).T.sum(axis=0),
    "dimshuffle": lambda x: T.exp(x).dimshuffle(1, "x", 0),
    "slice": lambda x: T.exp(x[1:, ::2]),
    "flatten": lambda x: T.exp(x.flatten()),
    "several": lambda x: T.exp(x.T[1:].reshape((-1,)))[3:],
    "of a result": lambda x: T.tanh(x)[1:].T,
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_is_no_kernel_and_costs_no_fast_path(kind: str) -> None:
    bound = plan_of(VIEWS[kind], WIDE)
    assert bound.closed
    assert not bound.calls_blas
    assert bound.simple == (not bound.stored)


def test_a_reference_beside_threads_may_call_blas() -> None:
    bound = plan_of(lambda x, y: T.exp(x).sum() + T.dot(y, y).sum(), WIDE, np.ones((40, 40)))
    names = {c.kernel.name for c in bound.spec.choices.values()}
    open_ = [c.kernel for c in bound.spec.choices.values() if not c.kernel.traits.closed]
    assert bound.calls_blas == bool(open_ and bound.threaded), names


def test_a_kernel_from_outside_is_not_replaced(monkeypatch: Any) -> None:
    from symdnn.cpu.reference.kernels import ReferenceKernel
    from symdnn.ops.elementwise.math import Exp

    class Own:
        name = "own.exp"
        refuses, workspace_bytes = ReferenceKernel().refuses, ReferenceKernel().workspace_bytes

        def bind(self, call: Any) -> Any:
            return ReferenceKernel().bind(call)

    monkeypatch.setitem(table._table, (Exp, "cpu"), [])
    table.register_kernel(Exp, "cpu", Own())
    x = T.fvector("x")
    f = symdnn.function([x], T.exp(x), mode=symdnn.Mode(optimizer=None))
    for _ in range(1100):
        f(np.zeros(4, "float32"))
    (plan,) = f.plans()
    assert not plan.bound.tier_up_kernels
    assert not plan.bound.closed

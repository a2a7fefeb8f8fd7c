"""DebugMode, NanGuardMode, MonitorMode, modes by name."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes import rewrite_audit
from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.modes.modes import get_default_mode, get_mode
from symdnn.compile.modes.monitor import MonitorMode
from symdnn.compile.nanguard import NanGuardMode
from symdnn.config import config
from symdnn.cpu.reference.kernels import ReferenceKernel
from symdnn.errors import DebugModeError, NanDetected
from symdnn.graph import kernel as kernel_table
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.variable import constant
from symdnn.ops.elementwise.math import Exp
from symdnn.opt import optimise as optimise_module
from symdnn.rewriting.rewrite import node_rewrite


@dataclass(frozen=True)
class Elementwise(Op):
    abstract: ClassVar[bool] = True

    def infer(self, x):
        return x

    def shapes(self, types, shapes, host):
        return [shapes[0]]


@dataclass(frozen=True)
class Scribbles(Elementwise):
    """Writes into its input without saying so."""

    def reference(self, x):
        x += 1
        return x * 2


@dataclass(frozen=True)
class Doubles(Elementwise):
    def reference(self, x):
        return x * 2


@dataclass(frozen=True)
class BadKernel(ReferenceKernel):
    """A kernel for ``Doubles`` that goes wrong as told."""

    name: str = "test.bad"
    fault: str = ""

    def bind(self, call):
        fault = self.fault

        def launch(inputs, outputs):
            (x,), (out,) = inputs, outputs
            np.multiply(x, 2, out=out)
            if fault == "wrong":
                out += 1e-3
            elif fault == "writes":
                x[...] = 0
            elif fault == "strides" and not x.flags.c_contiguous:
                out[...] = 0
            elif fault == "returns input":
                return [x]
            return [out]

        return launch


@pytest.fixture
def bad_kernel(monkeypatch):
    def use(fault):
        table = {**kernel_table._table, (Doubles, "cpu"): [BadKernel(fault=fault)]}
        monkeypatch.setattr(kernel_table, "_table", table)

    return use


QUICK = {"stability_patience": 1}


def test_a_network_passes_every_check():
    rng = np.random.default_rng(0)
    x, t = T.dmatrix("x"), T.lvector("t")
    w = symdnn.shared(rng.standard_normal((4, 3)), "w")
    b = symdnn.shared(np.zeros(3), "b")
    y = T.nnet.softmax(T.dot(x, w) + b)
    loss = -T.log(y)[T.arange(t.shape[0]), t].mean() + (w**2).sum() * 1e-3
    updates = [(p, p - 0.1 * g) for p, g in zip((w, b), T.grad(loss, [w, b]))]
    start = w.get_value()
    plain = symdnn.function([x, t], loss, updates=updates)
    a, labels = rng.standard_normal((6, 4)), rng.integers(0, 3, 6)
    wanted = [plain(a, labels) for _ in range(2)]
    trained = w.get_value()
    w.set_value(start)
    b.set_value(np.zeros(3))
    f = symdnn.function([x, t], loss, updates=updates, mode=DebugMode(stability_patience=3))
    np.testing.assert_allclose([f(a, labels) for _ in range(2)], wanted)
    np.testing.assert_allclose(w.get_value(), trained)
    assert f.stages.audit.replacements  # there was something to check


def test_scans_masks_and_choices_pass():
    x, c = T.dvector("x"), T.lscalar("c")
    kept = x[T.gt(x, 0).nonzero()[0]]
    out = symdnn.ifelse(c, kept.sum(), T.exp(x[::-1][:2]).max())
    f = symdnn.function([x, c], [out, x[c:] * 2, x.reshape((-1, 1)).T], mode=DebugMode(**QUICK))
    a = np.array([1.0, -2.0, 3.0])
    for flag, wanted in [(1, 4.0), (0, np.exp(3.0))]:
        np.testing.assert_allclose(f(a, flag)[0], wanted)


def test_an_op_that_writes_into_its_input_is_found():
    x = T.dvector("x")
    f = symdnn.function([x], Scribbles()(x * 1.5), mode=DebugMode(**QUICK))
    with pytest.raises(DebugModeError, match=r"Scribbles.*reference writes into input 0") as info:
        f(np.ones(3))
    assert __file__ in "".join(info.value.__notes__)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong", "its kernel disagrees with the reference.*largest difference 0.001"),
        ("writes", r"its kernel changed input 0 .*may_overwrite"),
        ("strides", "its kernel on inputs of other strides disagrees"),
        ("returns input", "output 0 shares memory with input 0"),
    ],
)
def test_kernels_that_go_wrong_are_found(bad_kernel, fault, message):
    bad_kernel(fault)
    x = T.dvector("x")
    f = symdnn.function([x], Doubles()(T.exp(x)) + 1, mode=DebugMode(**QUICK))
    with pytest.raises(DebugModeError, match=message):
        f(np.ones(3))


def test_a_kernel_that_is_right_passes(bad_kernel):
    bad_kernel("")
    x = T.dvector("x")
    f = symdnn.function([x], Doubles()(x), mode=DebugMode(**QUICK))
    assert f(np.ones(2)).tolist() == [2, 2]


def add_rule(monkeypatch, rule):
    real = optimise_module.rules_by_phase

    def rules(selection, known):
        found = real(selection, known)
        return found | {rule.phase: (*found[rule.phase], rule)}

    monkeypatch.setattr(optimise_module, "rules_by_phase", rules)


def test_a_wrong_rewrite_is_named(monkeypatch):
    @node_rewrite(Exp, phase="stabilize", tags=("fast_run",))
    def exp_is_zero(node, context):
        return node.inputs[0] * 0.0

    add_rule(monkeypatch, exp_is_zero)
    x = T.dvector("x")
    y = T.exp(x + 1)
    f = symdnn.function([x], y * 3, mode=DebugMode(**QUICK))
    with pytest.raises(DebugModeError, match=r"rewrite exp_is_zero replaced .*Exp") as info:
        f(np.ones(2))
    assert __file__ in "".join(info.value.__notes__)


def test_rewriting_that_differs_each_time_is_found(monkeypatch):
    made = iter(range(100))

    @node_rewrite(Exp, phase="stabilize", tags=("fast_run",))
    def sometimes(node, context):
        return node.inputs[0] * constant(float(next(made)), dtype="float64")

    add_rule(monkeypatch, sometimes)
    x = T.dvector("x")
    with pytest.raises(DebugModeError, match="gave another graph"):
        symdnn.function([x], T.exp(x), mode=DebugMode(stability_patience=2))


def test_values_must_be_finite_unless_told_otherwise():
    x = T.dvector("x")
    with pytest.raises(DebugModeError, match="not finite"):
        symdnn.function([x], T.log(x), mode=DebugMode(**QUICK))(np.zeros(2))
    f = symdnn.function([x], T.log(x), mode=DebugMode(check_isfinite=False, **QUICK))
    assert np.isneginf(f(np.zeros(2))).all()


def test_a_failing_untaken_branch_is_no_fault():
    from symdnn.ops.core.gradient_control import assert_

    x, c = T.dvector("x"), T.lscalar("c")
    out = symdnn.ifelse(c, assert_(x, T.lt(x, 0)).sum(), x.max())
    f = symdnn.function([x, c], out, mode=DebugMode(**QUICK))
    assert f(np.ones(2), 0) == 1


def test_audit_is_left_behind_by_copies():
    x = T.dvector("x")
    f = symdnn.function([x], T.exp(x), mode=DebugMode(**QUICK))
    assert isinstance(f.stages.audit, rewrite_audit.RewriteAudit)
    assert f.copy()(np.zeros(1)) == 1


# -- NanGuardMode ----------------------------------------------------------------------------------


def test_nan_guard_names_node_line_and_ranges():
    x, y = T.dvector("x"), T.dvector("y")
    f = symdnn.function([x, y], T.log(x - y) * 2, mode=NanGuardMode())
    assert f([2.0], [1.0]) == 0
    with pytest.raises(NanDetected) as info:
        f([1.0, 5.0], [2.0, 0.5])
    message = str(info.value)
    assert "Log contains NaN in 1 of 2 elements" in message
    assert "min -1, max 4.5" in message
    assert __file__ in "".join(info.value.__notes__)  # once, in the note


@pytest.mark.parametrize(
    ("options", "value", "message"),
    [
        ({}, np.inf, "the input x of type .* contains an infinity"),
        ({}, np.nan, "the input x of type .* contains NaN"),
        ({}, 1e11, r"contains values above 1e\+10 in 1 of 2"),
        ({"inf_is_error": False}, np.inf, None),
        ({"nan_is_error": False}, np.nan, None),
        ({"big_is_error": False}, 1e11, None),
    ],
)
def test_nan_guard_looks_for_what_it_is_told(options, value, message):
    x = T.dvector("x")
    f = symdnn.function([x], x + 1, mode=NanGuardMode(**options))
    expected = nullcontext() if message is None else pytest.raises(NanDetected, match=message)
    with expected:
        f([value, 1.0])


def test_nan_guard_keeps_shared_variables_as_they_were():
    x = T.dscalar("x")
    w = symdnn.shared(1.0, "w")
    f = symdnn.function([x], w, updates=[(w, w + T.log(x))], mode="NanGuardMode")
    with pytest.raises(NanDetected):
        f(-1)
    assert w.get_value() == 1


@pytest.mark.cpu
def test_nan_guard_can_warn():
    x = T.dvector("x")
    f = symdnn.function([x], T.log(x), mode=NanGuardMode())
    with (
        config.change_flags({"NanGuardMode.action": "warn"}),
        pytest.warns(RuntimeWarning, match="Log contains NaN"),
    ):
        assert np.isnan(f([-1.0])).all()


@pytest.mark.cpu
def test_nan_guard_and_profile(capsys):
    x = T.dvector("x")
    f = symdnn.function([x], T.log(x) * 2, mode=NanGuardMode(), profile=True)
    assert f([1.0]) == 0
    assert [name for name, *_ in f.profile.by_op()] == ["FusedElemwise"]
    with pytest.raises(NanDetected, match="Log contains NaN"):
        f([-1.0])
    capsys.readouterr()


# -- MonitorMode -----------------------------------------------------------------------------------


@pytest.mark.cpu
def test_monitor_sees_each_node():
    seen = []

    def before(i, node, fn):
        seen.append(("before", i, type(node.op).__name__, fn.outputs[0][0]))

    def after(i, node, fn):
        seen.append(("after", i, fn.inputs[0][0].tolist(), fn.outputs[0][0].tolist()))

    x = T.dvector("x")
    mode = MonitorMode(pre_func=before, post_func=after, optimizer="None")
    f = symdnn.function([x], T.exp(x).sum(), mode=mode)
    f([0.0, 0.0])
    assert seen == [
        ("before", 0, "Exp", None),
        ("after", 0, [0, 0], [1, 1]),
        ("before", 1, "Sum", None),
        ("after", 1, [1, 1], 2),
    ]


# -- by name and by flag ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [("DebugMode", DebugMode), ("DEBUG_MODE", DebugMode), ("NanGuardMode", NanGuardMode),
     ("FAST_RUN", symdnn.Mode), ("FAST_COMPILE", symdnn.Mode), ("Mode", symdnn.Mode)],
)  # fmt: skip
def test_modes_by_name_and_flag(name, kind):
    assert type(get_mode(name)) is kind
    with config.change_flags(mode=name):
        assert type(get_default_mode()) is kind
        x = T.dvector("x")
        assert type(symdnn.function([x], x + 1).mode) is kind


def test_an_unknown_mode_or_optimizer():
    with pytest.raises(ValueError, match="mode 'fast': wanted one of Mode, FAST_RUN"):
        get_mode("fast")
    with pytest.raises(ValueError, match="optimizer 'o9': wanted one of"):
        symdnn.Mode(optimizer="o9")


def test_including_keeps_the_kind_of_mode():
    mode = NanGuardMode(nan_is_error=False).excluding("fusion").including("gpuarray")
    assert isinstance(mode, NanGuardMode)
    assert mode.nan_is_error is False
    assert "fusion" in mode.selection.exclude
    assert isinstance(resolve(mode), Target)


def resolve(mode):
    x = T.dvector("x")
    return symdnn.function([x], x * 2, mode=mode).stages.target

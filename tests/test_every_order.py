"""Derivatives of second order of every op in the table, in both modes, against differences."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import Rop, grad
from symdnn.errors import NonDifferentiable
from symdnn.graph.evaluate import evaluate, evaluator
from symdnn.graph.variable import Variable
from tests.op_table import of_each
from tests.op_table.record import OpCase
from tests.test_op_table import (
    CASES,
    away_from_zero,
    case_rng,
    check_slopes,
    draw,
    in_double,
    outputs,
    variables,
)

LATE = "it is made after gradients are taken"
ROUNDED = "its type says 16 bits or single precision, in which differences have no digits"
IMPLICIT = "its gradient is implicit, by the distribution: another than that of one draw's numbers"
KINK = "the record is about a point where a derivative jumps"

#: Records without derivatives of second order, and why. All others are tested.
EXEMPT: dict[str, str] = {
    "undefined_grad": "it refuses a gradient by its definition",
    "grad_scale": "its gradient is another's by its definition",
    "qr_complete": "the other columns of q are no function of the matrix",
    "svd_full": "the other vectors are no function of a matrix that is not square",
    **dict.fromkeys(
        (
            "cast_bfloat16", "conv_bfloat16", "dot_bfloat16", "pool_bfloat16", "max_bfloat16",
            "cast", "fft_of_complex64", "irfft_complex64", "fused_elementwise_float16",
            "gemm_widened", "gemm_float8", "gemm_bias_grad_widened", "gemm_kept_half",
        ),
        ROUNDED,
    ),
    **dict.fromkeys(
        (
            "max_pool_grad_ties", "xlogx_zeros", "xlogy0_zeros", "xlog1py_zeros",
            "slogdet_singular", "logsumexp_infinite", "round_halves", "round_away_halves",
            "rel_entr_zeros",
        ),
        KINK,
    ),
    **dict.fromkeys(("all_reduce_halves", "all_succeeded"), LATE),
    **dict.fromkeys(
        (
            "narrow_float8_e4m3fn", "narrow_float8_e5m2", "narrow_float6_e2m3fn",
            "narrow_float4_e2m1fn", "narrow_overflow", "narrow_powers",
        ),
        ROUNDED,
    ),
    **dict.fromkeys(("random_log_gamma", "random_log_gamma_row", "random_von_mises"), IMPLICIT),
}  # fmt: skip

#: Those whose tangent is not that of their value, by their definition.
NOT_OF_THE_VALUE = {
    "disconnected_grad": "its gradient is none",
    "zero_grad": "its gradient is zero",
    "grad_clip": "it is about the gradient: forward mode refuses it",
    "cbrt_far": "at infinity there are no differences",
    "rel_entr_zeros": "where it is infinite there are no differences",
    "forward_fill_leading": "before the first number it is NaN",
}


def costs_and_inputs(case: OpCase) -> tuple[list[Variable], list[Variable]]:
    """The outputs with derivatives, and the inputs that have some."""
    vs = variables(case, draw(case))
    outs = [o for o in outputs(case, vs) if getattr(o.type, "is_differentiable", False)]
    return outs, [v for v in vs if v.type.is_differentiable]


DIFFERENTIABLE = [c for c in CASES if c.id not in EXEMPT and all(costs_and_inputs(c))]


class Point:
    """A record's variables and double values, its outputs and a number that all of them make."""

    def __init__(self, case: OpCase, salt: int) -> None:
        self.arrays = [in_double(a) for a in draw(case, salt)]
        self.vs = variables(case, self.arrays)
        made = outputs(case, self.vs)
        self.outs = [o for o in made if getattr(o.type, "is_differentiable", False)]
        self.wrt = [v for v in self.vs if v.type.is_differentiable]
        self.values = dict(zip(self.vs, self.arrays))
        rng, terms = case_rng(case, 6), []
        for o, value in zip(self.outs, evaluate(self.outs, self.values)):
            w = away_from_zero(rng, np.shape(value))
            terms.append((abs(o) ** 2 * w if o.type.is_complex else o * o * w + o * w).sum())
        self.cost = sum(terms[1:], terms[0])

    def gradients(self) -> list[Variable] | None:
        """Of the number; None where the record is of ops that have no gradient at all."""
        try:
            return list(grad(self.cost, self.wrt, disconnected_inputs="ignore"))
        except NonDifferentiable:
            return None


def squares(found: list[Variable]) -> Variable:
    terms = [(abs(g) ** 2 if g.type.is_complex else g * g).sum() for g in found]
    return sum(terms[1:], terms[0])


#: Ops that rewriting makes after gradients are taken: they have no gradient of any order.
LATE_OPS = (
    "BatchMoments", "BatchSums", "Compressed", "Counted", "FusedComplex",
    "FusedElemwise", "FusedIndexed", "FusedPlacedSums", "FusedReduce", "FusedRows",
    "FusedStencil", "GpuGemm", "GpuGemmBiasGrad", "GroupNorm", "GpuDnnConvBiasActivation",
    "GpuDnnRNNGradInputs", "GpuQuantized", "LabelLoss", "ListedSums", "Move", "OneDnn",
    "PlacedSums", "SoftmaxParts", "SomeChosen", "Stream", "Totals",
)  # fmt: skip


def is_late(case: OpCase) -> bool:
    return any(o.__name__.startswith(LATE_OPS) for o in case.ops)


@of_each(DIFFERENTIABLE, every=6)
def test_gradient_of_a_gradient_agrees_with_differences(case: OpCase) -> None:
    point = Point(case, 4)
    first = point.gradients()
    assert first is not None or is_late(case), "it has no gradient"
    if first is not None:
        tolerance = 30 * case.grad_tol
        check_slopes(case, squares(first), point.vs, point.arrays, tolerance)


@of_each([c for c in DIFFERENTIABLE if c.id not in NOT_OF_THE_VALUE], every=6)
def test_forward_mode_of_values_and_of_gradients_agrees_with_differences(case: OpCase) -> None:
    """Tangents of all outputs and of the gradients, along one direction."""
    if is_late(case):
        return
    point, rng, step = Point(case, 4), case_rng(case, 5), 1e-6
    first = point.gradients()
    assert first is not None
    turns = [_turn(rng, v, np.shape(point.values[v])) for v in point.wrt]
    at = evaluator([*point.outs, *first], point.vs)
    sides = []
    for moved in (step, -step):
        near = {v: point.values[v] + moved * t for v, t in zip(point.wrt, turns)}
        sides.append(at(point.values | near))
    tangents = Rop([*point.outs, *first], point.wrt, turns, disconnected_outputs="ignore")
    tolerance = 30 * case.grad_tol
    for got, up, down in zip(evaluate(tangents, point.values), *sides):
        moves = ~(np.isinf(up) & (up == down))  # a log-sum-exp of no terms is -inf, and stays it
        wanted = (up[moves] - down[moves]) / (2 * step)
        size = float(np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted)))
        np.testing.assert_allclose(got[moves], wanted, rtol=tolerance, atol=tolerance * size)


def _turn(rng: np.random.Generator, v: Variable, shape: tuple[int, ...]) -> np.ndarray:
    turn = away_from_zero(rng, shape)
    return turn + 1j * away_from_zero(rng, shape) if v.type.is_complex else turn


def test_exemptions_are_records():
    ids = {c.id for c in CASES}
    assert not [i for i in (*EXEMPT, *NOT_OF_THE_VALUE) if i not in ids]


@pytest.mark.parametrize("name", ["rnn_lstm_1_bi_float64", "ctc", "transformer_sampler"])
def test_derivatives_of_third_order_of_what_is_written_out(name):
    case = next(c for c in CASES if c.id == name)
    point = Point(case, 3)
    (second,) = grad(squares(point.gradients()), point.wrt[:1])
    point.wrt = point.wrt[:1]
    vs = [v for v in point.vs if v is point.wrt[0]]
    others = {v: a for v, a in point.values.items() if v is not vs[0]}
    slope = (second * second).sum()
    third = grad(slope, vs[0])
    turn = away_from_zero(case_rng(case, 5), point.values[vs[0]].shape)
    sides = [
        evaluate([slope], {**others, vs[0]: point.values[vs[0]] + step * turn})[0]
        for step in (1e-6, -1e-6)
    ]
    (found,) = evaluate([third], point.values)
    wanted = (sides[0] - sides[1]) / 2e-6
    np.testing.assert_allclose((found * turn).sum(), wanted, rtol=1e-4)

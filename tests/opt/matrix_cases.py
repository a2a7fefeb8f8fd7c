"""Records of the rules of linear algebra."""

from symdnn.ops.array.create import Diagonal, alloc_diag, diagonal, tril, triu
from symdnn.ops.array.reduce import Sum
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.elementwise.arithmetic import Cast, abs, sqr
from symdnn.ops.elementwise.math import exp, log
from symdnn.ops.linalg.dot import BatchedDot, Dot, dot, matmul
from symdnn.ops.matrix.base import transposed
from symdnn.ops.matrix.cholesky import Cholesky, cholesky
from symdnn.ops.matrix.determinant import (
    AdjugateGrad,
    Det,
    PositiveLogDet,
    SLogDet,
    det,
    slogdet,
)
from symdnn.ops.matrix.eigen import Eig, Eigh, Eigvalsh, eig, eigh, eigvals, eigvalsh
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.qr import qr
from symdnn.ops.matrix.solve import MatrixInverse, Solve, inv, solve
from symdnn.ops.matrix.svd import SVD, Lstsq, MatrixPinv, pinv, svd
from tests.opt.harness import Arg, RuleCase, f64

SQUARE = (f64("n", "n"),)
SYSTEM = (f64("n", "n"), f64("n", "m"))
STACK = (f64("k", "n", "n"), f64("k", "n", "m"))
VECTOR = (f64("n", "n"), f64("n"))
COMPLEX = (Arg("complex128", ("n", "n")),)
STATIC = (f64(3, 4), f64(4, 3))
NEAR = {"rtol": 1e-6}


def gram(x):
    return dot(x.T, x) + alloc_diag(sum_(sqr(x), axis=0) + 1.0)


def kernel(x):
    """The squared exponential of distances between rows."""
    squares = sum_(sqr(x), axis=1)
    distances = (squares.dimshuffle(0, "x") + squares.dimshuffle("x", 0)) - 2.0 * dot(x, x.T)
    return exp(-distances) + alloc_diag(sum_(sqr(x), axis=1) + 1.0)


def laplacian(x, more=0.0):
    """A kernel of distances, which are sums of differences of all pairs of rows."""
    first, second = x.dimshuffle(0, "x", 1), x.dimshuffle("x", 0, 1)
    near = exp(-sum_(sqr(first - second) + abs(second - first), axis=2))
    turned = sum_(first - second, axis=2) * more if more else 0.0
    return near + turned + alloc_diag(sum_(sqr(x), axis=1) + 1.0)


def hermitian(x):
    return dot(transposed(x).conj(), x)


CASES = [
    # logarithms
    RuleCase("log_of_abs_of_det", SQUARE, lambda a: log(abs(det(a))), lambda a: slogdet(a)[1],
             lambda a: log(1 + abs(det(a))), **NEAR),
    RuleCase("log_of_abs_of_det", COMPLEX, lambda a: log(abs(det(a))), lambda a: slogdet(a)[1],
             lambda a: log(abs(det(a).real)), id="log_of_abs_of_complex_det", **NEAR),
    RuleCase("log_of_square_of_det", SQUARE, lambda a: log(sqr(det(a))),
             lambda a: slogdet(a)[1] * 2, lambda a: log(det(a) * 2), **NEAR),
    RuleCase("log_of_det", SQUARE, lambda a: log(det(a)),
             lambda a: log(slogdet(a)[0]) + slogdet(a)[1], lambda a: log(det(a) + 1), **NEAR),
    # products with an inverse
    RuleCase("inverse_times", SYSTEM, lambda a, b: dot(inv(a), b), lambda a, b: solve(a, b),
             lambda a, b: [dot(inv(a), b), inv(a)], **NEAR),
    RuleCase("inverse_times", STACK, lambda a, b: matmul(inv(a), b), None,
             lambda a, b: [matmul(inv(a), b), inv(a)], gone=(MatrixInverse,), made=(Solve,),
             id="inverses_times", **NEAR),
    RuleCase("inverse_times", VECTOR, lambda a, b: dot(inv(a).T, b),
             lambda a, b: Solve(transposed=True)(a, b.dimshuffle(0, "x")).dimshuffle(0),
             lambda a, b: dot(a.T, b), id="transposed_inverse_times", **NEAR),
    RuleCase("times_inverse", (f64(6, 2), f64(2, 2)), lambda b, a: dot(b, inv(a)),
             None, lambda b, a: dot(b, inv(a)), miss_args=(f64(16, 2), f64(2, 2)),
             gone=(MatrixInverse,), made=(Solve,), id="many_rows_times_inverse", **NEAR),
    RuleCase("inverse_times", (f64(2, 2), f64(2, 6)), lambda a, b: dot(inv(a), b),
             None, lambda a, b: dot(inv(a), b), miss_args=(f64(2, 2), f64(2, 16)),
             gone=(MatrixInverse,), made=(Solve,), id="inverse_times_many_columns", **NEAR),
    RuleCase("times_inverse", (f64("m", "n"), f64("n", "n")), lambda b, a: dot(b, inv(a)),
             lambda b, a: Solve(transposed=True)(a, b.T).T,
             lambda b, a: [dot(b, inv(a)), inv(a)], **NEAR),
    RuleCase("times_inverse", (f64("n"), f64("n", "n")), lambda b, a: dot(b, inv(a)), None,
             lambda b, a: dot(b, a), gone=(MatrixInverse, Dot), made=(Solve,),
             id="vector_times_inverse", **NEAR),
    RuleCase("times_inverse", (f64("k", "m", "n"), f64("k", "n", "n")),
             lambda b, a: matmul(b, inv(a)), None, lambda b, a: [matmul(b, inv(a)), inv(a)],
             gone=(MatrixInverse,), made=(Solve,), id="times_inverses", **NEAR),
    # transposes
    RuleCase("inverse_of_transposed", SQUARE, lambda a: inv(a.T), lambda a: inv(a).T,
             lambda a: inv(a).T, **NEAR),
    RuleCase("inverse_of_inverse", SQUARE, lambda a: inv(inv(a, check=False)), lambda a: a,
             lambda a: inv(inv(a)), **NEAR),
    RuleCase("det_of_transposed", SQUARE, lambda a: [det(a.T), *slogdet(a.T)],
             lambda a: [det(a), *slogdet(a)], lambda a: det(a).T, **NEAR),
    RuleCase("solve_of_transposed", SYSTEM, lambda a, b: solve(a.T, b),
             lambda a, b: solve(a, b, transposed=True), lambda a, b: solve(a, b), **NEAR),
    RuleCase("solve_of_transposed", SYSTEM, lambda a, b: solve(a.T, b, "upper triangular"),
             lambda a, b: solve(a, b, "lower triangular", transposed=True),
             lambda a, b: solve(a.T, b, "pos", check=False), id="triangle_of_transposed", **NEAR),
    # triangles
    RuleCase("det_of_triangle", SQUARE, lambda a: det(tril(a)), None, lambda a: det(tril(a, 1)),
             gone=(Det,), made=(Diagonal,), **NEAR),
    RuleCase("det_of_triangle", SQUARE, lambda a: det(triu(a).T), None,
             lambda a: det(triu(a, -1).T), gone=(Det,), id="det_of_upper_triangle", **NEAR),
    RuleCase("slogdet_of_triangle", SQUARE, lambda a: slogdet(tril(a)), None,
             lambda a: slogdet(a + tril(a)), gone=(SLogDet,), made=(Diagonal,), **NEAR),
    RuleCase("slogdet_of_triangle", COMPLEX, lambda a: slogdet(alloc_diag(diagonal(a))), None,
             slogdet, gone=(SLogDet,), id="slogdet_of_diagonal", **NEAR),
    RuleCase("solve_of_triangle", SYSTEM, lambda a, b: solve(qr(a, "r"), b),
             lambda a, b: solve(qr(a, "r"), b, "upper triangular"),
             lambda a, b: solve(qr(a)[0], b), **NEAR),
    # equal to the adjoint
    RuleCase("solve_of_symmetric", SYSTEM, lambda a, b: solve(gram(a), b),
             lambda a, b: solve(gram(a), b, "her", lower=True),
             lambda a, b: solve(dot(a, a), b), **NEAR),
    RuleCase("solve_of_symmetric", SYSTEM, lambda a, b: solve(dot(dot(a.T, a + a.T), a), b),
             lambda a, b: solve(dot(dot(a.T, a + a.T), a), b, "her", lower=True),
             lambda a, b: solve(dot(dot(a.T, a), a), b), id="solve_of_congruent",
             sizes={"n": 2}, **NEAR),
    RuleCase("lower_of_symmetric", SYSTEM, lambda a, b: solve(gram(a), b, "pos"),
             lambda a, b: solve(gram(a), b, "pos", lower=True),
             lambda a, b: solve(gram(a) + 1e-9 * a, b, "pos"), **NEAR),
    RuleCase("lower_of_symmetric", SQUARE, lambda a: cholesky(gram(a), lower=False),
             lambda a: transposed(cholesky(gram(a))),
             lambda a: cholesky(gram(a) + 1e-9 * a, lower=False), id="lower_factor", **NEAR),
    RuleCase("lower_of_symmetric", SYSTEM,
             lambda a, b: [cholesky(kernel(a)), solve(kernel(a), b, "pos")],
             lambda a, b: [cholesky(kernel(a)), solve(kernel(a), b, "pos", lower=True)],
             lambda a, b: solve(kernel(a) + exp(a) * 1e-9, b, "pos"), id="lower_of_kernel", **NEAR),
    RuleCase("lower_of_symmetric", SYSTEM, lambda a, b: solve(laplacian(a), b, "pos"),
             lambda a, b: solve(laplacian(a), b, "pos", lower=True),
             lambda a, b: solve(laplacian(a, 1e-9), b, "pos"), id="lower_of_distances", **NEAR),
    RuleCase("eig_of_symmetric", SQUARE, lambda a: abs(eigvals(gram(a))), None,
             lambda a: abs(eigvals(a)), gone=(Eig,), made=(Eigvalsh, Cast), **NEAR,
             sizes={"n": 1}),
    RuleCase("eig_of_symmetric", COMPLEX, lambda a: sum_(eig(hermitian(a))[0].real), None,
             lambda a: sum_(eigvals(dot(a.T, a)).real), gone=(Eig,), made=(Eigh,),
             id="eig_of_hermitian", **NEAR),
    RuleCase("trace_of_product", STATIC, lambda a, b: sum_(diagonal(dot(a, b)), axis=0),
             lambda a, b: sum_(a * b.T, axis=(0, 1)), lambda a, b: sum_(diagonal(dot(a, b).T + 1)),
             checks=False),
    RuleCase("trace_of_product", (f64("k", 3, 4), f64("k", 4, 3)),
             lambda a, b: sum_(Diagonal()(matmul(a, b)), axis=1), None,
             lambda a, b: sum_(Diagonal()(matmul(a, b)), axis=0), gone=(BatchedDot,),
             id="traces_of_products", checks=False),
    RuleCase("products_of_vectors", (f64("k", 1, "n"), f64("k", "n", 1)), matmul, None,
             lambda a, b: matmul(a, b), gone=(BatchedDot,), made=(Sum,), id="rows_by_columns",
             miss_args=(f64("k", 2, "n"), f64("k", "n", 1)), checks=False),
    RuleCase("products_of_vectors", (f64("k", "n", 1), f64("k", 1, "n")), matmul,
             lambda a, b: a * b, lambda a, b: matmul(a, b),
             miss_args=(f64("k", "n", 2), f64("k", 2, "n")), checks=False),
    # factors
    RuleCase("solve_by_cholesky", SYSTEM, lambda a, b: solve(gram(a), b, "pos", lower=True), None,
             lambda a, b: solve(a, b), made=(Cholesky,), **NEAR),
    RuleCase("solve_by_lu", SYSTEM, lambda a, b: solve(a, b), None,
             lambda a, b: solve(a, b, "lower triangular"), gone=(Solve,),
             made=(LUFactor, LUSolve), **NEAR),
    RuleCase("det_by_lu", SYSTEM, lambda a, b: [solve(a, b), det(a), *slogdet(a)], None,
             lambda a, b: [solve(a, b), det(a.T + 1)], gone=(Det, SLogDet), made=(LUFactor,),
             **NEAR),
    RuleCase("hermitian_beside_det", SYSTEM,
             lambda a, b: [solve(gram(a), b, "her"), slogdet(gram(a))[1]],
             lambda a, b: [solve(gram(a), b), slogdet(gram(a))[1]],
             lambda a, b: [solve(gram(a), b, "her"), slogdet(a)[1]], **NEAR),
    RuleCase("by_factors", SYSTEM, lambda a, b: pinv(a), None, lambda a, b: inv(a),
             gone=(MatrixPinv,), made=(SVD,), **NEAR),
    RuleCase("by_factors", SYSTEM,
             lambda a, b: [Lstsq()(a, b), AdjugateGrad()(a, a)], None,
             lambda a, b: solve(a, b), gone=(Lstsq, AdjugateGrad), made=(SVD,),
             id="least_squares", **NEAR),
    RuleCase("by_factors", SQUARE, lambda a: slogdet(gram(a), "pos")[1], None,
             lambda a: slogdet(a)[1], gone=(PositiveLogDet,), made=(Cholesky,), id="log_of_factor",
             **NEAR),
    RuleCase("without_vectors", SQUARE, lambda a: [eigh(a)[0], svd(a)[1], qr(a)[1]],
             lambda a: [eigvalsh(a), svd(a, False, False), qr(a, "r")],
             lambda a: [*map(abs, eigh(a)), *qr(a, "complete")], **NEAR),
    RuleCase("without_vectors", SQUARE, lambda a: sum_(eig(a)[0].real),
             lambda a: sum_(eigvals(a).real), lambda a: [sum_(abs(e)) for e in eig(a)],
             id="without_complex_vectors", **NEAR),
    RuleCase("of_the_vectors", SQUARE, lambda a: [eigvalsh(a), abs(eigh(a)[1])],
             lambda a: [eigh(a)[0], abs(eigh(a)[1])], lambda a: [eigvalsh(a), eigh(a, "U")[0]],
             **NEAR),
]  # fmt: skip

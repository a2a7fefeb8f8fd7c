"""The table: programs in one small language, each with the points where it is tried.

``M(...)`` marks a value that is moved in some of the variants; a name before ``=`` is an
intermediate that the program itself names, whose rounding excuses the result. ``x`` is a vector,
``X`` a matrix of 4 columns with a label for each row. The words are those of ``dialects.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMS", "POINTS", "Form"]

#: Points by dtype: where float32 and float64 over- and underflow, and between.
POINTS = {
    "wide": {
        "float32": [-200, -104, -88, -30, -3, -0.01, 0.01, 0.75, 17, 60, 104, 200],
        "float64": [-900, -746, -700, -40, -3, -0.01, 0.01, 0.75, 36, 300, 746, 900],
    },
    "positive": {
        "float32": [1e-6, 1e-3, 0.1, 0.69, 0.7, 1, 3, 12, 20, 60, 104, 200],
        "float64": [1e-12, 1e-3, 0.1, 0.69, 0.7, 1, 3, 12, 37, 300, 746, 900],
    },
    "small": {
        "float32": [-0.5, -1e-3, -1e-5, -1e-7, -1e-20, 1e-20, 1e-8, 1e-6, 1e-4, 0.01, 0.1, 0.5],
        "float64": [-0.5, -1e-3, -1e-9, -1e-13, -1e-90, 1e-90, 1e-17, 1e-8, 1e-4, 0.01, 0.1, 0.5],
    },
    "tail": {
        "float32": [-6, -1, -0.01, 0.01, 0.4, 0.6, 2, 5, 7, 9, 10, 20],
        "float64": [-6, -1, -0.01, 0.01, 0.4, 0.6, 2, 5, 10, 20, 26, 40],
    },
    "near_tail": {
        "float32": [0.01, 0.1, 0.3, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 8.5],
        "float64": [0.01, 0.1, 0.3, 0.5, 1, 2, 4, 6, 10, 15, 20, 25],
    },
    "unit": {
        "float32": [1e-30, 1e-10, 1e-4, 0.01, 0.2, 0.4, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999],
        "float64": [1e-200, 1e-10, 1e-4, 0.01, 0.2, 0.4, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999],
    },
    "rows": {
        "float32": [
            [-200, 0.5, 120, 3],
            [1, 2, -1, 0.25],
            [60, -60, 59, 60],
            [1000, 999, 998, 1000.5],
        ],
        "float64": [
            [-900, 0.5, 750, 3],
            [1, 2, -1, 0.25],
            [300, -300, 299, 300],
            [1e4, 9999, 9998, 1e4],
        ],
    },
    "data": {
        "float32": [
            [3, 4, 12, 1],
            [1e3, 1001, 1002, 999.5],
            [0.1, -0.2, 0.3, 0.7],
            [-5, 2, 1, 0.5],
        ],
        "float64": [
            [3, 4, 12, 1],
            [1e7, 1e7 + 1, 1e7 + 2, 1e7],
            [0.1, -0.2, 0.3, 0.7],
            [-5, 2, 1, 0.5],
        ],
    },
    "matrices": {  # whose determinants overflow, underflow
        "float32": [
            [3e14, 1e12, -2e12, 5e11],
            [2e11, 4e13, 1e12, -3e12],
            [-1e12, 2e12, 6e13, 1e12],
            [5e11, -1e12, 3e12, 2e14],
        ],
        "float64": [
            [3e-94, 1e-96, -2e-96, 5e-97],
            [2e-97, 4e-95, 1e-96, -3e-96],
            [-1e-96, 2e-96, 6e-95, 1e-96],
            [5e-97, -1e-96, 3e-96, 2e-94],
        ],
    },
    "sizes": {
        "float32": [
            [1e25, 2e25, 3e24, 1e20],
            [1e-25, 2e-25, 1e-26, 1e-27],
            [3, 4, 12, 1],
            [1, 2, 3, 4],
        ],
        "float64": [
            [1e200, 2e200, 3e199, 1],
            [1e-200, 2e-200, 1e-201, 1e-210],
            [3, 4, 12, 1],
            [1, 2, 3, 4],
        ],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """One program: a family for reports, its text, and a name of :data:`POINTS`."""

    family: str
    text: str
    points: str = "wide"

    @property
    def movable(self) -> bool:
        """Whether there is something to move."""
        return "M(" in self.text


S, W = "M(sigmoid(x))", "M(1 / (1 + exp(-x)))"

FORMS = [
    Form("sigmoid", "sigmoid(x)"),
    Form("sigmoid", "1 / (1 + exp(-x))"),
    Form("sigmoid", "exp(x) / (1 + exp(x))"),
    Form("sigmoid", "0.5 * (1 + tanh(0.5 * x))"),
    Form("sigmoid", f"1 - {S}"),
    Form("sigmoid", f"1 - {W}"),
    Form("sigmoid", "sigmoid(x) * (1 - sigmoid(x))"),
    Form("sigmoid", "1 - tanh(x) * tanh(x)"),
    Form("log sigmoid", f"log({S})"),
    Form("log sigmoid", f"log({W})"),
    Form("log sigmoid", "log(M(exp(x) / (1 + exp(x))))"),
    Form("log sigmoid", f"log(1 - {S})"),
    Form("log sigmoid", f"log(1 - {W})"),
    Form("log sigmoid", f"log1p(-{S})"),
    Form("log sigmoid", f"log(sqrt({S}))"),
    Form("log sigmoid", f"log(3 * {S} * {S})"),
    Form("log sigmoid", "log_sigmoid(x)"),
    Form("logit", "log(sigmoid(x) / (1 - sigmoid(x)))"),
    Form("logit", "log(sigmoid(x)) - log(1 - sigmoid(x))"),
    Form("logit", "log(x / (1 - x))", "unit"),
    Form("logit", "log(x) - log1p(-x)", "unit"),
    Form("logit", "logit(x)", "unit"),
    Form("logit", "logit(M(sigmoid(x)))"),
    Form("special", "i0e(x)", "positive"),
    Form("special", "betainc_2_3(x)", "unit"),
    Form("cross-entropy", f"-0.25 * log({S}) - 0.75 * log(1 - {S})"),
    Form("cross-entropy", f"-0.25 * log({W}) - 0.75 * log(1 - {W})"),
    Form("cross-entropy", f"-(1 * log({S}) + 0 * log(1 - {S}))"),
    Form("cross-entropy", f"binary_crossentropy({S}, 0.25)"),
    Form("cross-entropy", "binary_crossentropy(1 / (1 + exp(-x)), 0.25)"),
    Form("cross-entropy", "-sigmoid(x) * log(sigmoid(x)) - sigmoid(-x) * log(sigmoid(-x))"),
    Form("softplus", "softplus(x)"),
    Form("softplus", "log(1 + M(exp(x)))"),
    Form("softplus", "log1p(M(exp(x)))"),
    Form("softplus", "-log(M(sigmoid(-x)))"),
    Form("softplus", "log(M(softplus(x)))"),
    Form("exp and log", "exp(x) - 1", "small"),
    Form("exp and log", "1 - exp(-x)", "small"),
    Form("exp and log", "expm1(x)", "small"),
    Form("exp and log", "log(1 + x)", "small"),
    Form("exp and log", "log(1 - x)", "small"),
    Form("exp and log", "log1p(x)", "small"),
    Form("exp and log", "log(1 - M(exp(-x)))", "positive"),
    Form("exp and log", "log(M(exp(x)) - 1)", "positive"),
    Form("exp and log", "log(M(exp(x) + exp(-x)))"),
    Form("exp and log", "log(M(exp(x)) + exp(2 * M(x)))"),
    Form("exp and log", "log(cosh(x))"),
    Form("exp and log", "logaddexp(x, -x)"),
    Form("exp and log", "log(2 * M(exp(-x)))"),
    Form("exp and log", "exp(x) / (exp(x) + exp(-x))"),
    Form("error function", "erfc(x)", "near_tail"),
    Form("error function", "1 - M(erf(x))", "near_tail"),
    Form("error function", "0.5 - 0.5 * erf(x)", "near_tail"),
    Form("error function", "exp(x * x) * erfc(x)", "near_tail"),
    Form("normal tail", "log(M(erfc(x)))", "tail"),
    Form("normal tail", "log(1 - M(erf(x)))", "tail"),
    Form("normal tail", "log(0.5 * M(erfc(0.75 * x)))", "tail"),
    Form("normal tail", "log(0.5 * (1 + M(erf(-0.75 * x))))", "tail"),
    Form("normal tail", "log_ndtr(-x)", "tail"),
    Form("normal tail", "exp(-x * x) / erfc(x)", "tail"),
    Form("x log y", "x * log(x)", "unit"),
    Form("x log y", "xlogy(x, x)", "unit"),
    Form("x log y", "-x * log(x) - (1 - x) * log(1 - x)", "unit"),
    Form("softmax", "softmax(X)", "rows"),
    Form("softmax", "exp(X) / rowsum(exp(X))", "rows"),
    Form("softmax", "exp(X - rowmax(X)) / rowsum(exp(X - rowmax(X)))", "rows"),
    Form("softmax", "rowsum(A * exp(X)) / rowsum(exp(X))", "rows"),
    Form("softmax", "1 - softmax(X)", "rows"),
    Form("log softmax", "log_softmax(X)", "rows"),
    Form("log softmax", "log(M(softmax(X)))", "rows"),
    Form("log softmax", "log(M(exp(X) / rowsum(exp(X))))", "rows"),
    Form("log softmax", "log(exp(X - rowmax(X)) / rowsum(exp(X - rowmax(X))))", "rows"),
    Form("log softmax", "X - log(rowsum(exp(X)))", "rows"),
    Form("log softmax", "log(1 - softmax(X))", "rows"),
    Form("log softmax", "log(1 - exp(log_softmax(X)))", "rows"),
    Form("picked class", "pick(log(softmax(X)))", "rows"),
    Form("picked class", "log(pick(softmax(X)))", "rows"),
    Form("picked class", "log(take(softmax(X)))", "rows"),
    Form("picked class", "log(M(rowsum(onehot * softmax(X))))", "rows"),
    Form("picked class", "rowsum(onehot * log(softmax(X)))", "rows"),
    Form("picked class", "pick(log(exp(X) / rowsum(exp(X))))", "rows"),
    Form("picked class", "log(pick(exp(X - rowmax(X)) / rowsum(exp(X - rowmax(X)))))", "rows"),
    Form("picked class", "cross_entropy(X)", "rows"),
    Form("log sum exp", "logsumexp(X)", "rows"),
    Form("log sum exp", "log(M(rowsum(exp(X))))", "rows"),
    Form("log sum exp", "log(M(rowmean(exp(X))))", "rows"),
    Form("log sum exp", "log(rowsum(exp(X - rowmax(X)))) + rowmax(X)", "rows"),
    Form("log sum exp", "log(M(rowsum(A * exp(X))))", "rows"),
    Form("log sum exp", "log(M(rowprod(sigmoid(X))))", "rows"),
    Form("entropy", "-rowsum(softmax(X) * log(softmax(X)))", "rows"),
    Form("norm", "sqrt(rowsum(X * X))", "data"),
    Form("norm", "X / sqrt(rowsum(X * X))", "data"),
    Form("norm", "sqrt(rowsum(X * X))", "sizes"),
    Form("variance", "rowmean(X * X) - rowmean(X) * rowmean(X)", "data"),
    Form("variance", "rowmean((X - rowmean(X)) * (X - rowmean(X)))", "data"),
    Form("variance", "sqrt(var(X))", "data"),
    # At the end: `lab.short` goes round by place.
    Form("special", "i1e(x)", "positive"),
    Form("special", "ndtri(x)", "unit"),
    Form("special", "gammaln(x)", "positive"),
    Form("special", "digamma(x)", "positive"),
    Form("distributions", "bernoulli_of_logits(x)"),
    Form("distributions", "logistic(x)"),
    Form("distributions", "gumbel(x)", "near_tail"),
    Form("distributions", "student_3(x)"),
    Form("distributions", "gamma_2_3(x)", "positive"),
    Form("distributions", "beta_2_3(x)", "unit"),
    Form("distributions", "log(M(normal_cdf(-x)))", "tail"),
    Form("distributions", "log(1 - M(normal_cdf(x)))", "tail"),
    Form("distributions", "log(1 - M(exponential_cdf(x)))", "positive"),
    Form("exp and log", "log(1 - M(-expm1(-x)))", "positive"),
    Form("distributions", "categorical(X)", "rows"),
    Form("matrices", "log(det(copies(X)))", "matrices"),
    Form("matrices", "0.5 * log(abs(det(copies(X))))", "matrices"),
    Form("matrices", "slogdet(copies(X))", "matrices"),
    Form("matrices", "dot(inv(X), A)", "data"),
    Form("sparse", "dense(structured(log, structured(sigmoid, sparse(X))))", "rows"),
    Form("sparse", "log(M(dense(structured(sigmoid, sparse(X)))))", "rows"),
    Form("sparse", "log(1 + exp(sparse_dot(sparse(X), A)))", "data"),
    Form("Fourier", "irfft(rfft(X))", "data"),
    Form("Fourier", "log(M(softmax(irfft(rfft(X)))))", "data"),
    Form("Fourier", "power(rfft(X))", "data"),
]  # fmt: skip

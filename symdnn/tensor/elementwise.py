"""Elementwise functions of ``T``, under Theano's names (and NumPy's, where Theano has none)."""

from symdnn.ops.elementwise.activations import *
from symdnn.ops.elementwise.arithmetic import *
from symdnn.ops.elementwise.bessel import i0, i0e, i1, i1e, iv, j0, j1, jv
from symdnn.ops.elementwise.comparison import *
from symdnn.ops.elementwise.complexes import angle, complex, complex_from_polar, conj, imag, real
from symdnn.ops.elementwise.entropy import *
from symdnn.ops.elementwise.incomplete import *
from symdnn.ops.elementwise.math import *
from symdnn.ops.elementwise.rounding import *
from symdnn.ops.elementwise.special import *

abs_ = absolute = abs
square = sqr
reciprocal = inv
negative = neg
sign = sgn
power = pow
floor_div = floor_divide = int_div
true_divide = true_div
subtract, multiply, remainder = sub, mul, mod
equal, not_equal = eq, neq
less, less_equal, greater, greater_equal = lt, le, gt, ge
bitwise_and, bitwise_or, bitwise_xor, bitwise_not = and_, or_, xor, invert
rint = round_half_to_even
digamma = psi
expit = sigmoid
conjugate = conj

__all__ = [
    "abs", "abs_", "absolute", "add", "allclose", "and_", "angle", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "betainc", "betaincc", "betainccinv", "betaincinv",
    "betaln", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cast", "cbrt", "ceil",
    "ceil_intdiv", "chi2sf", "clip", "clipped_relu", "complex", "complex_from_polar", "conj",
    "conjugate", "cos", "cosh", "deg2rad", "digamma", "divmod", "elu", "eq", "equal", "erf", "erfc",
    "erfcinv", "erfcx", "erfinv", "exp", "exp2", "expit", "expm1", "exprel", "floor", "floor_div",
    "floor_divide", "gamma", "gammainc", "gammaincc", "gammainccinv", "gammaincinv", "gammaln",
    "ge", "gelu", "greater", "greater_equal", "gt", "hard_sigmoid", "i0", "i0e", "i1", "i1e",
    "imag", "int_div", "inv", "invert", "iround", "isclose", "isfinite", "isinf", "isnan", "iv",
    "j0", "j1", "jv", "kl_div", "largest", "le", "leaky_relu", "left_shift", "less", "less_equal",
    "log", "log10", "log1p", "log2", "log_erfc", "log_ndtr", "log_sigmoid", "logaddexp", "logit",
    "lt", "maximum", "minimum", "mod", "mul", "multiply", "ndtr", "ndtri", "neg", "negative", "neq",
    "not_equal", "or_", "owens_t", "polygamma", "pow", "power", "psi", "rad2deg", "real",
    "reciprocal", "rel_entr", "relu", "remainder", "right_shift", "rint", "round",
    "round_half_away_from_zero", "round_half_to_even", "selu", "sgn", "sigmoid", "sign", "silu",
    "sin", "sinh", "smallest", "softplus", "softsign", "sqr", "sqrt", "square", "sub", "subtract",
    "swish", "switch", "tan", "tanh", "tri_gamma", "true_div", "true_divide", "trunc",
    "ultra_fast_sigmoid", "xlog1py", "xlogx", "xlogy0", "xor", "zeta",
]  # fmt: skip

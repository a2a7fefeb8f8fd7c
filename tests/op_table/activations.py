from __future__ import annotations

import numpy as np
import scipy.stats

from symdnn.ops.elementwise import activations as A
from symdnn.ops.elemwise import apply_elemwise
from tests.op_table.record import OpCase, away_from, normal, uniform

X, FAR = normal(2, 3), normal(4, 5, scale=50.0)
KINK = away_from((0.0,), 2, 3)


def logistic(x):
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


def leaky(x, a):
    return 0.5 * (1 + a) * x + 0.5 * (1 - a) * np.abs(x)


def elu(x, a):
    return np.where(x > 0, x, a * (np.exp(np.minimum(x, 0)) - 1))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


CASES = [
    OpCase("sigmoid", (A.Sigmoid,), A.sigmoid, (X,), logistic),
    OpCase("sigmoid_far", (A.Sigmoid,), A.sigmoid, (FAR,), logistic, grad=False),
    OpCase("sigmoid_float16", (A.Sigmoid,), A.sigmoid, (normal(3, dtype="float16"),), logistic,
           grad=False, rtol=1e-3),
    OpCase("sigmoid_empty", (A.Sigmoid,), A.sigmoid, (normal(0, 2),), logistic, grad=False),
    OpCase("log_sigmoid", (A.Softplus,), A.log_sigmoid, (FAR,),
           lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), grad=False),
    OpCase("softplus", (A.Softplus,), A.softplus, (X,),
           lambda x: np.log(1 + np.exp(x))),
    OpCase("softplus_far", (A.Softplus,), A.softplus, (FAR,),
           lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), grad=False),
    OpCase("hard_sigmoid", (A.Sigmoid,), A.hard_sigmoid, (away_from((-2.5, 2.5), 2, 3),),
           lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    OpCase("ultra_fast_sigmoid", (A.Sigmoid,), A.ultra_fast_sigmoid,
           (away_from((-6.0, -3.4, 0.0, 3.4, 6.0), 4, 5),), None),
    OpCase("ultra_fast_sigmoid_is_near", (A.Sigmoid,),
           lambda x: abs(A.ultra_fast_sigmoid(x) - A.sigmoid(x)) < 0.03, (normal(50, scale=4.0),),
           lambda x: np.ones(50, bool)),
    OpCase("softsign", (A.Sigmoid,), A.softsign, (KINK,), lambda x: x / (1 + np.abs(x))),
    OpCase("step", (A.Step,), lambda x: A.Step()(x), (KINK,), lambda x: (x > 0) * 1.0),
    OpCase("relu", (A.Relu,), A.relu, (KINK,), lambda x: x * (x > 0)),
    OpCase("relu_float32", (A.Relu,), A.relu, (normal(2, 3, dtype="float32"),),
           lambda x: x * (x > 0), grad=False),
    OpCase("relu_int", (A.Relu,), A.relu, (normal(2, 3, scale=9.0, dtype="int32"),),
           lambda x: np.maximum(x, 0)),
    OpCase("relu_empty", (A.Relu,), A.relu, (normal(2, 0),), lambda x: x, grad=False),
    OpCase("relu_alpha", (A.LeakyRelu,), lambda x: A.relu(x, 0.2), (KINK,),
           lambda x: leaky(x, 0.2)),
    OpCase("relu_variable_alpha", (A.LeakyRelu,), A.relu, (KINK, uniform(0, 2, 3)), leaky),
    OpCase("leaky_relu", (A.LeakyRelu,), A.leaky_relu, (KINK,), lambda x: leaky(x, 0.01)),
    OpCase("clipped_relu", (A.Relu,), lambda x: A.clipped_relu(x, 1.5),
           (away_from((0.0, 1.5), 3, 4),), lambda x: np.clip(x, 0, 1.5)),
    OpCase("elu", (A.Elu,), A.elu, (KINK,), lambda x: elu(x, 1)),
    OpCase("elu_alpha", (A.Elu,), A.elu, (KINK, uniform(0.5, 2, 1, 3)), elu),
    OpCase("elu_far", (A.Elu,), A.elu, (FAR,), lambda x: elu(x, 1), grad=False),
    OpCase("selu", (A.Elu,), A.selu, (KINK,),
           lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772)),
    OpCase("gelu", (A.Gelu,), A.gelu, (X,), lambda x: x * scipy.stats.norm.cdf(x)),
    OpCase("gelu_far", (A.Gelu,), A.gelu, (FAR,),
           lambda x: x * scipy.stats.norm.cdf(x), grad=False),
    OpCase("gelu_float32", (A.Gelu,), A.gelu, (normal(2, 3, dtype="float32"),),
           lambda x: x * scipy.stats.norm.cdf(x), rtol=1e-5, grad=False),
    OpCase("gelu_slope", (A.GeluSlope,), lambda x: apply_elemwise(A.GeluSlope(), x), (X,),
           lambda x: scipy.stats.norm.cdf(x) + x * scipy.stats.norm.pdf(x)),
    OpCase("gelu_slope_far", (A.GeluSlope,), lambda x: apply_elemwise(A.GeluSlope(), x), (FAR,),
           lambda x: scipy.stats.norm.cdf(x) + x * scipy.stats.norm.pdf(x), grad=False),
    OpCase("gelu_tanh", (A.GeluTanh,), lambda x: A.gelu(x, "tanh"), (X,), gelu_tanh),
    OpCase("swish", (A.Sigmoid,), A.swish, (X,), lambda x: x * logistic(x)),
    OpCase("swish_beta", (A.Sigmoid,), A.swish, (X, uniform(0.5, 2, 3)),
           lambda x, b: x * logistic(b * x)),
]  # fmt: skip

"""Arguments that do not fit: the error says which the function takes, or which was meant."""

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import ArgumentError
from symdnn.flag_types import nearest
from symdnn.graph.names.torch_words import advises

X = T.matrix("x")
STREAM = T.random.MRG_RandomStreams(1)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: T.sum(X, keep_dims=True), "'keep_dims' .* did you mean 'keepdims'"),
    (lambda: T.max(X, axes=1), "'axes' .* did you mean 'axis'"),
    (lambda: T.zeros((2, 3), typ="float32"), "'typ' .* did you mean 'dtype'"),
    (lambda: symdnn.function([X], X, device="cuda"), "'device'; it takes inputs, outputs, mode"),
    (lambda: symdnn.function(inputs=[X], output=X), "did you mean 'outputs'"),
    (lambda: symdnn.shared(np.ones(3), borow=True), "did you mean 'borrow'"),
    (lambda: symdnn.shared(), "missing .* 'value'; it takes value, name"),
    (lambda: symdnn.scan(fn=abs, sequence=X), "did you mean 'sequences'"),
    (lambda: symdnn.grad(X.sum(), X, consider_constants=[]), "did you mean 'consider_constant'"),
    (lambda: symdnn.jit(abs, static_args=(1,)), "did you mean 'static_argnums'"),
    (lambda: symdnn.vmap(abs, in_axis=0), "did you mean 'in_axes'"),
    (lambda: nn.functional.softmax(X, axis=1), "'axis'; it takes input, dim"),
    (lambda: nn.functional.linear(X), "missing .* 'weight'; it takes input, weight"),
    (lambda: T.dot(X, X, dim=1), r"T\.tensordot\(a, b, axes\)"),
    (lambda: T.signal.pool.pool_2d(X, pool_size=2), "'pool_size' is 'ws' here"),
    (lambda: T.signal.pool.pool_2d(X, strides=2), "'strides' is 'stride' here"),
    (lambda: T.signal.pool.pool_3d(X, 2, ceil_mode=True), "ignore_border=False"),
    (lambda: T.nnet.relu(X, negative_slope=0.1), "'negative_slope' is 'alpha' here"),
    (lambda: T.nnet.softmax(X, dim=1), "'dim' is 'axis' here"),
    (lambda: T.clip(X, a_min=0), "'a_min' is 'min' here"),
    (lambda: T.gradient(X, dim=1), "'dim' is 'axis' here"),
    (lambda: T.logit(X, eps=0.1), r"clip\(p, eps, 1 - eps\)"),
    (lambda: T.linalg.matrix_norm(X, dim=(0, 1)), r"norm\(x, ord, axis\)"),
    (lambda: T.nnet.bn.batch_normalization_train(X, X, X, eps=1), "'eps' is 'epsilon' here"),
    (lambda: STREAM.normal((3,), loc=1), "'loc' is 'avg' here"),
    (lambda: STREAM.normal((3,), sd=1), "did you mean 'std'|it takes size, avg, std"),
    (lambda: STREAM.uniform((3,), minval=1), "'minval' is 'low' here"),
    (lambda: STREAM.laplace((3,), mu=1), "'mu'; it takes size, loc, scale"),
    (lambda: STREAM.gamma((3,), rate=1), "'rate'; it takes size, shape, scale"),
    (lambda: nn.models.resnet18(clases=3), "did you mean 'classes'"),
    (lambda: nn.models.resnet18(pretrained=True), r"no weights come with it; nn\.load_torch"),
    (lambda: nn.models.vgg16(weights="DEFAULT"), r"no weights come with it; nn\.load_torch"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_arguments_that_do_not_fit(call: Callable[[], Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_an_error_inside_stays_as_it_is():
    @advises()
    def f(x: int, strict: bool = False) -> int:
        return len(x, strict)  # type: ignore[call-arg, arg-type]

    with pytest.raises(TypeError, match=r"len\(\) takes") as raised:
        f(3)
    assert not isinstance(raised.value, ArgumentError)
    with pytest.raises(ArgumentError, match="did you mean 'strict'"):
        f(3, strct=True)  # type: ignore[call-arg]


def test_functions_keep_their_names_and_signatures():
    assert list(inspect.signature(symdnn.shared).parameters)[:2] == ["value", "name"]
    for function in (symdnn.function, symdnn.grad, T.sum, T.zeros, nn.functional.relu):
        assert pickle.loads(pickle.dumps(function)) is function


def test_torchvisions_arguments():
    with nn.init.skipped():
        net = nn.models.resnet18(weights=None, progress=True, num_classes=7)
    assert net.fc.weight.type.shape == (7, 512)


@pytest.mark.parametrize(("word", "meant"), [
    ("epsilon", "eps"), ("keep_dims", "keepdims"), ("axes", "axis"), ("fuson", "fusion"),
    ("activation", ""), ("cholesky", ""), ("factorial", ""),
])  # fmt: skip
def test_what_is_little_alike_is_not_meant(word: str, meant: str):
    assert (
        nearest(word, ["eps", "keepdims", "axis", "fusion", "dilation", "cols", "fvector"]) == meant
    )

"""Names of other programs: the error says what to write instead, and what it says exists."""

import math
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import (
    ArgumentError,
    DtypeError,
    InputError,
    OptionError,
    SymbolicValueError,
    TypeMismatch,
)
from symdnn.graph.names import advice as advice_of

_THERE = ("get_value", "set_value", "requires_grad")
_OF_SHARED = {name: hint for name, hint in advice_of.SHARED.items() if name not in _THERE}
OWNERS: list[tuple[Any, Mapping[str, str]]] = [
    (symdnn, advice_of.SYMDNN),
    (T, advice_of.TENSOR),
    (T.nnet, advice_of.NNET),
    (nn, advice_of.NN),
    (nn.optim, advice_of.OPTIM),
    (nn.schedule, advice_of.SCHEDULE),
    (T.random, advice_of.RANDOM),
    (symdnn.control, advice_of.CONTROL),
    (nn.functional, advice_of.FUNCTIONAL),
    (nn.utils, advice_of.UTILS),
    (nn.models, advice_of.MODELS),
    (nn.init, advice_of.INIT),
    (nn.metrics, advice_of.METRICS),
    (nn.parallel, advice_of.PARALLEL),
    (T.linalg, advice_of.LINALG),
    (symdnn.onnx, advice_of.ONNX),
    (nn.Linear(2, 3), advice_of.MODULE),
    (T.matrix("x"), advice_of.VARIABLE),
    (symdnn.shared(np.ones(2)), _OF_SHARED),
    (symdnn.function([], T.constant(1.0)), advice_of.FUNCTION),
]
BY_OWNER = pytest.mark.parametrize(
    ("owner", "advice"), OWNERS, ids=[getattr(o, "__name__", type(o).__name__) for o, _ in OWNERS]
)
ROOTS = {"symdnn": symdnn, "T": T, "nn": nn}


@BY_OWNER
def test_a_name_of_another_program_is_an_error_with_advice(owner: Any, advice: Mapping[str, str]):
    for name, hint in advice.items():
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}; {hint}")):
            getattr(owner, name)


@BY_OWNER
def test_advice_names_what_exists(owner: Any, advice: Mapping[str, str]):
    for hint in advice.values():
        for root, path in re.findall(r"\b(symdnn|T|nn)\.([a-zA-Z_.0-9]*\w)", hint):
            attrgetter(path)(ROOTS[root])


@BY_OWNER
def test_python_knows_what_to_search_for_another_name(owner: Any, advice: Mapping[str, str]):
    assert not hasattr(owner, "no_such_name")
    with pytest.raises(AttributeError) as raised:
        owner.no_such_name  # noqa: B018
    assert raised.value.obj is owner
    assert raised.value.name == "no_such_name"


@pytest.mark.parametrize(("owner", "wrong", "right"), [(T, "softmx", "softmax"), (T, "Dot", "dot")])
def test_a_misspelled_name_of_a_large_module_names_the_right_one(owner, wrong, right):
    """Python searches in small ones only."""
    with pytest.raises(AttributeError, match=f"{wrong!r}; did you mean {right!r}"):
        getattr(owner, wrong)


@pytest.mark.parametrize(("owner", "name", "there"), [
    (symdnn, "relu", "symdnn.tensor.relu"), (symdnn, "tensor4", "symdnn.tensor.tensor4"),
    (symdnn, "Linear", "symdnn.nn.Linear"), (T, "vmap", "symdnn.vmap"), (T, "save", "symdnn.save"),
    (T, "logsoftmax", "symdnn.tensor.nnet.logsoftmax"), (nn, "einsum", "symdnn.tensor.einsum"),
    (T, "cholesky", "symdnn.tensor.linalg.cholesky"), (symdnn, "cond", "symdnn.control.cond"),
    (nn, "cross_entropy", "symdnn.nn.functional.cross_entropy"),
    (T.linalg, "exp", "symdnn.tensor.exp"), (nn.functional, "Linear", "symdnn.nn.Linear"),
    (symdnn, "resnet18", "symdnn.nn.models.resnet18"),
    (nn, "accuracy", "symdnn.nn.metrics.accuracy"),
    (symdnn.distributions, "softmax", "symdnn.tensor.softmax"),
    (T.matrix("x"), "cholesky", "symdnn.tensor.linalg.cholesky(x, ...)"),
    (T.matrix("x"), "prelu", "symdnn.nn.functional.prelu(x, ...)"),
])  # fmt: skip
def test_a_name_of_another_module_says_where_it_is(owner, name, there):
    with pytest.raises(AttributeError, match=re.escape(f"{name!r}; {there} does that")):
        getattr(owner, name)


@pytest.mark.parametrize(
    "use",
    [float, int, math.exp, range, [1, 2].__getitem__],
    ids=["float", "int", "exp", "range", "list"],
)
def test_a_number_that_python_wants_is_computed_or_replaced(use):
    with pytest.raises(SymbolicValueError, match=r"x\.eval\(\) computes it; write T\.exp"):
        use(T.iscalar("x"))


_X, _I = T.matrix("x"), T.lvector("i")
_IMAGES, _LINES = T.tensor4("images"), T.tensor3("lines")


@pytest.mark.parametrize(("use", "advice"), [
    (lambda: symdnn.vmap(abs, in_dims=0), "'in_dims' is 'in_axes' here"),
    (lambda: symdnn.vmap(abs, 0, out_dims=0), "'out_dims' is 'out_axes' here"),
    (lambda: symdnn.grad(outputs=_X.sum(), inputs=_X), "is 'cost' here; 'inputs' is 'wrt'"),
    (lambda: symdnn.grad(_X.sum(), _X, create_graph=True), "gradients are expressions"),
    (lambda: symdnn.jacobian(func=abs, inputs=_X), "'func' is 'expression' here"),
    (lambda: symdnn.hessian(func=abs, inputs=_X), "'func' is 'cost' here"),
    (lambda: symdnn.jit(abs, donate_argnums=0), "memory that is free"),
    (lambda: symdnn.scan(abs, init=0, xs=_X), "'init' is 'outputs_info' here; 'xs' is 'sequences'"),
    (lambda: symdnn.function([_X], _X, mod="FAST_RUN"), "did you mean 'mode'?"),
    (lambda: symdnn.shared(1.0, requires_grad=True), "takes the variables"),
    (lambda: T.nnet.conv1d(_LINES, _LINES, padding=1), "'padding' is 'border_mode' here"),
    (lambda: T.nnet.conv2d(_IMAGES, _IMAGES, stride=2), "stride is subsample here"),
    (lambda: T.nnet.conv3d(_IMAGES, _IMAGES, groups=2), "'groups' is 'num_groups' here"),
    (lambda: T.nnet.conv2d_transpose(_IMAGES, _IMAGES, stride=2), "'stride' is 'input_dilation'"),
    (lambda: T.nnet.nll_loss(_X, _I, reduction="mean"), "each row has a value"),
    (lambda: T.nnet.layer_norm(_X, eps=1e-3), "'eps' is 'epsilon' here"),
    (lambda: T.nnet.group_norm(_IMAGES, num_groups=1), "'num_groups' is 'groups' here"),
    (lambda: T.nnet.dropout(_X, training=True), "'training' is 'train' here"),
    (lambda: T.leaky_relu(_X, negative_slope=0.1), "'negative_slope' is 'alpha' here"),
    (lambda: T.linspace(0, 1, steps=5), "'steps' is 'num' here"),
    (lambda: T.pad(_X, 1, value=2), "'value' is 'constant_values' here"),
    (lambda: T.pad(_X, 1, constant_value=2), "did you mean 'constant_values'?"),
    (lambda: T.where(_X > 0, input=_X, other=0), "'input' is 'x' here; 'other' is 'y' here"),
    (lambda: T.rot90(_X, dims=(0, 1)), "'dims' is 'axes' here"),
    (lambda: T.bmm(_LINES, mat2=_LINES), "'mat2' is 'y' here"),
    (lambda: T.leaky_relu(_X, qqq=0), "unexpected keyword argument 'qqq'; it takes x, alpha$"),
])  # fmt: skip
def test_a_keyword_of_another_program_is_an_error_that_names_ours(use, advice):
    pattern = advice if advice.endswith("$") else re.escape(advice)
    with pytest.raises(ArgumentError, match=pattern):
        use()


def test_a_function_that_knows_other_programs_keywords_is_the_same_in_a_pickle():
    assert pickle.loads(pickle.dumps(T.leaky_relu)) is T.leaky_relu


def test_subpackages_are_there_without_an_import_of_their_own():
    assert symdnn.sparse.__name__ == "symdnn.sparse"
    assert symdnn.distributions.__name__ == "symdnn.distributions"
    code = "import symdnn; print(symdnn.gpu.dnn.dnn_conv, symdnn.compat, symdnn.gpu.libcudnn)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dnn_conv" in done.stdout


@pytest.mark.parametrize("make", [np.asarray, lambda x: np.array([x, x]), lambda x: np.array(x)])
def test_no_array_holds_a_variable_by_accident(make: Any):
    with pytest.raises(SymbolicValueError, match="in a call only"):
        make(T.matrix("x"))


def test_a_variable_is_not_changed():
    x = T.matrix("x")
    with pytest.raises(SymbolicValueError, match="set_subtensor"):
        x[0] = 1
    with pytest.raises(SymbolicValueError, match="set_subtensor"):
        x[0] += 1
    with pytest.raises(SymbolicValueError, match="is not changed"):
        del x[0]


@pytest.mark.parametrize("name", ["relu_", "masked_fill_", "clamp_"])
def test_a_method_that_changes_a_tensor_names_the_one_that_does_not(name):
    other = re.escape(f"'{name}'; a variable is not changed: y = x.{name[:-1]}(...) is a new one")
    with pytest.raises(AttributeError, match=other):
        getattr(T.matrix("x"), name)
    assert not hasattr(T.matrix("x"), "no_such_name_")


def test_sizes_and_keywords_in_pytorchs_way():
    assert T.zeros(3, 4).type.shape == (3, 4)
    with pytest.raises(DtypeError, match=r"one argument: \(\(2, 3\)\)"):
        T.TensorType(3, (4,))
    with pytest.raises(InputError, match=r"wanted a sequence of sizes, got 3: \(3,\)"):
        T.tensor("float32", 3)
    with pytest.raises(TypeMismatch, match="size: wanted integers"):
        T.random.RandomStream(1).normal(size="a")
    with pytest.raises(TypeError, match="stride is subsample here"):
        T.nnet.conv2d(T.tensor4("x"), np.ones((2, 2, 3, 3), "f"), padding=1, stride=2)
    with pytest.raises(OptionError, match="seed='a': wanted a non-negative integer"):
        T.random.RandomStream("a")
    assert nn.LSTM(4, 5).numberOfLayers == 1


def test_a_level_in_the_place_of_a_linker():
    with pytest.raises(OptionError, match=r"use Mode\(optimizer='fast_run'\)"):
        symdnn.Mode("FAST_RUN")
    assert symdnn.Mode("cvm", "fast_run").linker == "cvm"


def test_a_folder_that_is_not_there_is_an_error_with_the_users_path(tmp_path: Path):
    path = tmp_path / "nowhere" / "f.symdnn"
    with pytest.raises(FileNotFoundError) as raised:
        symdnn.save(symdnn.function([], T.zeros(2)), path)
    assert raised.value.filename == str(path)


MAKERS = {
    "zeros": (3,), "ones": (2, 3), "empty": (3,), "full": ((2,), 1.0), "eye": (3,), "arange": (4,),
    "linspace": (0, 1, 5), "zeros_like": (np.ones(3),), "ones_like": (np.ones(3),),
    "full_like": (np.ones(3), 2), "empty_like": (np.ones(3),), "as_tensor": ([1.0, 2.0],),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_where_a_tensor_is_and_whether_it_has_a_gradient_is_said_elsewhere(name: str):
    make, args = getattr(T, name), MAKERS[name]
    for word, value, advice in (
        ("device", "cuda", "the flag device says where"),
        ("requires_grad", True, "symdnn.grad\\(cost, x\\) takes the variables"),
    ):
        with pytest.raises(
            ArgumentError, match=f"wanted no {word}, got {word}={value!r}; {advice}"
        ):
            make(*args, **{word: value})
    plain = make(*args, device=None, requires_grad=False)
    np.testing.assert_array_equal(plain.eval(), make(*args).eval())


def test_a_variable_has_no_device_of_its_own():
    with pytest.raises(ArgumentError, match="tensor: wanted no device, got device='cuda'"):
        T.tensor("float32", (None, 3), device="cuda")
    assert T.tensor("float32", (None, 3), requires_grad=False).type.shape == (None, 3)

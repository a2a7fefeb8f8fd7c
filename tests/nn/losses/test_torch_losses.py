"""Losses under PyTorch's names against PyTorch's values, stored by make_torch_losses.py."""

from itertools import groupby, product
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import IndexOutOfRange, InputError, ShapeMismatch, TypeMismatch
from symdnn.nn import functional as F
from tests.nn.torch_loss_cases import CASES, WEIGHTS, differentiated, options_of
from tests.seeded import sampled

STORED = np.load(Path(__file__).parents[1] / "torch_losses.npz")
NAMES = sorted({case[0] for case in CASES.values()})


@pytest.mark.parametrize("kind", sampled(NAMES, every=3))
def test_values_and_gradients_are_those_of_pytorch(kind):
    tested = [name for name, case in CASES.items() if case[0] == kind]
    assert tested
    for name in tested:
        case = CASES[name]
        inputs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in case[2]]
        loss = getattr(nn, kind)(**options_of(case, lambda a: a))(*inputs)
        wrt = differentiated(case)
        f = symdnn.function(inputs, [loss, *T.grad(loss.sum(), [inputs[i] for i in wrt])])
        value, *gradients = f(*case[2])
        np.testing.assert_allclose(value, STORED[f"{name}/loss"], 2e-5, 2e-6, err_msg=name)
        for i, g in zip(wrt, gradients, strict=True):
            np.testing.assert_allclose(g, STORED[f"{name}/{i}"], 1e-4, 2e-6, err_msg=name)


def test_every_stored_case_is_tested():
    assert {n.rsplit("/", 1)[0] for n in STORED.files} == set(CASES)


def test_pytorchs_names_are_there():
    left_out = {"NLLLoss2d", "LinearCrossEntropyLoss"}
    known = {
        "L1Loss", "NLLLoss", "PoissonNLLLoss", "GaussianNLLLoss", "KLDivLoss", "MSELoss", "BCELoss",
        "BCEWithLogitsLoss", "HingeEmbeddingLoss", "MultiLabelMarginLoss", "SmoothL1Loss",
        "HuberLoss", "SoftMarginLoss", "CrossEntropyLoss", "MultiLabelSoftMarginLoss",
        "CosineEmbeddingLoss", "MarginRankingLoss", "MultiMarginLoss", "TripletMarginLoss",
        "CTCLoss",
    }  # fmt: skip
    assert known == set(NAMES)
    assert not left_out & set(dir(nn))
    for name in NAMES:
        assert repr(getattr(nn, name)()).startswith(f"nn.{name}")


def test_lists_of_outputs_as_fit_gives_them(rng):
    a, b, c, t = (T.fmatrix() for _ in range(4))
    values = [rng.normal(size=(4, 5)).astype("float32") for _ in range(3)]
    signs = np.array([1, -1, 1, -1], "float32")
    for loss, x in ((nn.CosineEmbeddingLoss(), T.fvector()), (nn.MarginRankingLoss(), None)):
        target, value = (x, signs) if x is not None else (t, np.sign(values[2]))
        f = symdnn.function([a, b, target], [loss(a, b, target), loss([a, b], target)])
        np.testing.assert_array_equal(*f(*values[:2], value))
    triplet = nn.TripletMarginLoss()
    f = symdnn.function([a, b, c], [triplet(a, b, c), triplet([a, b, c], T.zeros((4,)))])
    np.testing.assert_array_equal(*f(*values))
    gauss = nn.GaussianNLLLoss()
    f = symdnn.function([a, b, c], [gauss(a, b, c), gauss([a, c], b)])
    np.testing.assert_array_equal(*f(values[0], values[1], np.abs(values[2]) + 0.1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradients_of_certain_probabilities(dtype):
    """PyTorch's numbers, in float16 with a larger least denominator."""
    p, t, w = (T.vector(n, dtype=dtype) for n in "ptw")
    loss = nn.BCELoss(w, reduction="none")(p, t)
    f = symdnn.function([p, t, w], [loss, *T.grad(loss.sum(), [p, t])])
    value, dp, dt = f([0, 0, 1, 1, 0.25], [0, 1, 0, 1, 1], [1, 2, 3, 1, 1])
    limit = 1e4 if dtype == "float16" else 1e12
    close = {"rtol": 1e-3 if dtype == "float16" else 1e-6}
    np.testing.assert_allclose(value, [0, 200, 300, 0, np.log(4)], **close)
    np.testing.assert_allclose(dp, [0, -2 * limit, 3 * limit, 0, -4], **close)
    np.testing.assert_allclose(dt, [100, 200, -300, -100, np.log(3)], **close)


def test_gradients_of_saturated_sigmoids_are_those_of_logits():
    x, t = T.dvector("x"), T.dvector("t")
    found = [
        T.grad(loss(y, t), x)
        for loss, y in (
            (nn.BCELoss(reduction="sum"), T.sigmoid(x)), (nn.BCEWithLogitsLoss(reduction="sum"), x),
        )
    ]  # fmt: skip
    values = symdnn.function([x, t], found)([-90, -40, -17, 0.5, 20, 40], [1, 1, 0, 1, 0, 0])
    np.testing.assert_allclose(*values, rtol=1e-6)


def test_extreme_values_have_finite_losses_and_gradients():
    p, t = T.fvector(), T.fvector()
    loss = nn.BCELoss(reduction="none")(p, t)
    f = symdnn.function([p, t], [loss, T.grad(loss.sum(), p)])
    value, g = f([0, 0, 1, 1], [0, 1, 0, 1])
    np.testing.assert_array_equal(value, [0, 100, 100, 0])
    assert np.isfinite(g).all()
    x = T.fmatrix()
    loss = nn.CrossEntropyLoss()(x, np.array([0, 1]))
    value, g = symdnn.function([x], [loss, T.grad(loss, x)])([[1e4, -1e4], [1e4, -1e4]])
    assert value == 1e4
    assert np.isfinite(g).all()


def test_the_printed_form():
    loss = nn.CrossEntropyLoss(WEIGHTS, ignore_index=0, label_smoothing=0.1, reduction="sum")
    shown = "(weight, ignore_index=0, reduction='sum', label_smoothing=0.1)"
    assert repr(loss) == f"nn.CrossEntropyLoss{shown}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MSELoss(reduction="avg"), "MSELoss: reduction='avg'; wanted one of mean, sum"),
        (lambda: nn.KLDivLoss(reduction="batch"), "KLDivLoss: reduction='batch'"),
        (lambda: nn.HuberLoss(delta=0), "HuberLoss: delta=0; wanted more than 0"),
        (lambda: nn.SmoothL1Loss(beta=-1), "SmoothL1Loss: beta=-1; wanted 0 or more"),
        (lambda: nn.MultiMarginLoss(p=3), "MultiMarginLoss: p=3; wanted 1 or 2"),
        (lambda: nn.TripletMarginLoss(p=0), "TripletMarginLoss: .*p=0; wanted more than 0"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), "CrossEntropyLoss: label_smoothing=2"),
    ],
)
def test_options_that_make_no_sense(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_inputs_that_make_no_sense():
    x, v, i = T.fmatrix(), T.fvector(), T.ivector()
    for call in (
        lambda: nn.CosineEmbeddingLoss()(x, v), lambda: nn.MarginRankingLoss()([x], v),
        lambda: nn.TripletMarginLoss()(x, x), lambda: nn.GaussianNLLLoss()(x, x),
        lambda: nn.CrossEntropyLoss()(x, v), lambda: nn.MultiMarginLoss()(x, v),
        lambda: nn.MultiLabelMarginLoss()(x, i), lambda: nn.CTCLoss()(x, i, i, i),
        lambda: nn.MSELoss()(x, v), lambda: nn.NLLLoss()(x, v),
    ):  # fmt: skip
        with pytest.raises(TypeMismatch, match="wanted"):
            call()
    f = symdnn.function([x, i], nn.CrossEntropyLoss()(x, i))
    with pytest.raises(IndexOutOfRange, match="7"):
        f(np.ones((1, 3), "float32"), np.array([7], "int32"))


ENTRIES = {"targets": np.array([[1, 2]]), "lengths": np.array([5]), "counts": np.array([2])}


@pytest.mark.parametrize("given", ["static", "unknown"])
@pytest.mark.parametrize("which", ENTRIES)
@pytest.mark.parametrize("sequences", [1, 2])
def test_labels_and_lengths_of_one_sequence_serve_no_others(which, given, sequences):
    """Neither in types, nor in arrays of sizes that a call knows."""
    x = T.tensor("float32", (None, None if given == "unknown" else sequences, None))
    values = {k: v if k == which else np.repeat(v, sequences, 0) for k, v in ENTRIES.items()}
    variables = {k: T.TensorType("int64", (None,) * v.ndim)() for k, v in ENTRIES.items()}
    logp = np.log(np.full((5, sequences, 3), 1 / 3, "float32"))

    def losses():
        loss = nn.CTCLoss(reduction="none")
        if given == "static":
            return symdnn.function([x], loss(x, *values.values()))(logp)
        f = symdnn.function([x, *variables.values()], loss(x, *variables.values()))
        return f(logp, *values.values())

    if sequences == 1:
        runs = [[c for c, _ in groupby(path) if c] for path in product(range(3), repeat=5)]
        assert losses() == pytest.approx(5 * np.log(3) - np.log(runs.count([1, 2])))
    else:
        with pytest.raises(ShapeMismatch if given == "unknown" else (TypeMismatch, ShapeMismatch)):
            losses()


def test_reductions_that_a_divergence_takes():
    assert nn.KLDivLoss(reduction="batchmean").reduction == "batchmean"
    with pytest.raises(InputError, match="wanted one of mean, sum, none, batchmean"):
        nn.KLDivLoss(reduction="avg")
    with pytest.raises(ValueError, match="wanted one of mean, sum, none$"):
        nn.MSELoss(reduction="batchmean")


OF_A_WEIGHT_EACH = {
    "MSELoss": (lambda d: d**2, True),
    "L1Loss": (abs, True),
    "HuberLoss": (lambda d: np.where(abs(d) <= 1, d**2 / 2, abs(d) - 0.5), False),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", OF_A_WEIGHT_EACH)
def test_losses_with_a_weight_each(kind, reduction, rng):
    x, t, w = 2 * rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.random((4, 3))
    of, by_weights = OF_A_WEIGHT_EACH[kind]
    each = of(x - t) * w
    total = {"none": each, "sum": each.sum(), "mean": each.sum() / (w.sum() if by_weights else 12)}
    function = {"MSELoss": F.mse_loss, "L1Loss": F.l1_loss, "HuberLoss": F.huber_loss}[kind]
    inputs = T.dmatrices(3)
    found = symdnn.function(inputs, function(*inputs[:2], reduction=reduction, weight=inputs[2]))
    np.testing.assert_allclose(found(x, t, w), total[reduction], rtol=1e-12)
    symdnn.verify_grad(lambda a: T.sum(function(a, t, reduction=reduction, weight=w)), [x], rng=rng)


def test_a_weight_of_another_shape_is_refused():
    x, t = T.matrices(2)
    with pytest.raises(TypeMismatch, match="MSELoss: wanted a weight of the output's 2 dim"):
        F.mse_loss(x, t, weight=T.vector())


@pytest.mark.parametrize("classes", [3, None])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_are_one_for_each_class(loss, size, classes):
    """Also where no label asks for those that are missing."""
    x, t = T.tensor("float32", (None, classes)), T.lvector()
    data = np.zeros((2, 3), "float32"), np.array([0, size - 1 if size < 3 else 2])
    with pytest.raises(ShapeMismatch, match=rf"3 classes, got {size}|equal to dimension 1"):
        symdnn.function([x, t], loss(x, t, weight=np.ones(size, "float32")))(*data)
    if loss is F.cross_entropy:
        p = T.tensor("float32", (None, classes))
        with pytest.raises(ShapeMismatch):
            symdnn.function([x, p], loss(x, p, weight=np.ones(size, "float32")))(data[0], data[0])

"""Losses and their gradients against PyTorch's, stored by make_torch_criterion.py."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import DimensionMismatch, IndexOutOfRange, InputError, TypeMismatch
from tests.seeded import new_rng

STORED = np.load(Path(__file__).parents[1] / "torch_criterion.npz")
WEIGHTS = np.array([0.5, 1.5, 1.0, 2.0, 0.25], "float32")
KINDS = {
    "plain": "", "one": "", "maps": "Spatial", "map": "Spatial", "volumes": "Volumetric",
    "volume": "Volumetric",
}  # fmt: skip
OPTIONS = {
    "mean": {}, "sum": {"sizeAverage": False}, "weights": {"weights": WEIGHTS},
    "ignore": {"ignoreIndex": 2}, "both": {"weights": WEIGHTS, "ignoreIndex": 2},
}  # fmt: skip
SMOOTH = {
    "smooth": {"labelSmoothing": 0.1},
    "smooth_all": {"labelSmoothing": 0.3, "weights": WEIGHTS, "ignoreIndex": 2},
    "smooth_none": {"labelSmoothing": 0.3, "weights": WEIGHTS, "reduction": "none"},
}
VALUES = {
    "mse": nn.MSECriterion(), "mse_sum": nn.MSECriterion(False), "abs": nn.AbsCriterion(),
    "smooth_l1": nn.SmoothL1Criterion(), "smooth_l1_beta": nn.SmoothL1Criterion(beta=0.3),
    "bce": nn.BCECriterion(), "bce_weights": nn.BCECriterion(WEIGHTS),
    "logits": nn.BCEWithLogitsCriterion(),
    "logits_all": nn.BCEWithLogitsCriterion(WEIGHTS, posWeight=2 * WEIGHTS),
    "multilabel": nn.MultiLabelSoftMarginCriterion(),
    "multilabel_w": nn.MultiLabelSoftMarginCriterion(WEIGHTS), "kl": nn.DistKLDivCriterion(),
    "margin": nn.MarginCriterion(0.7), "soft_margin": nn.SoftMarginCriterion(),
    "hinge": nn.HingeEmbeddingCriterion(0.6), "cosine": nn.CosineEmbeddingCriterion(0.1),
    "ranking": nn.MarginRankingCriterion(0.2),
}  # fmt: skip


def variable(array, name):
    return T.TensorType(array.dtype.name, (None,) * array.ndim)(name)


def loss_and_gradients(criterion, outputs, target, *more):
    """The loss and the gradients of its sum, for arrays or lists of them."""
    table = isinstance(outputs, list)
    xs = [variable(a, "x") for a in (outputs if table else [outputs])]
    t = variable(np.asarray(target), "t")
    loss = criterion(xs if table else xs[0], t, *more)
    f = symdnn.function([*xs, t], [loss, *T.grad(loss.sum(), xs)])
    found = f(*(outputs if table else [outputs]), np.asarray(target))
    return found[0], found[1:]


def check(name, criterion, *more):
    keys = [k for k in ("x", "x0", "x1") if f"{name}/{k}" in STORED]
    given = [STORED[f"{name}/{k}"] for k in keys]
    outputs = given[0] if keys == ["x"] else given
    loss, gradients = loss_and_gradients(criterion, outputs, STORED[f"{name}/t"], *more)
    np.testing.assert_allclose(loss, STORED[f"{name}/loss"], 1e-5, 1e-6)
    for key, gradient in zip(keys, gradients, strict=True):
        np.testing.assert_allclose(gradient, STORED[f"{name}/d{key}"], 1e-4, 1e-6)


@pytest.mark.parametrize("option", [*OPTIONS, *SMOOTH])
@pytest.mark.parametrize("kind", KINDS)
def test_cross_entropy(kind, option):
    criterion = getattr(nn, f"{KINDS[kind]}CrossEntropyCriterion")
    check(f"cross/{kind}/{option}", criterion(**(OPTIONS | SMOOTH)[option]))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_negative_log_likelihood(kind, option):
    criterion = getattr(nn, f"{KINDS[kind]}ClassNLLCriterion")
    check(f"nll/{kind}/{option}", criterion(**OPTIONS[option]))


@pytest.mark.parametrize("name", VALUES)
def test_values_and_margins(name):
    check(name, VALUES[name])


@pytest.mark.parametrize("kind", ["maps", "volumes"])
def test_classes_at_each_place(kind):
    check(f"cross/{kind}/smooth_all", nn.CrossEntropyCriterion(**SMOOTH["smooth_all"]))
    check(f"nll/{kind}/both", nn.ClassNLLCriterion(**OPTIONS["both"]))


def test_every_stored_case_is_tested():
    stored = {name.rsplit("/", 1)[0] for name in STORED.files}
    tested = {f"cross/{k}/{o}" for k in KINDS for o in OPTIONS | SMOOTH}
    tested |= {f"nll/{k}/{o}" for k in KINDS for o in OPTIONS} | set(VALUES) | {"ctc"}
    assert stored == tested


@pytest.mark.parametrize("name", ["smooth_l1", "cosine", "logits_all", "multilabel_w", "kl"])
def test_gradients_by_finite_differences(name):
    rng, criterion = new_rng(), VALUES[name]
    x, t = rng.normal(size=(3, 5)), rng.uniform(0.1, 0.9, (3, 5))
    if name == "cosine":
        t = np.array([1.0, -1.0, 1.0])
        symdnn.verify_grad(lambda a, b: criterion([a, b], t), [x, rng.normal(size=(3, 5))], rng=rng)
    else:
        symdnn.verify_grad(lambda a: criterion(a, t), [x], rng=rng)


@pytest.mark.parametrize("first", [False, True])
def test_ctc(first):
    x, t, lengths = (STORED[f"ctc/{k}"] for k in ("x", "t", "lengths"))
    x = x.transpose(1, 0, 2) if first else x
    criterion = nn.CTCCriterion(batchFirst=first, reduction="none")
    loss, (dx,) = loss_and_gradients(criterion, x, t, lengths)
    np.testing.assert_allclose(loss, STORED["ctc/loss"], 1e-5)
    wanted = STORED["ctc/dx"].transpose(1, 0, 2) if first else STORED["ctc/dx"]
    np.testing.assert_allclose(dx, wanted, 1e-4, 1e-6)
    mean, _ = loss_and_gradients(nn.CTCCriterion(first), x, t, lengths)
    np.testing.assert_allclose(mean, STORED["ctc/loss"].mean(), 1e-5)


def test_ctc_without_lengths_has_all_frames():
    x, t = STORED["ctc/x"], STORED["ctc/t"]
    full = np.full(3, 9, "int32")
    found, wanted = (loss_and_gradients(nn.CTCCriterion(), x, t, *m)[0] for m in ([], [full]))
    np.testing.assert_array_equal(found, wanted)


def test_extreme_values_stay_finite():
    x = np.array([[1e4, -1e4], [-1e4, 1e4]], "float32")
    for criterion, t in (
        (nn.CrossEntropyCriterion(), np.array([1, 1])),
        (nn.BCEWithLogitsCriterion(), np.array([[1, 0], [1, 0]], "float32")),
        (nn.SoftMarginCriterion(), np.array([[1, -1], [1, -1]], "float32")),
        (nn.CosineEmbeddingCriterion(), np.array([1, -1], "float32")),
    ):
        given = [x, 0 * x] if isinstance(criterion, nn.CosineEmbeddingCriterion) else x
        loss, gradients = loss_and_gradients(criterion, given, t)
        assert np.isfinite(loss)
        assert all(np.isfinite(g).all() for g in gradients)
    p, t = np.array([0, 1, 0, 1], "float32"), np.array([0, 0, 1, 1], "float32")
    loss, (dp,) = loss_and_gradients(nn.BCECriterion(), p, t)
    assert loss == pytest.approx(-np.log(1e-12) / 2, rel=1e-5)
    assert np.isfinite(dp).all()


def test_where_all_labels_are_ignored_there_is_no_loss():
    x = new_rng().normal(size=(3, 4)).astype("float32")
    for criterion in (nn.CrossEntropyCriterion, nn.ClassNLLCriterion):
        loss, (dx,) = loss_and_gradients(criterion(ignoreIndex=-1), x, np.full(3, -1))
        assert loss == 0
        np.testing.assert_array_equal(dx, 0 * x)


def test_an_infinite_loss_of_an_ignored_label_does_not_spread():
    logp = np.array([[0, -np.inf], [-1, -0.5]], "float32")
    loss, (dx,) = loss_and_gradients(nn.ClassNLLCriterion(ignoreIndex=-1), logp, np.array([-1, 1]))
    assert loss == 0.5
    np.testing.assert_array_equal(dx, [[0, 0], [0, -1]])


@pytest.mark.cpu
def test_labels_that_are_no_classes():
    x = np.zeros((2, 3), "float32")
    with pytest.raises(IndexOutOfRange, match="label 3 in row 1"):
        loss_and_gradients(nn.CrossEntropyCriterion(), x, np.array([0, 3]))
    with pytest.raises(IndexOutOfRange, match="label -100"):
        loss_and_gradients(nn.CrossEntropyCriterion(), x, np.array([0, -100]))


def test_targets_never_broadcast():
    x, t = T.col("x"), T.vector("t")
    with pytest.raises(TypeMismatch, match="MSECriterion: wanted a target of the output's 2 dim"):
        nn.MSECriterion()(x, t)
    f = symdnn.function([x, m := T.matrix("m")], nn.MSECriterion()(x, m))
    one = np.ones((3, 1), "float32")
    assert f(one, 3 * one) == 4
    with pytest.raises(DimensionMismatch):
        f(one, np.ones((3, 5), "float32"))


def test_several_criterions():
    x, t = STORED["mse/x"], STORED["mse/t"]
    mse, l1 = STORED["mse/loss"], np.abs(x - t).mean()
    both = nn.MultiCriterion().add(nn.MSECriterion()).add(nn.AbsCriterion(), 0.5)
    assert loss_and_gradients(both, x, t)[0] == pytest.approx(mse + 0.5 * l1, rel=1e-5)
    a, b, s, u = T.matrix("a"), T.matrix("b"), T.matrix("s"), T.matrix("u")
    parallel = nn.ParallelCriterion().add(nn.MSECriterion(), 2.0).add(nn.AbsCriterion())
    f = symdnn.function([a, b, s, u], parallel([a, b], [s, u]))
    assert f(x, x, t, 3 * t) == pytest.approx(2 * mse + np.abs(x - 3 * t).mean(), rel=1e-5)
    one = nn.ParallelCriterion(True).add(nn.MSECriterion()).add(nn.MSECriterion())
    f = symdnn.function([a, b, t_ := T.matrix("t")], one([a, b], t_))
    assert f(x, x, t) == pytest.approx(2 * mse, rel=1e-5)
    assert repr(one).splitlines()[1] == "  (0): nn.MSECriterion"


def test_sizeAverage_can_be_changed():
    criterion = nn.MSECriterion()
    assert criterion.sizeAverage
    criterion.sizeAverage = False
    x, t = STORED["mse_sum/x"], STORED["mse_sum/t"]
    loss, _ = loss_and_gradients(criterion, x, t)
    assert loss == pytest.approx(STORED["mse_sum/loss"], rel=1e-5)


def test_a_criterion_has_no_parameters():
    weights = symdnn.shared(WEIGHTS)
    assert nn.CrossEntropyCriterion(weights).parameters() == []
    assert nn.BCECriterion(weights).state_dict() == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.MSECriterion(reduction="avg"), "reduction='avg'; wanted one of mean, sum"),
        (lambda: nn.CrossEntropyCriterion(labelSmoothing=2), "labelSmoothing=2; wanted 0 to 1"),
        (lambda: nn.SmoothL1Criterion(beta=0), "beta=0; wanted more than 0"),
        (lambda: nn.MultiCriterion()(T.vector(), T.vector()), "it has no criterions"),
        (lambda: nn.MultiCriterion().add(3), "wanted a criterion, got 3"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.CrossEntropyCriterion(np.ones((2, 2))), "weights that are a vector"),
        (lambda: nn.CrossEntropyCriterion()(T.matrix(), T.vector()), "integers, classes counted"),
        (lambda: nn.CrossEntropyCriterion()(T.matrix(), T.lmatrix()), "target of 1 dimension"),
        (lambda: nn.CrossEntropyCriterion()(T.tensor4(), T.lvector()), "target of 3 dimension"),
        (lambda: nn.CrossEntropyCriterion()(T.scalar(), T.lvector()), r"\(N, C, ...\), or one"),
        (lambda: nn.SpatialCrossEntropyCriterion()(T.matrix(), T.lvector()), r"\(N, C, H, W\)"),
        (lambda: nn.CrossEntropyCriterion()(T.lmatrix(), T.lvector()), "an output of floats"),
        (lambda: nn.ParallelCriterion().add(nn.MSECriterion())(T.vector(), [1]), "1 outputs, one"),
        (lambda: nn.CosineEmbeddingCriterion()(T.matrix(), T.vector()), r"output of two, \[a, b\]"),
        (lambda: nn.CTCCriterion()(T.matrix(), T.lmatrix()), r"scores \(T, N, C\)"),
        (lambda: nn.MultiLabelSoftMarginCriterion()(T.tensor3(), T.tensor3()), r"\(N, C\) or"),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(TypeMismatch, match=message):
        call()

"""Further functions of PyTorch by their names: values, dtypes and gradients against PyTorch."""

import numpy as np
import pytest
import scipy.special

import symdnn
import symdnn.tensor as T
from symdnn.errors import NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.evaluate import evaluate

torch = pytest.importorskip("torch")

ROWS, OTHERS = (5, 3), (4, 3)
#: name: (function of T or torch and tensors, shapes of the operands).
SMOOTH = {
    "cdist": (lambda m, a, b: m.cdist(a, b), ROWS, OTHERS),
    "cdist of itself": (lambda m, a: m.cdist(a, a), ROWS),
    "cdist p=1": (lambda m, a, b: m.cdist(a, b, p=1), ROWS, OTHERS),
    "cdist p=3": (lambda m, a, b: m.cdist(a, b, 3.0), (2, *ROWS), (2, *OTHERS)),
    "cdist p=inf": (lambda m, a, b: m.cdist(a, b, float("inf")), ROWS, OTHERS),
    "pdist": (lambda m, a: (m.pdist if m is T else m.nn.functional.pdist)(a), ROWS),
    "pairwise_distance": (lambda m, a, b: m.pairwise_distance(a, b, keepdim=True), ROWS, ROWS),
    "cosine_similarity": (lambda m, a, b: m.cosine_similarity(a, b), ROWS, ROWS),
    "take_along_dim": (lambda m, a: m.take_along_dim(a, a.argsort(1), 1), ROWS),
    "take_along_dim of all": (lambda m, a: m.take_along_dim(a, a.argmax().reshape(1)), ROWS),
    "block_diag": (lambda m, a, b: m.block_diag(a, b), ROWS, OTHERS),
    "cartesian_prod": (lambda m, a, b: m.cartesian_prod(a, b, a), (3,), (2,)),
    "combinations": (lambda m, a: m.combinations(a, 3), (5,)),
    "combinations again": (lambda m, a: m.combinations(a, with_replacement=True), (3,)),
    "lgamma": (lambda m, a: m.lgamma(a * a + 0.1), ROWS),
    "mvlgamma": (lambda m, a: m.mvlgamma(a * a + 2, 3), ROWS),
    "diag_embed": (lambda m, a: m.diag_embed(a), ROWS),
    "diag_embed above": (lambda m, a: m.diag_embed(a, 1, 0, 2), ROWS),
    "diag_embed below": (lambda m, a: m.diag_embed(a, -2), ROWS),
    "diagonal_scatter": (lambda m, a, b: m.diagonal_scatter(a, b, 1), (4, 5), (4,)),
    "diagonal_scatter below": (
        lambda m, a, b: m.diagonal_scatter(a, b, -1, 1, 2),
        (2, 4, 5),
        (2, 3),
    ),
    "masked_scatter": (lambda m, a, b: m.masked_scatter(a, a > 0, b), ROWS, (20,)),
    "select_scatter": (lambda m, a, b: m.select_scatter(a, b, 1, 2), ROWS, (5,)),
    "slice_scatter": (lambda m, a, b: m.slice_scatter(a, b, 0, 1, 5, 2), ROWS, (2, 3)),
    "split_with_sizes": (lambda m, a: m.split_with_sizes(a, [1, 3, 1])[1], ROWS),
    "msort": (lambda m, a: m.msort(a), ROWS),
    "logdet": (lambda m, a: m.logdet(a @ a.mT + m.ones_like(a @ a.mT)), (2, 3, 4)),
    "cumulative_trapezoid": (lambda m, a: m.cumulative_trapezoid(a, dx=0.5, dim=0), ROWS),
    "cumulative_trapezoid at": (lambda m, a, b: m.cumulative_trapezoid(a, b), ROWS, (3,)),
    "trapz": (lambda m, a: m.trapz(a), ROWS),
    "broadcast_tensors": (lambda m, a, b: m.broadcast_tensors(a, b)[1], ROWS, (1, 3)),
    "polar": (lambda m, a, b: m.view_as_real(m.polar(a.exp(), b)), ROWS, ROWS),
    "view_as_complex": (lambda m, a: m.view_as_complex(a).abs(), (4, 2)),
    "adjoint": (lambda m, a: m.adjoint(a), (2, 3, 4)),
    "matrix_exp": (lambda m, a: m.matrix_exp(a), (3, 3)),
    "matrix_power": (lambda m, a: m.matrix_power(a, 3), (3, 3)),
    "det": (lambda m, a: m.det(a), (3, 3)),
    "slogdet": (lambda m, a: m.slogdet(a)[1], (3, 3)),
}
UNKNOWN = {"combinations", "combinations again"}  # those need sizes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients_are_those_of_pytorch(rng, name, dtype):
    function, *shapes = SMOOTH[name]
    data = [rng.normal(size=s).astype(dtype) for s in shapes]
    sizes = [s if name in UNKNOWN else [1 if n == 1 else None for n in s] for s in shapes]
    xs = [T.tensor(dtype, s) for s in sizes]
    ts = [torch.tensor(a, requires_grad=True) for a in data]
    y, z = function(T, *xs), function(torch, *ts)
    assert y.type.dtype == str(z.dtype).removeprefix("torch.")
    w = rng.normal(size=tuple(z.shape)).astype(dtype)
    gradients = symdnn.grad((y * w).sum(), xs, disconnected_inputs="ignore")
    found = evaluate([y, *gradients], dict(zip(xs, data, strict=True)))
    (z * torch.tensor(w)).sum().backward()
    within = 2e-5 if dtype == "float32" else 1e-10
    for got, wanted in zip(found, (z, *(t.grad for t in ts)), strict=True):
        wanted = np.zeros_like(got) if wanted is None else wanted.detach().numpy()
        np.testing.assert_allclose(got, wanted, within, within)


INTEGERS = {
    "bucketize": lambda m, i, x, e: m.bucketize(x, e),
    "bucketize right": lambda m, i, x, e: m.bucketize(i, e, right=True, out_int32=True),
    "histc": lambda m, i, x, e: m.histc(x, 7),
    "histc in limits": lambda m, i, x, e: m.histc(x, bins=4, min=-1, max=1),
    "cdist p=0": lambda m, i, x, e: m.cdist(i.reshape(4, 3) * 1.0, i.reshape(4, 3) * 1.0, 0.0),
    "unique_consecutive": lambda m, i, x, e: m.unique_consecutive(i),
    "unique_consecutive places": lambda m, i, x, e: m.unique_consecutive(
        i.reshape(4, 3), return_inverse=True
    )[1],
    "unique_consecutive counts": lambda m, i, x, e: m.unique_consecutive(i, return_counts=True)[1],
}


@pytest.mark.parametrize("name", INTEGERS)
def test_counts_and_places_are_those_of_pytorch(rng, name):
    data = [rng.integers(0, 3, 12), rng.normal(size=(3, 4)).astype("float32"),
            np.array([-1.0, 0.0, 0.5, 1.0], "float32")]  # fmt: skip
    xs = [T.tensor(str(a.dtype), [None] * a.ndim) for a in data]
    y, z = INTEGERS[name](T, *xs), INTEGERS[name](torch, *map(torch.tensor, data))
    (found,) = evaluate([y], dict(zip(xs, data, strict=True)))
    assert str(z.dtype) == f"torch.{found.dtype}"
    np.testing.assert_array_equal(found, z.numpy())


def test_edges_of_these_functions(rng):
    one = symdnn.function([x := T.lvector()], T.unique_consecutive(x, return_counts=True))
    assert [list(v) for v in one(np.zeros(0, "int64"))] == [[], []]
    a = rng.gamma(2, size=4) + 2
    np.testing.assert_allclose(T.mvlgamma(a, 2).eval(), scipy.special.multigammaln(a, 2))
    np.testing.assert_array_equal(
        T.logdet(np.array([[[1.0, 1], [1, 1]], [[-1, 0], [0, 1]]])).eval(), [-np.inf, np.nan]
    )
    with pytest.raises(NdimMismatch, match="at least 2 dimensions"):
        T.cdist(x, x)
    with pytest.raises(OptionError, match="p of at least 0"):
        T.cdist(T.matrix(), T.matrix(), -1)
    with pytest.raises(TypeMismatch, match="a vector of known size"):
        T.combinations(T.vector())
    with pytest.raises(TypeMismatch, match="a mask of bools"):
        T.masked_scatter(T.vector(), x, T.vector())

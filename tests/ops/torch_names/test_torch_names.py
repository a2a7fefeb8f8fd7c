"""PyTorch's methods, functions and keywords: values and gradients against PyTorch."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import InputError, MissingInputError, SymbolicValueError, TypeMismatch
from symdnn.graph.evaluate import evaluate

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
VALUE, SOURCE = RNG.normal(size=(2, 3, 4, 5)).astype("float32")
INDEX = RNG.integers(0, 3, (3, 4, 5))

METHODS = {
    "view": lambda x: x.view(3, -1), "view of a tuple": lambda x: x.view((4, 15)),
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1),
    "transpose": lambda x: x.transpose(-2, -1).contiguous().view(3, 20),
    "flatten": lambda x: x.flatten(start_dim=1), "size": lambda x: x.view(x.size(0), x.size(-1), 4),
    "max": lambda x: x.max(dim=1)[0], "min": lambda x: x.min(dim=1, keepdim=True).values,
    "std": lambda x: x.std(dim=1), "var": lambda x: x.var(dim=(0, 1), unbiased=False),
    "norm": lambda x: x.norm(dim=-1), "1-norm": lambda x: x.norm(p=1, dim=-1, keepdim=True),
    "clamp": lambda x: x.clamp(min=0.1), "softmax": lambda x: x.softmax(dim=-1),
    "log_softmax": lambda x: x.log_softmax(dim=1), "split": lambda x: x.split(3, dim=1)[1],
    "chunk": lambda x: x.chunk(2, dim=1)[0], "unbind": lambda x: x.unbind(1)[2],
    "narrow": lambda x: x.narrow(1, 1, 2), "sort": lambda x: x.sort(dim=1, descending=True)[0],
    "topk": lambda x: x.topk(2, dim=-1)[0], "kthvalue": lambda x: x.kthvalue(2, dim=1)[0],
    "median": lambda x: x.median(dim=1)[0], "masked_fill": lambda x: x.masked_fill(x > 0, -2.0),
    "unfold": lambda x: x.unfold(1, 2, 1), "flip": lambda x: x.flip(1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1), "roll": lambda x: x.roll(1, 1),
    "cumsum": lambda x: x.cumsum(dim=1), "logsumexp": lambda x: x.logsumexp(dim=1),
    "arithmetic": lambda x: x.abs().add(1).mul(2).div(3).sub(1).pow(2).neg().square(),
    "amax": lambda x: x.amax(dim=(0, 2)), "detach": lambda x: x * x.detach(),
    "movedim": lambda x: x.movedim(0, 2), "mm": lambda x: x[0].mm(x[1].t()),
    "bmm": lambda x: x.bmm(x.mT), "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "mean": lambda x: x.mean(dim=(1, 2), keepdim=True), "tile": lambda x: x.tile(2, 1, 1),
    "diagonal": lambda x: x.diagonal(dim1=-2, dim2=-1),
    "joined size": lambda x: x.view(x.size()[:-1] + (1, -1)),
}  # fmt: skip
FUNCTIONS = {
    "gather": lambda m, x, i, s: m.gather(x, 1, i),
    "gather less": lambda m, x, i, s: x.gather(0, i[:2]),
    "scatter_add": lambda m, x, i, s: x.scatter_add(1, i, s),
    **{
        f"scatter_reduce {reduce}, {alone}": lambda m, x, i, s, reduce=reduce, alone=alone: (
            x.scatter_reduce(1, i, s, reduce, include_self=alone)
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for alone in (True, False)
    },
    **{
        f"index_reduce {reduce}": lambda m, x, i, s, reduce=reduce: x.index_reduce(
            1, i[0, :, 0], s, reduce
        )
        for reduce in ("prod", "mean", "amax", "amin")
    },
    "index_add": lambda m, x, i, s: x.index_add(1, i[0, :, 0], s),
    "index_select": lambda m, x, i, s: x.index_select(1, i[0, :, 0]),
    "cat": lambda m, x, i, s: m.cat([x, s], dim=1),
    "stack": lambda m, x, i, s: m.stack([x, s], dim=1),
    "baddbmm": lambda m, x, i, s: m.baddbmm(m.bmm(x, x.mT), x, s.mT, beta=0.5, alpha=2),
    "addmm": lambda m, x, i, s: m.addmm(x[0], x[1] @ s[0].t(), s[2]),
    "addcmul": lambda m, x, i, s: m.addcmul(x, s, s, value=0.5),
    "sum": lambda m, x, i, s: m.sum(x * s, dim=1, keepdim=True),
    "softmax": lambda m, x, i, s: m.softmax(x, dim=0),
    "var_mean": lambda m, x, i, s: sum(m.var_mean(x, 1, False)),
    "std_mean": lambda m, x, i, s: m.std_mean(x, dim=1, unbiased=True, keepdim=True)[0],
    "einsum": lambda m, x, i, s: m.einsum("bij,bkj->bik", [x, s]),
    "nonzero": lambda m, x, i, s: x[m.nonzero(x[..., 0] > 0, as_tuple=True)],
}  # fmt: skip


def same(function, arrays):
    xs = [T.tensor(str(a.dtype), a.shape) for a in arrays]
    ts = [torch.tensor(a) for a in arrays]
    ts[0].requires_grad_()
    y, z = function(T, *xs), function(torch, *ts)
    w = np.random.default_rng(1).normal(size=tuple(z.shape)).astype("float32")
    gradient = symdnn.grad((y * w).sum(), xs[0])
    found = evaluate([y, gradient], dict(zip(xs, arrays, strict=True)))
    (z * torch.tensor(w)).sum().backward()
    for got, wanted in zip(found, (z, ts[0].grad), strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), 1e-4, 1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    same(lambda _, x: METHODS[name](x), [VALUE])


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    same(FUNCTIONS[name], [VALUE, INDEX, SOURCE])


def test_without_its_words_a_method_is_numpys():
    x = T.constant(VALUE)
    assert x.max(1).type.ndim == 2
    np.testing.assert_allclose(x.std(1).eval(), VALUE.std(1), 1e-5)
    np.testing.assert_allclose(x.std(dim=1).eval(), VALUE.std(1, ddof=1), 1e-5)
    with pytest.raises(InputError, match="sum: dim and axis are one argument"):
        x.sum(axis=1, dim=1)


def test_sizes():
    x, k = T.matrix("x"), T.tensor("float32", (2, 3))
    n, m = x.size()
    found = evaluate([x.size, x.size(0), n * m], {x: np.ones((4, 5), "float32")})
    assert [int(f) for f in found] == [20, 4, 20]
    assert int(k.size(-1).eval()) == 3


def test_changed_parts_as_in_jax():
    x = T.constant(VALUE[0])
    wanted = VALUE[0].copy()
    wanted[1] += 2
    np.testing.assert_allclose(x.at[1].add(2.0).eval(), wanted)
    wanted = VALUE[0].copy()
    wanted[:, 2] = 7
    np.testing.assert_allclose(x.at[:, 2].set(7.0).eval(), wanted)
    np.testing.assert_allclose(x.at[0].max(0.0).eval()[0], np.maximum(VALUE[0, 0], 0))


def test_a_logarithm_of_an_int_is_as_wide_as_the_result():
    x = np.array([0.0, 1.5])
    got = T.xlogy(T.constant(x), 3).eval()
    assert got.dtype == "float64"
    np.testing.assert_allclose(got, x * np.log(3), 1e-15)


def test_values_for_one_element_are_all_taken():
    """JAX's ``x.at`` and ``segment_max`` and its kin."""
    x, v, i = np.array([3.0, 1.0, 2.0, 0.5]), np.array([2.0, 5.0, 4.0]), np.array([0, 0, -1])
    at = T.constant(x).at[T.constant(i)]
    assert at.max(v).eval().tolist() == [5, 1, 2, 4]
    assert at.min(v).eval().tolist() == [2, 1, 2, 0.5]
    assert at.multiply(v).eval().tolist() == [30, 1, 2, 2]
    assert T.constant(x).at[1:3].max(1.5).eval().tolist() == [3, 1.5, 2, 0.5]
    ids = np.array([2, 0, 2])
    assert T.segment_max(v, ids).eval().tolist() == [5, -np.inf, 4]
    assert T.segment_min(v, ids, 3).eval().tolist() == [5, np.inf, 2]
    assert T.segment_prod(v, ids).eval().tolist() == [5, 1, 8]
    assert T.segment_sum(v, ids, 4).eval().tolist() == [5, 0, 6, 0]
    assert T.segment_max(np.array([1, 2], "int8"), [0, 2]).eval().tolist() == [1, -128, 2]
    with pytest.raises(symdnn.errors.OptionError, match="wanted one of 'sum', 'mean'"):
        T.scatter_reduce(x, 0, i, v, "max")


def test_words_of_methods():
    x = T.constant(VALUE)
    assert np.array_equal(x.flip(dims=[1]).eval(), VALUE[:, ::-1])
    assert x.permute(dims=(2, 0, 1)).eval().shape == (5, 3, 4)
    assert x.view(size=(12, 5)).eval().shape == (12, 5)
    assert x.to("float64").type.dtype == x.to(T.dscalar()).type.dtype == "float64"
    with pytest.raises(symdnn.errors.TypeMismatch, match="The flag device"):
        x.to("cuda:0")


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_medians_of_unknown_sizes_and_of_nan(dtype, keepdim, dim):
    data = RNG.integers(-9, 9, (5, 4)).astype(dtype)
    if dtype == "float32":
        data[1, 2] = data[3, 2] = np.nan
    x = T.tensor(dtype, (None, None))
    found = evaluate(list(x.median(dim=dim, keepdim=keepdim)), {x: data})
    wanted = torch.tensor(data).median(dim=dim, keepdim=keepdim)
    np.testing.assert_array_equal(found[0], wanted[0])
    chosen = np.take_along_axis(data, found[1] if keepdim else np.expand_dims(found[1], dim), dim)
    np.testing.assert_array_equal(chosen if keepdim else chosen.squeeze(dim), wanted[0])


def test_places_of_what_is_not_zero():
    x = T.matrix("x")
    value = np.array([[0, 2, 0], [3, 0, 4]], "float32")
    for found in (T.nonzero(x, as_tuple=False), x.nonzero(as_tuple=False)):
        np.testing.assert_array_equal(found.eval({x: value}), torch.nonzero(torch.tensor(value)))


def test_what_pytorch_calls_clone_is_copy():
    with pytest.raises(MissingInputError, match=r"x.clone\(\) is a new variable .* x.copy\(\)"):
        symdnn.jit(lambda x: x.clone() * 2)(VALUE)
    assert np.array_equal(symdnn.jit(lambda x: x.copy())(VALUE), VALUE)


def test_masks_are_no_truths() -> None:
    """``x == 0`` is False, since variables are equal to themselves alone."""
    x = T.matrix("x")
    for fill in (lambda m: x.masked_fill(m, 1.0), x.masked_select):
        with pytest.raises(SymbolicValueError, match=r"T\.eq\(x, y\)"):
            fill(x == 0)
        with pytest.raises(TypeMismatch, match="wanted an array of bools"):
            fill(False)
        fill(T.eq(x, 0))

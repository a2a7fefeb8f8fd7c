"""Options of functions that mean nothing are errors: none is taken for another value."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError

X, Z, LINES, IMAGES = T.dmatrix("x"), T.zmatrix("z"), T.dtensor3("lines"), T.dtensor4("images")
WRONG = {
    "round: decimals": lambda: T.round(X, decimals=1.5),
    "around: decimals": lambda: T.around(X, decimals="a"),
    "var: ddof": lambda: T.var(X, ddof=None),
    "std: ddof": lambda: T.std(X, ddof="a"),
    "kthvalue: dim": lambda: T.kthvalue(X, 1, dim=None),
    "dropout: axis 5": lambda: T.nnet.dropout(X, shared=(5,)),
    "dropout of a number": lambda: T.nnet.dropout(T.dscalar(), shared=(0,)),
    "dropout: axis a": lambda: T.nnet.dropout(X, shared=("a",)),
    "layer_norm: epsilon": lambda: T.nnet.layer_norm(X, epsilon="a"),
    "conv1d: num_groups a": lambda: T.nnet.conv1d(LINES, LINES, num_groups="a"),
    "conv1d: num_groups 1.5": lambda: T.nnet.conv1d(LINES, LINES, num_groups=1.5),
    "conv2d: border_mode": lambda: T.nnet.conv2d(IMAGES, IMAGES, border_mode=1.5),
    "quantile": lambda: T.quantile(X, 1.5),
    "quantiles": lambda: T.quantile(X, [0.5, -0.5]),
    "quantile nan": lambda: T.quantile(X, np.nan),
    "percentile": lambda: T.percentile(X, 101),
    "nanquantile": lambda: T.nanquantile(X, -1),
    "nanpercentile": lambda: T.nanpercentile(X, [50, 200]),
    "block_diag": T.block_diag,
    "segment_max": lambda: T.segment_max(Z, T.lvector(), 3),
    "grad of a number": lambda: symdnn.grad(1.5, X),
    "grad of an array": lambda: symdnn.grad(np.ones(3), X),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_without_a_meaning_is_an_error(name):
    with pytest.raises(SymdnnError):
        WRONG[name]()


def test_options_at_their_limits_are_taken(rng):
    x = rng.standard_normal((4, 5))
    for ours, theirs, q in [
        (T.quantile, np.quantile, [0, 0.1, 1]), (T.percentile, np.percentile, [0, 10, 100]),
        (T.nanquantile, np.nanquantile, [0, 0.1, 1]), (T.nanpercentile, np.nanpercentile, 100),
    ]:  # fmt: skip
        np.testing.assert_allclose(ours(X, q).eval({X: x}), theirs(x, q), 1e-13)
    np.testing.assert_allclose(T.var(X, ddof=np.int64(1)).eval({X: x}), x.var(ddof=1), 1e-13)
    np.testing.assert_allclose(T.round(X, decimals=np.int8(1)).eval({X: x}), x.round(1), 1e-13)
    y, mask = T.nnet.dropout(X, 0.5, 1, shared=(-1,), return_mask=True)
    assert y.type.ndim == 2
    assert mask.type.broadcastable == (False, True)

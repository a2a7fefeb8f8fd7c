"""Each layer's output, gradients and statistics against PyTorch's, computed in float64."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from tests.nn.torch_cases import CASES, inputs, loss_weights, parameter
from tests.seeded import sampled

STORED = np.load(Path(__file__).parents[1] / "torch_layers.npz")


def built(case, dtype):
    """The layer with the case's parameters."""
    with symdnn.config.change_flags(floatX=dtype):
        module = eval(case.ours, {k: getattr(nn, k) for k in nn.__all__})
    named = {**module.named_parameters(), **module.named_buffers()}
    # PyTorch tells of a layer's parameters first, then of its statistics.
    state = {n: parameter(n, v.get_value().shape, i) for i, (n, v) in enumerate(ordered(named))}
    return module.load_state_dict(state).train(case.training)


def ordered(named):
    """Parameters before statistics."""
    return sorted(named.items(), key=lambda item: "running" in item[0])


def outcome(case, dtype):
    """The same values by the same names as in the file."""
    module, value = built(case, dtype), inputs(case)
    value = value if case.integers else value.astype(dtype)
    x = T.TensorType(str(value.dtype), (None,) * value.ndim)("x")
    y = module(x)
    loss = (y * loss_weights(STORED[f"{case.key}|y"].shape).astype(dtype)).sum()
    wrt = {} if case.integers else {"dx": x}
    wrt |= {f"grad {n}": p for n, p in module.named_parameters().items()}
    grads = symdnn.grad(loss, list(wrt.values())) if wrt else []
    f = symdnn.function([x], [y, *grads], updates=nn.state_updates(y))
    found = dict(zip(["y", *wrt], f(value), strict=True))
    found |= {f"value {n}": v.get_value() for n, v in module.named_buffers().items()}
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", sampled(CASES, every=3), ids=[c.key for c in CASES])
def test_as_pytorch(case, dtype):
    found = outcome(case, dtype)
    wanted = {k.rpartition("|")[2]: STORED[k] for k in STORED if k.startswith(case.key + "|")}
    assert set(found) == set(wanted)
    rtol, atol = (1e-6, 2e-7) if dtype == "float64" else (1e-5, 1e-5)
    for name, value in wanted.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, dtype), name
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)

"""Values of PyTorch 2's ``torch.distributions``, stored: densities, moments, quantiles, shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.graph.evaluate import evaluate

STORED = json.loads((Path(__file__).parent / "torch_values.json").read_text())
#: PyTorch's are NaN where there is a mode, and a corner where there are several.
OTHER = {("Weibull", "mode"), ("Kumaraswamy", "mode"), ("Dirichlet", "mode")}
P = np.array([[0.1, 0.2], [0.5, 0.9]])


def made(name, parameters):
    """The distribution of variables, and what to call a function of them with."""
    given = {k: np.array(v, "float64") for k, v in parameters.items() if not isinstance(v, int)}
    variables = {k: T.TensorType("float64", v.shape)(k) for k, v in given.items()}
    whole = {k: v for k, v in parameters.items() if isinstance(v, int)}
    return getattr(D, name)(**variables, **whole), dict(zip(variables.values(), given.values()))


def computed(outputs, values):
    return evaluate(outputs, values)


@pytest.mark.parametrize("entry", STORED["distributions"], ids=lambda e: e["name"])
def test_one_distribution(entry):
    name = entry["name"]
    if not hasattr(D, name):
        pytest.skip(f"there is no {name}")
    d, values = made(name, entry["parameters"])
    assert d.batch_shape == tuple(entry["batch_shape"])
    assert d.event_shape == tuple(entry["event_shape"])
    assert d.has_rsample or not entry["has_rsample"]
    x = np.array(entry["values"])
    v = T.TensorType(x.dtype.name, x.shape)("x")
    u = T.TensorType("float64", P.shape)("p")
    outputs = {"log_prob": d.log_prob(v)}
    for what in ("mean", "variance", "mode", "stddev"):
        if what in entry and (name, what) not in OTHER:
            outputs[what] = getattr(d, what)
    if "entropy" in entry and name not in ("Binomial", "Multinomial"):
        outputs["entropy"] = d.entropy()
    if "cdf" in entry and name != "VonMises":
        outputs["cdf"] = d.cdf(v)
    if "icdf" in entry:
        outputs["icdf"] = d.icdf(u)
    found = computed(list(outputs.values()), values | {v: x, u: P})
    for what, got in zip(outputs, found):
        want = np.array(entry[what], "float64")
        near = 1e-5 if name == "VonMises" else 2e-8  # PyTorch has a polynomial for log I0
        np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=near, atol=1e-10,
                                   err_msg=what)  # fmt: skip
        assert what not in ("log_prob", "cdf", "icdf", "mean", "entropy") or (
            got.shape == want.shape
        ), what


@pytest.mark.parametrize("entry", STORED["divergences"], ids=lambda e: e["p"][0] + e["q"][0])
def test_one_divergence(entry):
    if not hasattr(D, entry["p"][0]):
        pytest.skip(f"there is no {entry['p'][0]}")
    p, of_p = made(*entry["p"])
    q, of_q = made(*entry["q"])
    (found,) = computed([D.kl_divergence(p, q)], of_p | of_q)
    np.testing.assert_allclose(found, entry["kl"], rtol=1e-8)

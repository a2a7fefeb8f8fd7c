"""The table of programs: values and gradients against mpmath."""

from __future__ import annotations

import pytest

from symdnn.graph.tracing import tracing
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from tests.seeded import sampled
from tests.stable.dialects import Symdnn
from tests.stable.forms import FORMS, Form
from tests.stable.lab import Case, short, whole
from tests.stable.truth import KEPT, leaves, to_keep

SQUARES = "squares of such numbers overflow, and scaling them costs every norm a pass"
TANH = "it is the slope of tanh: a form that keeps its digits would cost every network"

SUPPORT = "what is 0 below the least value is a choice, which hides the exponential"
ELEMENTS = "what is not there is 0, so the logarithm is that of the whole matrix"
TRANSFORM = "the error of a transform is relative to the largest number, not to each"

ENTROPY = "-sigmoid(x) * log(sigmoid(x)) - sigmoid(-x) * log(sigmoid(-x))"
#: What is not right, by text, points and dtype, and why.
KNOWN = {
    (ENTROPY, "wide", "float32"): "equal slopes that leave it were rounded apart: by 1.1e-5",
    ("1 - tanh(x) * tanh(x)", "wide", "float32"): TANH,
    ("1 - tanh(x) * tanh(x)", "wide", "float64"): TANH,
    ("log(1 - softmax(X))", "rows", "float64"): "1 - p of a p near 1e-261 is 1",
    ("log(1 - exp(log_softmax(X)))", "rows", "float64"): "1 - p of a p near 1e-261 is 1",
    ("sqrt(rowsum(X * X))", "sizes", "float32"): SQUARES,
    ("sqrt(rowsum(X * X))", "sizes", "float64"): SQUARES,
    ("log(1 - M(exponential_cdf(x)))", "positive", "float32"): SUPPORT,
    ("log(1 - M(exponential_cdf(x)))", "positive", "float64"): SUPPORT,
    ("log(M(dense(structured(sigmoid, sparse(X)))))", "rows", "float32"): ELEMENTS,
    ("log(M(dense(structured(sigmoid, sparse(X)))))", "rows", "float64"): ELEMENTS,
    ("log(M(softmax(irfft(rfft(X)))))", "data", "float32"): TRANSFORM,
}


def known(case: Case) -> str | None:
    return KNOWN.get((case.form.text, case.form.points, case.dtype))


@pytest.fixture(scope="module")
def dialect():
    return Symdnn()


@pytest.mark.parametrize("case", sampled(list(short()), every=4), ids=str)
def test_program(case: Case, dialect) -> None:
    found = case.judge(dialect)
    if any(found) and known(case):
        pytest.xfail(f"{known(case)}: {found}")
    assert found == ("", "")


SQUARED = Form("log cosh", "log1p(cosh(x) ** 2)")


@pytest.mark.parametrize("form", [SQUARED, *sampled(FORMS, every=8)], ids=lambda f: f.text)
def test_a_gradient_inside_of_a_traced_function(form: Form, dialect) -> None:
    """Rules do not ask for the truth of a variable, which a traced function refuses."""
    x = Variable(TensorType("float64", (None,) * leaves(form.points, "float64").ndim))
    with tracing("slope"):
        cost = dialect.evaluate(form.text, x).sum()
        found = dialect.symdnn.grad(cost, x).type
    assert (found.dtype, found.ndim) == (x.type.dtype, x.type.ndim)


@pytest.mark.slow
def test_what_is_kept_is_what_mpmath_says() -> None:
    assert KEPT.read_text() == to_keep(c.key for c in short())


@pytest.mark.slow
@pytest.mark.parametrize("text", list(dict.fromkeys(c.form.text for c in whole())))
def test_program_in_all_variants(text: str, dialect) -> None:
    cases = [c for c in whole() if c.form.text == text]
    wrong = {c: found for c in cases if any(found := c.judge(dialect))}
    unknown = {str(c): found for c, found in wrong.items() if not known(c)}
    assert not unknown
    if wrong:
        pytest.xfail(", ".join({str(known(c)) for c in wrong}))

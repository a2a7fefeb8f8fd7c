"""Which parameters a plan keeps in a kernel's own layout: those that stay from call to call."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn.kernel import PrepackedInput
from tests.seeded import new_rng

pytestmark = pytest.mark.cpu

#: Channels, the size of filters, strides: oneDNN's and symdnn's own kernels, in this order.
LAYERS = {"direct": (64, 3, 2), "Winograd": (64, 3, 1), "1x1": (256, 1, 1), "7x7": (3, 7, 2)}


def network(channels, size, stride, learns):
    """A function of a convolution whose filters change in each call, if it ``learns``."""
    rng = new_rng()
    w = symdnn.shared(0.1 * rng.standard_normal((64, channels, size, size)).astype("float32"))
    x = T.tensor4("x", dtype="float32")
    y = T.nnet.conv2d(x, w, border_mode="half", subsample=(stride, stride))
    cost = (T.nnet.relu(y) ** 2).mean()
    updates = [(w, w - 0.1 * symdnn.grad(cost, w))] if learns else []
    given = rng.standard_normal((4, channels, 28, 28)).astype("float32")
    return symdnn.function([x], cost, updates=updates), given


@pytest.fixture
def made(monkeypatch):
    """All inputs that plans may keep."""
    found = []
    of_class = PrepackedInput.__init__

    def note(self, *arguments):
        of_class(self, *arguments)
        found.append(self)

    monkeypatch.setattr(PrepackedInput, "__init__", note)
    return found


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("calls", [3, 25])
def test_what_changes_in_each_call_is_not_kept(made, layer, calls):
    if jit.problem():
        pytest.skip("no kernels of LLVM")
    f, x = network(*LAYERS[layer], learns=True)
    costs = [float(f(x)) for _ in range(calls)]
    assert costs[-1] < costs[0]
    assert made
    assert not [k for k in made if k.memory is not None]


def test_what_stays_is_kept(made):
    if jit.problem():
        pytest.skip("no kernels of LLVM")
    kept = []
    for sizes in LAYERS.values():
        f, x = network(*sizes, learns=False)
        costs = {float(f(x)) for _ in range(3)}
        assert len(costs) == 1
        kept += [k.memory is not None for k in made]
    assert any(kept)


def test_asking_is_no_call():
    version, memory = [1], 64
    kept = PrepackedInput(lambda: version[0], memory)
    assert kept.kept() is None
    assert kept.place() == (0, False)  # the first call
    version[0] = 2
    assert kept.kept() is None
    assert kept.place() == (0, False)  # the second call, with another value
    assert kept.kept() is not None
    assert kept.kept().nbytes == memory
    at, valid = kept.place()
    assert at
    assert not valid
    assert kept.place() == (at, True)


def test_a_value_that_changes_after_all_is_read_anew():
    f, x = network(*LAYERS["direct"], learns=False)
    (w,) = f.get_shared()
    before = [float(f(x)) for _ in range(14)]
    w.set_value(w.get_value() * 2)
    np.testing.assert_allclose(f(x), 4 * before[-1], 1e-5)

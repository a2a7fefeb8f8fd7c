"""Need 13: the code samples of Theano's two pages on cuDNN run, on a CPU and on a GPU.

With the renames that :doc:`docs/theano.md` lists, of which the import is the first. That CUDA 12
serves as 13 does is :mod:`tests.gpu.binding.test_cudnn_library`'s part.
"""

from __future__ import annotations

import pytest

from tests.test_reference_examples import GPUARRAY, SANDBOX, each_device, needs_a_gpu

__all__ = ["needs_a_gpu"]
SAMPLES = [(m, name) for m in (GPUARRAY, SANDBOX) for name in m.SAMPLES]


@each_device
@pytest.mark.parametrize(("page", "name"), SAMPLES, ids=[f"{m.__name__}-{n}" for m, n in SAMPLES])
def test_a_sample(page, name, device):
    assert page.main(["--device", device, name]) == 0


def test_the_import_alone_makes_a_program_of_theano():
    import numpy as np

    import symdnn as theano
    import symdnn.tensor as T

    x, w = T.tensor4("x"), theano.shared(np.ones((2, 3, 3, 3), theano.config.floatX))
    y = T.signal.pool.pool_2d(T.nnet.relu(T.nnet.conv2d(x, w)), (2, 2), ignore_border=True)
    f = theano.function([x], [y, theano.grad(y.sum(), w)])
    pooled, slope = f(np.ones((1, 3, 6, 6), theano.config.floatX))
    assert pooled.shape == (1, 2, 2, 2)
    assert slope.shape == (2, 3, 3, 3)

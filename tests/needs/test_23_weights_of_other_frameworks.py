"""Weights and results that agree with other frameworks: flip, layout, channels last.

Loading a torch or Keras-Theano checkpoint reproduces its outputs to 1e-5; the flip convention is an
explicit argument, stored in the file, and never guessed.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.signal import convolve, correlate

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import FileFormatError, InputError
from symdnn.io import load_parameters, save_parameters
from tests.nn.formats import test_flax, test_keras, test_torch
from tests.nn.weights_checks import output
from tests.seeded import new_rng


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def by_scipy(x, kernel, bias, flip):
    """A convolution with channels first: SciPy's ``convolve`` is the true one."""
    each = convolve if flip else correlate
    sums = [[sum(each(i, k, "valid") for i, k in zip(image, ks)) for ks in kernel] for image in x]
    return np.array(sums) + bias[:, None, None]


@pytest.fixture
def drawn():
    rng = new_rng()
    return {
        "x": rng.standard_normal((2, 3, 6, 7)).astype("float32"),
        "kernel": rng.standard_normal((4, 3, 3, 2)).astype("float32"),
        "bias": rng.standard_normal(4).astype("float32"),
    }


def convolution():
    return nn.SpatialConvolution(3, 4, 2, 3)


def test_a_torch_checkpoint(tmp_path):
    """Written by ``torch.save``, with what PyTorch computed: ``tests/nn/make_torch_weights.py``."""
    test_torch.test_a_pytorch_net_computes_the_same("pt", tmp_path)


@pytest.mark.parametrize("flip", [True, False])
def test_a_keras_checkpoint_of_theano_and_of_tensorflow(drawn, flip):
    weights = {
        "conv2d/kernel": drawn["kernel"].transpose(2, 3, 1, 0), "conv2d/bias": drawn["bias"],
    }  # fmt: skip
    net = convolution()
    nn.load_keras(net, weights, filter_flip=flip)
    close(output(net, drawn["x"]), by_scipy(drawn["x"], drawn["kernel"], drawn["bias"], flip))


def test_a_whole_keras_net_and_a_whole_flax_net():
    weights, x, wanted = test_keras.keras_net()
    net = test_keras.our_net()
    nn.load_keras(net, weights, flattened={"dense": (4, 6, 4)}, filter_flip=False)
    close(output(net, np.ascontiguousarray(test_keras.first(x))), wanted)
    test_flax.test_a_convolutional_net_computes_the_same("tree", None)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("flip", [True, False])
def test_the_file_says_it(drawn, tmp_path, suffix, flip):
    wanted = by_scipy(drawn["x"], drawn["kernel"], drawn["bias"], flip)
    lasagne, keras = tmp_path / f"lasagne{suffix}", tmp_path / f"keras{suffix}"
    arrays = {"arr_0": drawn["kernel"], "arr_1": drawn["bias"]}
    save_parameters(lasagne, arrays, filter_flip={"arr_0": flip})
    kernel = np.ascontiguousarray(drawn["kernel"].transpose(2, 3, 1, 0))
    arrays = {"conv2d/kernel": kernel, "conv2d/bias": drawn["bias"]}
    save_parameters(keras, arrays, filter_flip={"conv2d/kernel": flip})
    for load, path in ((nn.load_theano, lasagne), (nn.load_keras, keras)):
        net = convolution()
        load(net, path)
        close(output(net, drawn["x"]), wanted)
        before = net.state_dict()
        load(net, path, filter_flip=flip)
        with pytest.raises(InputError, match=f"says filter_flip={flip} .*={not flip}"):
            load(net, path, filter_flip=not flip)
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(value, before[name])
    assert load_parameters(lasagne).filter_flip == {"arr_0": flip}


def test_it_is_never_guessed(drawn, tmp_path):
    for load, source in (
        (nn.load_theano, [drawn["kernel"], drawn["bias"]]),
        (
            nn.load_keras,
            {"c/kernel": drawn["kernel"].transpose(2, 3, 1, 0), "c/bias": drawn["bias"]},
        ),
    ):
        with pytest.raises(InputError, match="not guessed.*filter_flip=True.*False"):
            load(convolution(), source)
    save_parameters(tmp_path / "a.npz", {"w": drawn["kernel"]})
    with pytest.raises(InputError, match="does not say which arrays are filters"):
        load_parameters(tmp_path / "a.npz", filter_flip=True)
    with pytest.raises(InputError, match="filter_flip names 'b', which is of 1 dimension"):
        save_parameters(tmp_path / "a.npz", {"b": drawn["bias"]}, filter_flip={"b": True})
    with pytest.raises(InputError, match="filter_flip of 'w' is 'yes'"):
        save_parameters(tmp_path / "a.npz", {"w": drawn["kernel"]}, filter_flip={"w": "yes"})


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_parameters_come_in_the_convention_that_is_asked_for(drawn, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    w = symdnn.shared(drawn["kernel"], name="w")
    save_parameters(path, {"w": w, "b": drawn["bias"]}, filter_flip={"w": True})
    x = T.tensor4("x")
    wanted = symdnn.function([x], T.nnet.conv2d(x, w, filter_flip=True))(drawn["x"])
    found = load_parameters(path, into={"w": w}, filter_flip=False)
    assert found.filter_flip == {"w": False}
    close(symdnn.function([x], T.nnet.conv2d(x, w, filter_flip=False))(drawn["x"]), wanted)
    np.testing.assert_array_equal(load_parameters(path)["w"], drawn["kernel"])
    np.testing.assert_array_equal(load_parameters(path, filter_flip=True)["w"], drawn["kernel"])
    np.testing.assert_array_equal(found["b"], drawn["bias"])


def test_programs_without_true_convolutions_refuse_their_filters(drawn, tmp_path):
    path = tmp_path / "a.npz"
    save_parameters(path, {"weight": drawn["kernel"]}, filter_flip={"weight": True})
    net = nn.SpatialConvolution(3, 4, 2, 3, bias=False)
    for load in (nn.load_torch, nn.load_torch7, nn.load_flax):
        with pytest.raises(InputError, match="filter_flip=True of weight"):
            load(net, path)
    nn.load_torch(net, load_parameters(path, filter_flip=False))
    wanted = by_scipy(drawn["x"], drawn["kernel"], np.zeros(4), True)
    close(output(net, drawn["x"]), wanted)


def test_what_a_header_cannot_say_is_refused(drawn, tmp_path):
    path = tmp_path / "a.npz"
    for said in ({"b": True}, {"w": 1}, {"x": True}, [1], 3):
        save_parameters(path, {"w": drawn["kernel"], "b": drawn["bias"]})
        with np.load(path) as archive:
            arrays = dict(archive)
        header = {**json.loads(bytes(arrays.pop("__symdnn__"))), "filter_flip": said}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez(path, __symdnn__=text, **arrays)
        for read in (load_parameters, nn.read_weights):
            with pytest.raises(FileFormatError, match="header is damaged"):
                read(path)

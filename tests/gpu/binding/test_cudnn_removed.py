"""What cuDNN 8 removed: the choice of an algorithm, on a described list of algorithms."""

import ctypes

import pytest

from symdnn.gpu import libcudnn
from symdnn.gpu.binding import libcudnn_table as table
from symdnn.gpu.binding.cudnn_types import Size

FORMS = {
    "Forward": (libcudnn.cudnnConvolutionFwdPreference, "CUDNN_CONVOLUTION_FWD"),
    "BackwardData": (libcudnn.cudnnConvolutionBwdDataPreference, "CUDNN_CONVOLUTION_BWD_DATA"),
    "BackwardFilter": (
        libcudnn.cudnnConvolutionBwdFilterPreference,
        "CUDNN_CONVOLUTION_BWD_FILTER",
    ),
}
PERFS = {
    "Forward": libcudnn.cudnnConvolutionFwdAlgoPerf_t,
    "BackwardData": libcudnn.cudnnConvolutionBwdDataAlgoPerf_t,
    "BackwardFilter": libcudnn.cudnnConvolutionBwdFilterAlgoPerf_t,
}
OPERANDS = ("handle", "x", "w", "conv", "y")


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """A cuDNN that offers three algorithms, fastest first: 3 (refused), 1 (100 bytes), 0 (none)."""
    name = request.param
    sizes = {1: 100, 0: 0}

    def described(number, status=0):
        # What the list says of memory is for another math type than the descriptor's.
        found = PERFS[name](memory=7, time=0.1)
        found.algo, found.status = number, status
        return found

    def expected(*args):
        assert args == (*OPERANDS, 8)
        return [described(2, 3000), described(3), described(1), described(0)]

    def workspace(*args):
        assert args[:-1] == OPERANDS
        if args[-1] not in sizes:
            raise libcudnn.CudnnNotSupported("f", 3000, "CUDNN_STATUS_NOT_SUPPORTED")
        return Size(sizes[args[-1]])

    expected.__name__ = f"cudnnGetConvolution{name}Algorithm_v7"
    monkeypatch.setattr(table, expected.__name__, expected)
    monkeypatch.setattr(table, f"cudnnGetConvolution{name}AlgorithmMaxCount", lambda handle: 8)
    monkeypatch.setattr(table, f"cudnnGetConvolution{name}WorkspaceSize", workspace)
    return name


def ask(form, preference, *limit):
    preferences, prefix = FORMS[form]
    function = getattr(libcudnn, f"cudnnGetConvolution{form}Algorithm")
    return function(*OPERANDS, preferences[f"{prefix}_{preference}"], *limit)


def test_the_fastest_that_is_not_refused(form):
    found = ask(form, "PREFER_FASTEST", 0)
    assert found == 1
    assert type(found) is type(PERFS[form]().algo)
    assert f"{found.value:d}" == "1"


def test_without_workspace(form):
    assert ask(form, "NO_WORKSPACE") == 0


@pytest.mark.parametrize(("limit", "algorithm"), [(99, 0), (100, 1), (ctypes.c_size_t(100), 1)])
def test_within_a_limit(form, limit, algorithm):
    assert ask(form, "SPECIFY_WORKSPACE_LIMIT", limit) == algorithm


def test_nothing_fits(form, monkeypatch):
    size = f"cudnnGetConvolution{form}WorkspaceSize"
    monkeypatch.setattr(table, size, lambda *_: Size(4096))
    with pytest.raises(libcudnn.CudnnNotSupported) as caught:
        ask(form, "SPECIFY_WORKSPACE_LIMIT", 50)
    assert "at most 50 bytes of workspace" in str(caught.value)
    assert "4096 bytes" in str(caught.value)
    assert caught.value.function == f"cudnnGetConvolution{form}Algorithm"


def test_a_preference_of_another_function_is_refused(form):
    other = "BackwardData" if form == "Forward" else "Forward"
    preferences, prefix = FORMS[other]
    function = getattr(libcudnn, f"cudnnGetConvolution{form}Algorithm")
    with pytest.raises(TypeError, match="wanted a cudnnConvolution"):
        function(*OPERANDS, preferences[f"{prefix}_NO_WORKSPACE"])
    by_name = f"{FORMS[form][1]}_NO_WORKSPACE"
    assert function(*OPERANDS, by_name) == 0
    assert getattr(libcudnn, by_name) == 0

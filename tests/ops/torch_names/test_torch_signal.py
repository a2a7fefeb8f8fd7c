"""Windows and short-time Fourier transforms against forms of them in NumPy and SciPy."""

import itertools

import numpy as np
import pytest
from scipy.signal import get_window

import symdnn
import symdnn.tensor as T
from symdnn.errors import DtypeError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from tests.fuzz import oracle_names as O

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 50))
Z = X + 1j * RNG.standard_normal((2, 50))
W = RNG.uniform(0.3, 1, 16)


def value(v):
    return evaluate([v], {})[0]


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", ("kaiser", 12.0)])
def test_windows_are_scipys(name):
    ours = getattr(T, f"{name if isinstance(name, str) else name[0]}_window")
    for n, periodic in itertools.product((1, 2, 5, 8), (True, False)):
        found = value(ours(n, periodic, dtype="float64"))
        np.testing.assert_allclose(found, get_window(name, n, periodic), atol=1e-14)
    assert value(ours(0)).shape == (0,)
    assert [ours(3, dtype=d).type.dtype for d in (None, "float16")] == ["float32", "float16"]


def test_windows_of_other_shapes():
    at = 2 * np.pi * np.arange(6) / 6
    found = value(T.hamming_window(6, True, 0.6, 0.3, dtype="float64"))
    np.testing.assert_allclose(found, 0.6 - 0.3 * np.cos(at), atol=1e-14)
    found = value(T.kaiser_window(6, False, 3.0, dtype="float64"))
    np.testing.assert_allclose(found, np.kaiser(6, 3.0), atol=1e-14)
    assert T.signal.hann_window is T.hann_window


CASES = [
    (n, hop, win, center, normalized, whole)
    for n, hop, win, center, normalized, whole in itertools.product(
        (16, 15), (None, 5), (None, 12), (True, False), (True, False), (True, False)
    )
]


@pytest.mark.parametrize("of_complex", [False, True])
def test_transforms_there_and_back_are_pytorchs(of_complex):
    data = Z if of_complex else X
    for n, hop, win, center, normalized, whole in CASES:
        onesided = None if of_complex else not whole
        words = (n, hop, win, W[: win or n], center)
        want = O.stft(data, *words, "reflect", normalized, onesided)
        found = value(T.stft(data, *words, "reflect", normalized, onesided))
        np.testing.assert_allclose(found, want, atol=1e-12, err_msg=str(words))
        for length in (None, 40, 60):
            rest = (normalized, onesided, length, of_complex)
            want_back = O.istft(want, *words, *rest)
            back = value(T.istft(want, *words, *rest))
            np.testing.assert_allclose(back, want_back, atol=1e-11, err_msg=str(words))
        if center:
            np.testing.assert_allclose(want_back[:, :45], data[:, :45], atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "numpys"), [("replicate", "edge"), ("circular", "wrap"), ("constant", "constant")]
)
def test_edges_are_padded_by_pytorchs_words(mode, numpys):
    found = value(T.stft(X, 16, pad_mode=mode))
    np.testing.assert_allclose(found, O.stft(X, 16, pad_mode=numpys), atol=1e-12)


def test_compiled_with_open_sizes():
    x, n = T.fmatrix("x"), T.lscalar("n")
    window = T.hann_window(16)
    spectra = T.stft(x, 16, window=window, return_complex=False)
    f = symdnn.function([x, n], [spectra, T.istft(spectra, 16, window=window, length=n)])
    hann = get_window("hann", 16).astype("float32")
    for size in (20, 50):
        data = X[:, :size].astype("float32")
        parts, back = f(data, size + 3)
        want = O.stft(data, 16, window=hann)
        assert parts.dtype == back.dtype == "float32"
        np.testing.assert_allclose(parts[..., 0] + 1j * parts[..., 1], want, atol=1e-5)
        np.testing.assert_allclose(back, O.istft(want, 16, window=hann, length=size + 3), atol=1e-5)


def test_gradients():
    def energy(x, w):
        return (abs(T.stft(x, 8, 3, window=w)) ** 2)[:, ::2].sum()

    T.verify_grad(energy, [X[0, :20], W[:8]], rng=np.random.default_rng(1))

    def again(parts, w):
        return (T.istft(parts, 8, 3, window=w) ** 3).sum()

    T.verify_grad(again, [RNG.standard_normal((5, 4, 2)), W[:8]], rng=np.random.default_rng(1))


def test_nothing_is_where_windows_are_zero():
    """The first element of frames that are not padded has the first weight alone."""
    hann = np.hanning(9)[:-1]
    back = value(T.istft(value(T.stft(X, 8, 2, window=hann, center=False)), 8, 2, window=hann,
                         center=False))  # fmt: skip
    np.testing.assert_allclose(back[:, 1:48], X[:, 1:48], atol=1e-12)
    assert (back[:, 0] == 0).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(OptionError, match="window_length"):
        T.hann_window(-1)
    with pytest.raises(DtypeError, match="wanted a float"):
        T.hann_window(3, dtype="int32")
    with pytest.raises(TypeMismatch, match="batch, length"):
        T.stft(T.dtensor3(), 4)
    with pytest.raises(OptionError, match="a window of 1 to n_fft"):
        T.stft(X, 4, win_length=5)
    with pytest.raises(ShapeMismatch, match="win_length"):
        T.stft(X, 8, window=W[:5])
    with pytest.raises(TypeMismatch, match="vector of floats"):
        T.stft(X, 8, window=np.ones(8, "int64"))
    with pytest.raises(ShapeMismatch, match="n_fft"):
        T.stft(X, 64, center=False)
    with pytest.raises(OptionError, match="complex"):
        T.stft(Z, 8, onesided=True)
    with pytest.raises(TypeMismatch, match="frequencies, frames"):
        T.istft(X, 8)
    with pytest.raises(ShapeMismatch, match="5 frequencies"):
        T.istft(Z, 8)
    with pytest.raises(OptionError, match="onesided=False"):
        T.istft(value(T.stft(X, 8)), 8, return_complex=True)

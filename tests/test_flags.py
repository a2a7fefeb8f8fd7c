"""Flags that change printed texts and reports: each one does what its help says."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import function
from symdnn.compile.execute import targets
from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.flags import FLAGS
from symdnn.graph.target import Target

#: Read by the CPU target, or the CUDA target, of which not all is there yet.
OF_TARGETS = {"onednn.conv.algo"}


def test_optimizer_verbose_prints_each_rewrite(capsys: pytest.CaptureFixture[str]) -> None:
    x = T.dvector("x")
    with config.change_flags(optimizer_verbose=True):
        function([x], T.log(1 + x))
    assert re.search(r"^stabilize: \w+: Log\(.*\) -> Log1p\(x\)$", capsys.readouterr().err, re.M)
    function([x], T.log(1 + x))
    assert capsys.readouterr().err == ""


def test_profile_optimizer_adds_the_slowest_rewrites() -> None:
    x = T.fvector("x")
    f = function([x], T.log(1 + x), profile=True)
    f([1])
    assert "rewrite" not in f.profile.text()
    with config.change_flags(profile_optimizer=True):
        assert re.search(r"rewrite +fired +tried +ms", f.profile.text())
        assert re.search(r"phase canonicalize +[\d.]+", f.profile.text())


def test_print_test_value() -> None:
    x = T.fvector("x")
    x.tag.test_value = np.ones(2, "float32")
    assert repr(x) == "x"
    with config.change_flags(print_test_value=True):
        assert repr(x) == "x\narray([1., 1.], dtype=float32)"
        assert repr(T.fvector("y")) == "y"


def test_warn_float64() -> None:
    with config.change_flags(warn_float64="warn"):
        with pytest.warns(UserWarning, match=r"(?s)the variable d.*test_flags.py"):
            d = T.dvector("d")
        with pytest.warns(UserWarning, match=r"(?s)Mul: wanted no float64.*float32.*int64"):
            T.fvector("f") * T.lscalar("n")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            T.exp(d)  # the warning about float64 d has been given
            T.exp(T.fvector("f"))
        with pytest.warns(UserWarning, match=r"(?s)the shared variable w: .*test_flags.py"):
            symdnn.shared(np.zeros(2), "w")
        with pytest.warns(UserWarning, match="a shared variable: wanted no float64"):
            symdnn.shared(0.5)  # a Python float
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            symdnn.shared(np.zeros(2, "float32"))
    with config.change_flags(warn_float64="raise"), pytest.raises(TypeMismatch, match="shared"):
        symdnn.shared([1.0])
    with config.change_flags(warn_float64="raise"), pytest.raises(TypeMismatch, match="float64"):
        T.fvector("f") * T.lscalar("n")


def test_the_device_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target("cuda", 77, (9, 0), cudnn=(9, 19))
    targets.print_device_once(target)
    targets.print_device_once(target)
    assert capsys.readouterr().err == "symdnn uses cuda77:sm_90, cuDNN 9.19\n"


def test_seed_of_verify_grad() -> None:
    drawn = []

    def weigh(x: T.Variable) -> T.Variable:
        return x * 2

    class Spy:
        def uniform(self, low: float, high: float, size: tuple[int, ...]) -> np.ndarray:
            drawn.append(size)
            return np.ones(size)

        def choice(self, of: list[int], size: tuple[int, ...]) -> np.ndarray:
            return np.ones(size)

    symdnn.verify_grad(weigh, [np.ones(3)], rng=Spy(), n_tests=1)
    assert drawn == [(3,)]


def test_every_flag_is_read_somewhere() -> None:
    """Every flag is read somewhere."""
    folder = Path(symdnn.__file__).parent
    code = "\n".join(p.read_text() for p in folder.rglob("*.py") if p.name != "flags.py")
    silent = {f.name for f in FLAGS.values() if "Accepted" in f.help or f.sets or f.presets}
    for name in set(FLAGS) - silent - OF_TARGETS:
        last = name.rpartition(".")[2]
        start = last.partition("_")[0]  # f"algo_{direction}"
        ways = rf"config(\.\w+)*\.{re.escape(name)}\b|\"{last}\"|\"{name}\"|f\"{start}_{{"
        assert re.search(ways, code), name


def test_flags_of_algorithms_say_that_there_are_other_ways_to_choose():
    said = FLAGS["dnn.conv.algo_fwd"].allowed()
    assert "kept_once" in said
    assert "WAY_once" in said
    assert "WAY" not in FLAGS["dnn.rnn.algo"].allowed()

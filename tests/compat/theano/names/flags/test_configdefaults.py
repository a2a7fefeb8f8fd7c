"""``theano.configdefaults`` and ``configparser``: what flags accept, and their defaults."""

from __future__ import annotations

import importlib
import os

import pytest

from symdnn.compat.theano.settings import TheanoConfig


@pytest.fixture
def c(theano):
    return importlib.import_module("theano.configdefaults")


def test_words_that_flags_accept(c, theano):
    assert [c.floatX_convert(s) for s in ("16", "32", "64", "float32")] == [
        "float16", "float32", "float64", "float32",
    ]  # fmt: skip
    assert [c.filter_vm_lazy(v) for v in ("True", True, "False", False, "None", None)] == [
        True, True, False, False, None, None,
    ]  # fmt: skip
    mode = theano.Mode(optimizer="fast_compile")
    assert (c.filter_mode("FAST_RUN"), c.filter_mode(mode)) == ("FAST_RUN", mode)
    good = [3, "3", "random"], [None, "no", [1]]
    assert [c.good_seed_param(s) for part in good for s in part] == [True] * 3 + [False] * 3
    valid = c.is_valid_check_preallocated_output_param
    assert [valid(p) for p in ("", "ALL", "initial:strided", "initial:all", None)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    for wrong in (lambda: c.filter_vm_lazy(1.5), lambda: c.filter_mode("fast")):
        with pytest.raises(ValueError, match="wanted"):
            wrong()


def test_flags_that_were_removed(c):
    assert c.safe_no_dnn_workmem("") is c.safe_no_dnn_algo_bwd("") is True
    assert c.safe_no_dnn_workmem_bwd(None) is True
    assert c.deprecated_gpuarray_sync(False) is False
    for refuses in (c.safe_no_dnn_workmem, c.safe_no_dnn_workmem_bwd, c.safe_no_dnn_algo_bwd,
                    c.deprecated_gpuarray_sync):  # fmt: skip
        with pytest.raises(RuntimeError, match="use "):
            refuses("small")


def test_versions_and_platforms(c, theano):
    assert c.split_version("0.10.1") == (0, 10, 1)
    before = "warn.ignore_bug_before"
    for told, warns in (("None", True), ("all", False), ("0.6", False), ("0.4.1", True)):
        with theano.change_flags({before: told}):
            assert c.warn_default("0.5") is warns
    kept = "Linux-2.6-el6.x86_64-x86_64-with-redhat"
    for build in ("504", "431.29.2"):
        release = f"2.6.32-{build}.el6.x86_64"
        assert c.short_platform(release, f"Linux-{release}-x86_64-with-redhat") == kept
    assert c.short_platform("6.1", "Linux-6.1") == "Linux-6.1"
    assert set(c.compiledir_format_keys.split(", ")) == set(c.compiledir_format_dict)
    assert c.default_compiledirname() == c.default_compiledirname().replace(" ", "_")
    assert (c.gcc_version_str, theano.config.cxx) == ("GCC_NOT_FOUND", "")


def test_folders(c, theano, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    for name in ("CUDA_ROOT", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(["/no/such", str(tmp_path / "bin")]))
    assert c.get_cuda_root() == str(tmp_path)
    monkeypatch.setenv("CUDA_ROOT", "/named")
    assert c.get_cuda_root() == "/named"
    assert (c.default_cuda_include(), c.default_dnn_base_path()) == ("", "")
    assert (c.default_dnn_inc_path(), c.default_dnn_lib_path(), c.default_dnn_bin_path()) == (
        "",
    ) * 3
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cudnn.h").touch()
    root = str(tmp_path)
    with theano.change_flags({"cuda.root": root, "dnn.base_path": root, "dnn.library_path": "/l"}):
        assert c.default_cuda_include() == c.default_dnn_inc_path() == f"{root}/include"
        assert (c.default_dnn_base_path(), c.default_dnn_lib_path()) == (root, f"{root}/lib64")
        assert c.default_dnn_bin_path() == "/l"
    monkeypatch.setenv("HOME", root)
    assert (c.get_home_dir(), c.filter_base_compiledir("~/x")) == (root, f"{root}/x")
    made = c.filter_compiledir("~/a/b")
    assert made == os.path.realpath(f"{root}/a/b")
    assert os.path.isdir(made)
    with pytest.raises(ValueError, match="cannot be made"):
        c.filter_compiledir(f"{root}/bin/nvcc/c")
    assert c.default_compiledir() == theano.config.compiledir
    assert c.default_base_compiledir


@pytest.mark.parametrize("name", ["default_blas_ldflags", "try_blas_flag", "check_mkl_openmp"])
def test_what_is_about_a_compiler_says_so(c, name):
    with pytest.raises(AttributeError, match="does not offer it; nothing is compiled"):
        getattr(c, name)


def test_a_flag_of_the_program_takes_what_its_kind_takes(c, theano):
    from theano.configparser import (
        AddConfigVar,
        BoolParam,
        ConfigParam,
        EnumStr,
        FloatParam,
        IntParam,
        StrParam,
        TypedParam,
    )

    even = IntParam(2, lambda n: n % 2 == 0)
    for name, param, value, found, wrong in (
        ("own.int", even, "4", 4, "5"),
        ("own.float", FloatParam(0.5), "1e3", 1000.0, "much"),
        ("own.bool", BoolParam(False), "true", True, "perhaps"),
        ("own.text", StrParam("", lambda s: s != "no"), 3, "3", "no"),
        ("own.word", EnumStr("float64", "float32", convert=c.floatX_convert), "32", "float32", "x"),
        ("own.pair", TypedParam("1:2", lambda s: s.split(":")), "3", ["3"], None),
        ("own.device", c.DeviceParam("cpu"), "cuda1", "cuda1", "gpu"),
        ("own.contexts", c.ContextsParam(), "a->cuda0;b->cuda1", "a->cuda0;b->cuda1", "cpu->cuda0"),
        ("own.plain", ConfigParam(1, lambda v: v * 2), 4, 8, None),
    ):
        AddConfigVar(name, "a flag", param, in_c_key=False)
        section = theano.config.own
        short = name.partition(".")[2]
        setattr(section, short, value)
        assert getattr(section, short) == found
        if wrong is not None:
            with pytest.raises(ValueError, match="own|wanted|could not|cannot"):
                setattr(section, short, wrong)
            assert getattr(section, short) == found
        assert "own" in str(param)
    assert theano.config.own.plain == 8
    with pytest.raises(ValueError, match="words"):
        EnumStr("a", 1)


def test_defaults_that_are_functions_are_called_when_read(theano):
    from theano.configparser import AddConfigVar, IntParam

    calls = []
    AddConfigVar("late.value", "", IntParam(lambda: calls.append(1) or "7"))
    AddConfigVar("late.other", "", IntParam(lambda: 1 / 0))
    assert calls == []
    theano.config.late.other = "3"
    assert (theano.config.late.value, theano.config.late.value, theano.config.late.other) == (
        7,
        7,
        3,
    )
    assert calls == [1]


def test_flags_of_the_environment_wait_for_the_program_that_adds_them(theano):
    own = TheanoConfig()
    with pytest.warns(UserWarning, match="no flag 'mine.text'"):
        own.start({"THEANO_FLAGS": "mine.text=1e3", "HOME": "/none"})
    assert own._unclaimed == {"mine.text": "1e3"}
    own.add("mine.text", "", str)
    assert (own.read("mine.text"), own._unclaimed) == ("1e3", {})

"""``theano.config``: symdnn's flags, Theano's that mean nothing here, a program's own."""

from __future__ import annotations

import pytest

from symdnn.compat.theano import settings
from symdnn.config import config as flags
from symdnn.errors import ConfigError
from tests.compat.theano.in_process import run


def test_one_flag_by_both_names(theano):
    with flags.change_flags(floatX="float64"):
        theano.config.floatX = "float32"
        assert flags.floatX == "float32" == theano.config.floatX
        with pytest.raises(ValueError, match="float33"):
            theano.config.floatX = "float33"
    with pytest.raises(AttributeError, match="no flag 'no_such'"):
        theano.config.no_such = 1
    with pytest.raises(AttributeError, match="no flag 'no_such'"):
        getattr(theano.config, "no_such")  # noqa: B009


def test_flags_without_meaning_keep_what_is_assigned(theano, recwarn):
    assert (theano.config.openmp, theano.config.linker, theano.config.allow_gc) == (
        False, "cvm", True,
    )  # fmt: skip
    theano.config.gcc.cxxflags = "-O1"
    theano.config.allow_gc = False
    theano.config.warn.subtensor_merge_bug = False
    assert (theano.config.gcc.cxxflags, theano.config.allow_gc) == ("-O1", False)
    assert not recwarn.list
    assert "subtensor_merge_bug" in dir(theano.config.warn)


def test_changes_in_a_block_or_a_function(theano):
    words = {"floatX": "float32", "dnn.conv.algo_fwd": "none", "allow_gc": False}

    @theano.change_flags(list(words.items()))
    def inside():
        return theano.config.floatX, theano.config.dnn.conv.algo_fwd, theano.config.allow_gc

    assert inside() == ("float32", "none", False)
    assert theano.config.floatX == "float64"
    assert theano.config.allow_gc
    with theano.configparser.change_flags({"compute_test_value": "raise"}):
        assert flags.compute_test_value == "raise"


def test_a_block_that_is_left_twice(theano):
    block = theano.change_flags(floatX="float32")
    with block:
        assert theano.config.floatX == "float32"
    block.__exit__(None, None, None)
    assert theano.config.floatX == "float64"


def test_names_as_theano_pymc_spells_them(theano):
    theano.config.gcc__cxxflags = "-O2"
    assert theano.config.gcc.cxxflags == "-O2" == theano.config.gcc__cxxflags
    with theano.change_flags(dnn__conv__algo_fwd="none"):
        assert theano.config.dnn.conv.algo_fwd == "none"
    with pytest.raises(AttributeError, match="no flag 'no.such'"):
        getattr(theano.config, "no__such")  # noqa: B009


def test_flags_of_the_program(theano):
    from theano.configparser import AddConfigVar, EnumStr, IntParam

    AddConfigVar("my.depth", "how deep", IntParam(3), in_c_key=False)
    AddConfigVar("my.mode", "which", EnumStr("fast", "slow"))
    assert (theano.config.my.depth, theano.config.my.mode) == (3, "fast")
    theano.config.my.depth = 4
    assert theano.config.my.depth == 4


def test_devices_by_theanos_words(theano):
    with flags.change_flags(device="cpu"):
        theano.gpuarray.use("gpu1")
        assert (theano.config.device, flags.device) == ("gpu1", "cuda1")
        flags.device = "cpu"
        assert theano.config.device == "cpu"
        with pytest.raises(ConfigError, match="NVIDIA"):
            theano.gpuarray.use("opencl0:0")
        with pytest.raises(ConfigError, match="THEANO_FLAGS"):  # programs catch what Theano raises
            theano.config.device = "gpu"
        theano.config.device = "cpu"


def test_the_config_as_text_has_every_flag(theano, capsys):
    print(theano.config)
    found = capsys.readouterr().out
    assert "floatX\n    Value:  float64\n" in found
    assert all(f"{name}\n    Value:" in found for name in theano.config.names())


def test_a_text_of_flags():
    text = "a=b,gcc.cxxflags='-a, -b',c.d=1"
    found = list(settings._of_text(text))
    assert found == [("a", "b"), ("gcc.cxxflags", "-a, -b"), ("c.d", "1")]
    with pytest.raises(ConfigError, match="has no '='"):
        list(settings._of_text("floatX"))


@pytest.mark.parametrize("name", ["base_compiledir", "compiledir"])
def test_the_folder_of_compiled_code(name, tmp_path):
    rest = "device=cpu,enable_initial_driver_test=False,cublas.lib=cublas"
    environment = {"THEANO_FLAGS": f"{name}={tmp_path}/code,{rest}"}
    found = run(
        """
        from symdnn.config import config
        print(theano.config.base_compiledir, theano.config.compiledir, config.base_compiledir)
        try:
            theano.config.base_compiledir = "/elsewhere"
        except ValueError as error:
            print("after import" in str(error))
        """,
        environment=environment,
    )
    assert found.split() == [f"{tmp_path}/code"] * 3 + ["True"]


def test_flags_of_all_versions_can_be_read(theano):
    flags_before = "pycuda.init cuda.enabled cublas.lib ProfileMode.n_ops_to_print home"
    for name in flags_before.split():
        value = theano.config
        for part in name.split("."):
            value = getattr(value, part)
        assert isinstance(value, bool | int | str), name

"""All module paths, and what is said of names that are not offered."""

from __future__ import annotations

import importlib

import pytest

from symdnn.compat.theano import finder
from symdnn.compat.theano.absent import advice
from symdnn.compat.theano.paths import FUNCTIONS_FIRST, MODULES


def test_every_path_is_a_module_whose_names_can_be_read(theano):
    for path in MODULES:
        module = importlib.import_module(path)
        assert isinstance(module, finder.TheanoModule)
        for name in dir(module):
            if not name.startswith("_"):
                getattr(module, name)


def test_forms_of_import(theano):
    import theano.tensor as T
    from theano import config, function, shared, tensor  # noqa: F401
    from theano.sandbox.rng_mrg import MRG_RandomStreams  # noqa: F401
    from theano.tensor.nnet import conv  # noqa: F401
    from theano.tensor.nnet.conv import conv2d as old
    from theano.tensor.shared_randomstreams import RandomStreams
    from theano.tensor.signal import downsample

    assert T.shared_randomstreams.RandomStreams is RandomStreams
    assert callable(downsample.max_pool_2d)
    assert callable(old)
    assert callable(T.sort)
    assert T.nnet.nnet.softmax is T.nnet.softmax
    assert {"matrix", "nnet", "dot"} <= set(T.__all__)
    found = {}
    exec("from theano.tensor import *", found)
    assert found["tanh"] is T.tanh
    assert all(p in MODULES or p.rpartition(".")[0] in MODULES for p in FUNCTIONS_FIRST)


def test_what_is_not_offered_says_so(theano):
    import theano.tensor as T

    for module, name, said in (
        (theano.gof, "COp", "C compiler"),
        (theano.gof, "local_optimizer", "docs/rewrites.md"),
        (theano.gof, "PerformLinker", "linker= is ignored"),
        (T, "no_such_function", "Theano 1.0 may not have it"),
        (theano.typed_list, "TypedListType", "scan"),
    ):
        with pytest.raises(AttributeError, match=f"has no {name!r}.*{said}"):
            getattr(module, name)
        with pytest.raises(ImportError):
            exec(f"from {module.__name__} import {name}")
    with pytest.raises(ModuleNotFoundError, match="nearest module is theano.tensor.nnet"):
        importlib.import_module("theano.tensor.nnett")
    with pytest.raises(ModuleNotFoundError, match="not offer"):
        importlib.import_module("theano.nothing.here")
    with pytest.raises(AttributeError, match="docs/rewrites.md"):
        getattr(theano.compile.optdb, "register")  # noqa: B009


def test_parts_that_come_from_other_rooms_say_so_where_they_lack(theano):
    import theano.sparse

    assert isinstance(theano.sparse.SparseType, type)
    assert "symdnn.sparse" in advice("theano.sparse.no_such")
    assert "symdnn.tensor.linalg" in advice("theano.tensor.nlinalg.no_such")


def test_modules_pickle_by_name(theano):
    import pickle

    import theano.tensor as T

    assert pickle.loads(pickle.dumps(T)) is T

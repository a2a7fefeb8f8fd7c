"""A target is plain data: its libraries are a mapping, its keywords are those of always."""

import pickle
from dataclasses import replace

import pytest

from symdnn.errors import OptionError
from symdnn.graph.target import Libraries, Target

GPU = Target("cuda", compute_capability=(9, 0), cudnn=(9, 19))


def test_libraries_by_keyword_or_by_mapping():
    assert Target("cuda", 0, (9, 0), (9, 19)) == GPU
    assert Target("cuda", compute_capability=(9, 0), libraries={"cudnn": (9, 19)}) == GPU
    assert hash(GPU) == hash(replace(GPU))
    assert (GPU.cudnn, GPU.onednn) == ((9, 19), None)


def test_a_library_that_nobody_has_heard_of_needs_no_field():
    more = Target("cpu", onednn=(3, 2), kleidi=(1, 0))
    assert more.has("kleidi")
    assert dict(more.libraries) == {"kleidi": (1, 0), "onednn": (3, 2)}
    assert more != Target("cpu", onednn=(3, 2))


def test_replacing_one_fact_keeps_the_others():
    assert replace(GPU, threads=3).libraries == GPU.libraries
    assert not replace(GPU, cudnn=None).has("cudnn")
    assert replace(GPU, libraries=Libraries()).compute_capability == (9, 0)
    assert replace(GPU, onednn=(3, 2)).libraries == Libraries({"onednn": (3, 2), "cudnn": (9, 19)})


def test_it_is_pickled_and_parsed():
    assert pickle.loads(pickle.dumps(GPU)) == GPU
    assert Target.parse("cuda1:sm_90", cudnn=None) == Target("cuda", 1, (9, 0))
    with pytest.raises(OptionError, match="wanted 'cpu', 'cuda' or 'cuda:sm_90'"):
        Target.parse("tpu")
    with pytest.raises(OptionError, match=r"sm_70': CUDA 13 and cuDNN 9 need .* 7.5 \(sm_75\)"):
        Target.parse("cuda:sm_70")
    assert Target.parse("cuda:sm_75").compute_capability == (7, 5)

"""The binding of NCCL by ctypes: names and arguments of nccl4py, one way to find the library."""

import ctypes
import inspect
import re

import pytest

from symdnn.errors import DistributedError
from symdnn.gpu.binding import libnccl
from symdnn.gpu.nccl import communicator as nccl


class FakeLibrary:
    """Records calls; every function returns ``status``."""

    def __init__(self, status=0):
        self.status, self.calls = status, []

    def __getattr__(self, name):
        if name == "ncclGetErrorString":
            return lambda status: b"invalid argument"
        if name == "ncclGetLastError":
            return lambda comm: b"rank 3 of 2"

        def call(*given):
            self.calls.append((name, *given))
            return self.status

        return call


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    monkeypatch.setattr(libnccl, "library", lambda: fake)
    return fake


def test_functions_pass_their_arguments_in_the_order_of_the_header(library):
    libnccl.all_reduce(1, 2, 3, 7, 0, 9, 10)
    libnccl.reduce(1, 2, 3, 7, 0, 5, 9, 10)
    libnccl.broadcast(1, 2, 3, 7, 5, 9, 10)
    libnccl.send(1, 3, 7, 5, 9, 10)
    libnccl.comm_init_rank_scalable(2, 1, 1, bytearray(128), 0)
    counts = {name: len(types) for name, types in libnccl._SIGNATURES.items()}
    assert library.calls[:4] == [
        ("ncclAllReduce", 1, 2, 3, 7, 0, 9, 10), ("ncclReduce", 1, 2, 3, 7, 0, 5, 9, 10),
        ("ncclBroadcast", 1, 2, 3, 7, 5, 9, 10), ("ncclSend", 1, 3, 7, 5, 9, 10),
    ]  # fmt: skip
    assert all(len(given) == counts[name] for name, *given in library.calls)


def test_every_function_that_communicators_call_is_there():
    source = inspect.getsource(nccl)
    called = set(re.findall(r"\b_?nccl\.(\w+)\(", source))
    assert called >= {"all_reduce", "allto_all", "comm_abort", "group_end", "get_unique_id"}
    assert all(callable(getattr(libnccl, name)) for name in called)


def test_an_error_has_the_functions_name_and_nccls_words(library):
    library.status = 4
    with pytest.raises(DistributedError, match=r"ncclGroupStart: invalid argument \(4\): rank 3"):
        libnccl.group_start()


def test_without_nccl_every_place_tried_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("symdnn.detect._wheel_roots", lambda: [str(tmp_path)])
    monkeypatch.setattr("symdnn.detect._by_loader", lambda names: [])
    monkeypatch.setattr("symdnn.detect._mapped", lambda names: [])
    libnccl.library.cache_clear()
    with pytest.raises(DistributedError, match="nvidia/nccl/lib/libnccl.so.2"):
        libnccl.library()
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(b"no library")
    with pytest.raises(OSError, match="nvidia/nccl/lib"):  # it was found in the wheel's folder
        libnccl.library()


def test_the_real_library_where_there_is_one():
    """No GPU is needed for these two."""
    libnccl.library.cache_clear()
    try:
        libnccl.library()
    except DistributedError as error:
        pytest.skip(str(error).partition("\n")[0])
    assert libnccl.get_version() >= 20000
    ids = [bytes(libnccl.get_unique_id()) for _ in range(2)]
    assert [len(i) for i in ids] == [128, 128]
    assert ids[0] != ids[1]
    assert ctypes.sizeof(libnccl.UniqueId) == 128

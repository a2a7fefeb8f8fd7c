"""The functions of NCCL that collectives need, by ctypes, where nccl4py is not installed.

Names, arguments and errors are those of ``nccl.bindings.nccl`` (nccl4py), so that either serves;
types and numbers those of ``nccl.h`` (NCCL 2.28 to 2.30). The library is found as CUDA's others
are: in NVIDIA's wheel ``nvidia-nccl-cu13`` (PyTorch brings it, too) or where the loader looks.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from typing import Any

from symdnn.detect import NCCL, cuda_library_candidates, first_found
from symdnn.errors import DistributedError

#: ``NCCL_UNIQUE_ID_BYTES``, and the major version in the library's name.
_ID_BYTES, _MAJOR = 128, 2
_COUNT_TYPE = (c_size_t, c_int)  # count, ncclDataType_t
_TAIL = (c_void_p, c_void_p)  # ncclComm_t, cudaStream_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (c_void_p,),
    "ncclGetUniqueId": (c_void_p,),
    "ncclCommInitRankScalable": (c_void_p, c_int, c_int, c_int, c_void_p, c_void_p),
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, c_void_p),
    "ncclMemAlloc": (c_void_p, c_size_t),
    "ncclCommWindowRegister": (c_void_p, c_void_p, c_size_t, c_void_p, c_int),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (c_void_p, c_void_p, *_COUNT_TYPE, c_int, *_TAIL),
    "ncclReduce": (c_void_p, c_void_p, *_COUNT_TYPE, c_int, c_int, *_TAIL),
    "ncclReduceScatter": (c_void_p, c_void_p, *_COUNT_TYPE, c_int, *_TAIL),
    "ncclAllGather": (c_void_p, c_void_p, *_COUNT_TYPE, *_TAIL),
    "ncclBroadcast": (c_void_p, c_void_p, *_COUNT_TYPE, c_int, *_TAIL),
    "ncclAlltoAll": (c_void_p, c_void_p, *_COUNT_TYPE, *_TAIL),
    "ncclSend": (c_void_p, *_COUNT_TYPE, c_int, *_TAIL),
    "ncclRecv": (c_void_p, *_COUNT_TYPE, c_int, *_TAIL),
}


class NCCLError(DistributedError):
    """A function of NCCL failed; the message has its name, NCCL's words and its last warning."""


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``: 128 bytes, by which the ranks of a communicator find each other."""

    _fields_ = [("internal", ctypes.c_char * _ID_BYTES)]


@cache
def library() -> ctypes.CDLL:
    """The library; raises :class:`~symdnn.errors.DistributedError` with every place tried."""
    tried = cuda_library_candidates(NCCL, majors=(_MAJOR,))
    found = first_found(tried)
    if found is None:
        places = "\n".join(f"  {c.path} ({c.source}): {c.state}" for c in tried)
        raise DistributedError(f"NCCL was not found. Tried:\n{places}")
    cdll = ctypes.CDLL(found.path)
    for name, types in _SIGNATURES.items():
        function = getattr(cdll, name, None)
        if function is not None:  # an older NCCL: get_version says which
            function.argtypes, function.restype = types, c_int
    cdll.ncclGetErrorString.argtypes, cdll.ncclGetErrorString.restype = (c_int,), c_char_p
    cdll.ncclGetLastError.argtypes, cdll.ncclGetLastError.restype = (c_void_p,), c_char_p
    return cdll


def _call(name: str, *given: Any) -> None:
    status = getattr(library(), name)(*given)
    if status != 0:
        words = (library().ncclGetErrorString(status) or b"").decode(errors="replace")
        last = (library().ncclGetLastError(None) or b"").decode(errors="replace").strip()
        raise NCCLError(f"{name}: {words} ({status}){f': {last}' if last else ''}")


def get_version() -> int:
    """``ncclGetVersion``: 23007 for 2.30.7."""
    found = c_int()
    _call("ncclGetVersion", byref(found))
    return found.value


def get_unique_id() -> UniqueId:
    """``ncclGetUniqueId``; ``bytes`` of it are what other ranks need."""
    found = UniqueId()
    _call("ncclGetUniqueId", byref(found))
    return found


def comm_init_rank_scalable(
    nranks: int, myrank: int, n_id: int, comm_ids: bytearray, config: int
) -> int:
    """``ncclCommInitRankScalable`` on the current device; 0 for ``config`` means NCCL's own."""
    found = c_void_p()
    ids = (ctypes.c_char * len(comm_ids)).from_buffer(comm_ids)
    _call("ncclCommInitRankScalable", byref(found), nranks, myrank, n_id, ids, config or None)
    return int(found.value or 0)


def comm_destroy(comm: int) -> None:
    """``ncclCommDestroy``."""
    _call("ncclCommDestroy", comm)


def comm_abort(comm: int) -> None:
    """``ncclCommAbort``."""
    _call("ncclCommAbort", comm)


def mem_alloc(size: int) -> int:
    """``ncclMemAlloc`` on the current device; the address."""
    found = c_void_p()
    _call("ncclMemAlloc", byref(found), size)
    return int(found.value or 0)


def comm_window_register(comm: int, buff: int, size: int, win_flags: int) -> int:
    """``ncclCommWindowRegister``; 0 where NCCL has no windows."""
    found = c_void_p()
    _call("ncclCommWindowRegister", comm, buff, size, byref(found), win_flags)
    return int(found.value or 0)


def group_start() -> None:
    """``ncclGroupStart``."""
    _call("ncclGroupStart")


def group_end() -> None:
    """``ncclGroupEnd``."""
    _call("ncclGroupEnd")


def all_reduce(
    sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, comm: int, stream: int
) -> None:
    """``ncclAllReduce``."""
    _call("ncclAllReduce", sendbuff, recvbuff, count, datatype, op, comm, stream)


def reduce(
    sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, root: int, comm: int,
    stream: int,
) -> None:  # fmt: skip
    """``ncclReduce``."""
    _call("ncclReduce", sendbuff, recvbuff, count, datatype, op, root, comm, stream)


def reduce_scatter(
    sendbuff: int, recvbuff: int, recvcount: int, datatype: int, op: int, comm: int, stream: int
) -> None:
    """``ncclReduceScatter``."""
    _call("ncclReduceScatter", sendbuff, recvbuff, recvcount, datatype, op, comm, stream)


def all_gather(
    sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: int, stream: int
) -> None:
    """``ncclAllGather``."""
    _call("ncclAllGather", sendbuff, recvbuff, sendcount, datatype, comm, stream)


def broadcast(
    sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, comm: int, stream: int
) -> None:
    """``ncclBroadcast``."""
    _call("ncclBroadcast", sendbuff, recvbuff, count, datatype, root, comm, stream)


def allto_all(
    sendbuff: int, recvbuff: int, count: int, datatype: int, comm: int, stream: int
) -> None:
    """``ncclAlltoAll``; since NCCL 2.28."""
    _call("ncclAlltoAll", sendbuff, recvbuff, count, datatype, comm, stream)


def send(sendbuff: int, count: int, datatype: int, peer: int, comm: int, stream: int) -> None:
    """``ncclSend``."""
    _call("ncclSend", sendbuff, count, datatype, peer, comm, stream)


def recv(recvbuff: int, count: int, datatype: int, peer: int, comm: int, stream: int) -> None:
    """``ncclRecv``."""
    _call("ncclRecv", recvbuff, count, datatype, peer, comm, stream)

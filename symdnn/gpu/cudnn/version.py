"""cuDNN's version: the number, and in words for errors."""

from __future__ import annotations

from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn


def version_number() -> int:
    """``91900`` for cuDNN 9.19.0, the loaded one; raises :class:`CudnnError` without one."""
    return int(libcudnn.cudnnGetVersion())


def cudnn_version() -> str:
    """``cuDNN 9.19.0``, the loaded one; says so if none can be loaded."""
    try:
        number = version_number()
    except CudnnError as error:
        return f"no cuDNN: {str(error).splitlines()[0]}"
    return f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}"


def with_version(error: CudnnError) -> CudnnError:
    """The error, with cuDNN's version as a note unless it has one."""
    known = [str(error), *getattr(error, "__notes__", ())]
    version = cudnn_version()
    if not any(version in text for text in known):
        error.add_note(f"  {version}")
    return error

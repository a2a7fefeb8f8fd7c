"""Functions that cuDNN 8 removed and older programs call: an algorithm by preference."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from symdnn.gpu.binding import libcudnn_table as table
from symdnn.gpu.binding.cudnn_call import CudnnStatusError, Function
from symdnn.gpu.binding.cudnn_types import CudnnEnum

_NO_WORKSPACE, _FASTEST, _LIMIT = 0, 1, 2  # the same in all three enums


class cudnnConvolutionFwdPreference_t(CudnnEnum):
    """How ``cudnnGetConvolutionForwardAlgorithm`` chooses."""

    CUDNN_CONVOLUTION_FWD_NO_WORKSPACE = _NO_WORKSPACE
    CUDNN_CONVOLUTION_FWD_PREFER_FASTEST = _FASTEST
    CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT = _LIMIT


class cudnnConvolutionBwdDataPreference_t(CudnnEnum):
    """How ``cudnnGetConvolutionBackwardDataAlgorithm`` chooses."""

    CUDNN_CONVOLUTION_BWD_DATA_NO_WORKSPACE = _NO_WORKSPACE
    CUDNN_CONVOLUTION_BWD_DATA_PREFER_FASTEST = _FASTEST
    CUDNN_CONVOLUTION_BWD_DATA_SPECIFY_WORKSPACE_LIMIT = _LIMIT


class cudnnConvolutionBwdFilterPreference_t(CudnnEnum):
    """How ``cudnnGetConvolutionBackwardFilterAlgorithm`` chooses."""

    CUDNN_CONVOLUTION_BWD_FILTER_NO_WORKSPACE = _NO_WORKSPACE
    CUDNN_CONVOLUTION_BWD_FILTER_PREFER_FASTEST = _FASTEST
    CUDNN_CONVOLUTION_BWD_FILTER_SPECIFY_WORKSPACE_LIMIT = _LIMIT


cudnnConvolutionFwdPreference = cudnnConvolutionFwdPreference_t.as_dict()
cudnnConvolutionBwdDataPreference = cudnnConvolutionBwdDataPreference_t.as_dict()
cudnnConvolutionBwdFilterPreference = cudnnConvolutionBwdFilterPreference_t.as_dict()


def cudnnGetConvolutionForwardAlgorithm(
    handle: int,
    xDesc: Any,
    wDesc: Any,
    convDesc: Any,
    yDesc: Any,
    preference: Any,
    memoryLimitInBytes: Any = 0,
) -> table.cudnnConvolutionFwdAlgo_t:
    """The algorithm that cuDNN expects to be the fastest, within the preference.

    Built on ``cudnnGetConvolutionForwardAlgorithm_v7``.
    """
    limit = _limit(cudnnConvolutionFwdPreference_t, preference, memoryLimitInBytes)
    return _choose("Forward", (handle, xDesc, wDesc, convDesc, yDesc), limit)


def cudnnGetConvolutionBackwardDataAlgorithm(
    handle: int,
    wDesc: Any,
    dyDesc: Any,
    convDesc: Any,
    dxDesc: Any,
    preference: Any,
    memoryLimitInBytes: Any = 0,
) -> table.cudnnConvolutionBwdDataAlgo_t:
    """The algorithm that cuDNN expects to be the fastest, within the preference.

    Built on ``cudnnGetConvolutionBackwardDataAlgorithm_v7``.
    """
    limit = _limit(cudnnConvolutionBwdDataPreference_t, preference, memoryLimitInBytes)
    return _choose("BackwardData", (handle, wDesc, dyDesc, convDesc, dxDesc), limit)


def cudnnGetConvolutionBackwardFilterAlgorithm(
    handle: int,
    xDesc: Any,
    dyDesc: Any,
    convDesc: Any,
    dwDesc: Any,
    preference: Any,
    memoryLimitInBytes: Any = 0,
) -> table.cudnnConvolutionBwdFilterAlgo_t:
    """The algorithm that cuDNN expects to be the fastest, within the preference.

    Built on ``cudnnGetConvolutionBackwardFilterAlgorithm_v7``.
    """
    limit = _limit(cudnnConvolutionBwdFilterPreference_t, preference, memoryLimitInBytes)
    return _choose("BackwardFilter", (handle, xDesc, dyDesc, convDesc, dwDesc), limit)


def _limit(kind: type[CudnnEnum], preference: Any, memory_bytes: Any) -> int | None:
    """The most bytes of workspace that the preference allows; None is no limit."""
    wanted = kind.from_param(preference).value
    if wanted == _FASTEST:
        return None
    return (
        0
        if wanted == _NO_WORKSPACE
        else operator.index(getattr(memory_bytes, "value", memory_bytes))
    )


def _choose(stem: str, operands: tuple[Any, ...], limit: int | None) -> Any:
    """The first algorithm of cuDNN's list, fastest first, whose workspace is within the limit.

    The list has workspaces for each math type that cuDNN may use. Only the size function gives the
    one for the math type of the convolution's own descriptor.
    """
    ends = ("Algorithm_v7", "AlgorithmMaxCount", "WorkspaceSize")
    functions: Iterator[Function] = (
        getattr(table, f"cudnnGetConvolution{stem}{end}") for end in ends
    )
    expected, count, workspace = functions
    handle = operands[0]
    refused = []
    for found in expected(*operands, count(handle)):
        if found.status:
            continue
        try:
            size = workspace(*operands, found.algo).value
        except CudnnStatusError as error:
            refused.append(f"{_name(found.algo)}: {error.status_name}")
            continue
        if limit is None or size <= limit:
            return found.algo
        refused.append(f"{_name(found.algo)}: {size} bytes of workspace")
    allowed = "any workspace" if limit is None else f"at most {limit} bytes of workspace"
    raise table.CudnnNotSupported(
        expected.__name__.removesuffix("_v7"),
        table.cudnnStatus_t.CUDNN_STATUS_NOT_SUPPORTED,
        "CUDNN_STATUS_NOT_SUPPORTED",
        f"no algorithm with {allowed}; {'; '.join(refused) or 'cuDNN offers none'}",
    )


def _name(algorithm: object) -> str:
    return str(getattr(algorithm, "name", algorithm))

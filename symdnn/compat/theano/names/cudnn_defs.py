"""``theano.gpuarray.cudnn_defs``: cuDNN's enums with Theano's words, for each of its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "CuDNNV51", "CuDNNV6", "CuDNNV7", "DOUBLE", "DOUBLE_CONFIG", "FLOAT", "FLOAT_CONFIG", "HALF",
    "PSEUDO_HALF_CONFIG", "TRUE_HALF_CONFIG", "get_definitions", "is_double_config",
    "is_float_config", "is_pseudo_half_config", "is_true_half_config",
]  # fmt: skip

HALF, FLOAT, DOUBLE = "float16", "float32", "float64"
TRUE_HALF_CONFIG, PSEUDO_HALF_CONFIG = (HALF, HALF), (HALF, FLOAT)
FLOAT_CONFIG, DOUBLE_CONFIG = (FLOAT, FLOAT), (DOUBLE, DOUBLE)


def is_true_half_config(dtype: str, precision: str) -> bool:
    """Whether float16 is accumulated in float16."""
    return (dtype, precision) == TRUE_HALF_CONFIG


def is_pseudo_half_config(dtype: str, precision: str) -> bool:
    """Whether float16 is accumulated in float32."""
    return (dtype, precision) == PSEUDO_HALF_CONFIG


def is_float_config(dtype: str, precision: str) -> bool:
    """Whether all is float32."""
    return (dtype, precision) == FLOAT_CONFIG


def is_double_config(dtype: str, precision: str) -> bool:
    """Whether all is float64."""
    return (dtype, precision) == DOUBLE_CONFIG


class Enum:
    """An enum of cuDNN: numbers by their C names, and Theano's words (aliases) for some."""

    def __init__(self, ctype: str, prefix: str, members: str) -> None:
        self.ctype, self.numbers, self.words = ctype, dict[str, int](), dict[str, str]()
        for number, member in enumerate(members.split()):
            name, _, word = member.partition("=")
            self.numbers[prefix + name] = number
            if word:
                self.words[word] = prefix + name

    def get_aliases(self) -> tuple[str, ...]:
        """Theano's words."""
        return tuple(self.words)

    def has_alias(self, alias: str) -> bool:
        """Whether Theano has such a word."""
        return alias in self.words

    def fromalias(self, alias: str) -> int:
        """The number of a word."""
        return self.numbers[self.words[alias]]

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["numbers"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"{self.ctype}({', '.join(self.numbers)})"


_FWD = Enum(
    "cudnnConvolutionFwdAlgo_t", "CUDNN_CONVOLUTION_FWD_ALGO_",
    "IMPLICIT_GEMM=none IMPLICIT_PRECOMP_GEMM=small GEMM=large DIRECT FFT=fft "
    "FFT_TILING=fft_tiling WINOGRAD=winograd WINOGRAD_NONFUSED=winograd_non_fused",
)  # fmt: skip
_BWD_FILTER = "0=none 1=deterministic FFT=fft 3=small WINOGRAD WINOGRAD_NONFUSED=winograd_non_fused"
_BWD_DATA = Enum(
    "cudnnConvolutionBwdDataAlgo_t", "CUDNN_CONVOLUTION_BWD_DATA_ALGO_",
    "0=none 1=deterministic FFT=fft FFT_TILING=fft_tiling WINOGRAD=winograd "
    "WINOGRAD_NONFUSED=winograd_non_fused",
)  # fmt: skip

#: Direction -> word -> what it needs: spatial dimensions, and types (h: float16 accumulated in
#: float16, p: in float32, f: float32, d: float64); of the last version, as cuDNN's manual says.
_SUPPORT: dict[str, dict[str, dict[int, str]]] = {
    "fwd": {
        "none": {2: "pfd", 3: "pfd"}, "small": {2: "hpfd", 3: "pfd"}, "large": {2: "pfd"},
        "fft": {2: "pf"}, "fft_tiling": {2: "pf", 3: "pfd"}, "winograd": {2: "pf"},
        "winograd_non_fused": {2: "hpf"},
    },
    "bwd_filter": {
        "none": {2: "pfd", 3: "pfd"}, "deterministic": {2: "pfd"}, "fft": {2: "pf"},
        "small": {2: "pfd", 3: "pfd"}, "winograd_non_fused": {2: "pf"},
        "fft_tiling": {2: "pfd"},
    },
    "bwd_data": {
        "none": {2: "pfd", 3: "pfd"}, "deterministic": {2: "pfd", 3: "pfd"}, "fft": {2: "pf"},
        "fft_tiling": {2: "pf", 3: "pfd"}, "winograd": {2: "pf"},
        "winograd_non_fused": {2: "pf"},
    },
}  # fmt: skip
_CONFIGS = {"h": TRUE_HALF_CONFIG, "p": PSEUDO_HALF_CONFIG, "f": FLOAT_CONFIG, "d": DOUBLE_CONFIG}


class CuDNNV51:
    """The enums of cuDNN 5.1, and which algorithm takes which types."""

    version = 5
    cudnnConvolutionMode_t = Enum(
        "cudnnConvolutionMode_t", "CUDNN_", "CONVOLUTION=conv CROSS_CORRELATION=cross"
    )
    cudnnDataType_t = Enum(
        "cudnnDataType_t", "CUDNN_DATA_", "FLOAT=float32 DOUBLE=float64 HALF=float16"
    )
    cudnnConvolutionFwdAlgo_t = _FWD
    conv3d_fwd_algorithms = ("none", "small", "fft_tiling")
    deterministic_fwd_algorithms = _FWD.get_aliases()
    cudnnConvolutionBwdFilterAlgo_t = Enum(
        "cudnnConvolutionBwdFilterAlgo_t", "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_", _BWD_FILTER
    )
    conv3d_bwd_filter_algorithms = ("none", "small")
    deterministic_bwd_filter_algorithms: tuple[str, ...] = (
        "deterministic", "fft", "winograd_non_fused",
    )  # fmt: skip
    cudnnConvolutionBwdDataAlgo_t = _BWD_DATA
    conv3d_bwd_data_algorithms = ("none", "deterministic", "fft_tiling")
    deterministic_bwd_data_algorithms = (
        "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused",
    )  # fmt: skip
    cudnnPoolingMode_t = Enum(
        "cudnnPoolingMode_t", "CUDNN_POOLING_",
        "MAX=max AVERAGE_COUNT_INCLUDE_PADDING=average_inc_pad "
        "AVERAGE_COUNT_EXCLUDE_PADDING=average_exc_pad",
    )  # fmt: skip
    cudnnSoftmaxAlgorithm_t = Enum(
        "cudnnSoftmaxAlgorithm_t", "CUDNN_SOFTMAX_", "FAST=fast ACCURATE=accurate LOG=log"
    )
    cudnnSoftmaxMode_t = Enum(
        "cudnnSoftmaxMode_t", "CUDNN_SOFTMAX_MODE_", "INSTANCE=instance CHANNEL=channel"
    )
    cudnnBatchNormMode_t = Enum(
        "cudnnBatchNormMode_t", "CUDNN_BATCHNORM_", "PER_ACTIVATION=per-activation SPATIAL=spatial"
    )
    cudnnReduceTensorOp_t = Enum("cudnnReduceTensorOp_t", "CUDNN_REDUCE_TENSOR_", "")

    def get_supported_dtype_configs(self, check_runtime: Callable[..., Any] | None = None) -> Any:
        """Pairs (dtype, accumulator); float16 in float16 if ``check_runtime`` takes it."""
        rest = (PSEUDO_HALF_CONFIG, FLOAT_CONFIG, DOUBLE_CONFIG)
        if check_runtime is None or check_runtime(*TRUE_HALF_CONFIG):
            return (TRUE_HALF_CONFIG, *rest)
        return rest

    def fwd_algo_supports_dtype_config(
        self, algo: str, dtype: str, precision: str, ndim: int
    ) -> bool:
        """Whether an algorithm takes these types in ``ndim`` spatial dimensions."""
        return self._supports("fwd", algo, dtype, precision, ndim)

    def bwd_filter_algo_supports_dtype_config(
        self, algo: str, dtype: str, precision: str, ndim: int
    ) -> bool:
        """The same of the filters' gradient."""
        return self._supports("bwd_filter", algo, dtype, precision, ndim)

    def bwd_data_algo_supports_dtype_config(
        self, algo: str, dtype: str, precision: str, ndim: int
    ) -> bool:
        """The same of the input's gradient."""
        return self._supports("bwd_data", algo, dtype, precision, ndim)

    def _supports(self, direction: str, algo: str, dtype: str, precision: str, ndim: int) -> bool:
        words = {"fwd": _FWD, "bwd_data": _BWD_DATA}.get(
            direction, self.cudnnConvolutionBwdFilterAlgo_t)  # fmt: skip
        words.fromalias(algo)
        taken = _SUPPORT[direction].get(algo, {}).get(ndim, "")
        if self.version >= 6 and algo == "fft_tiling" and ndim == 2:
            taken += "d"  # where one dimension of the filter is 1
        return (dtype, precision) in {_CONFIGS[c] for c in taken}


class CuDNNV6(CuDNNV51):
    """The enums of cuDNN 6."""

    version = 6
    cudnnDataType_t = Enum(
        "cudnnDataType_t", "CUDNN_DATA_",
        "FLOAT=float32 DOUBLE=float64 HALF=float16 INT8=int8 INT32=int32",
    )  # fmt: skip
    cudnnPoolingMode_t = Enum(
        "cudnnPoolingMode_t", "CUDNN_POOLING_",
        "MAX=max AVERAGE_COUNT_INCLUDE_PADDING=average_inc_pad "
        "AVERAGE_COUNT_EXCLUDE_PADDING=average_exc_pad MAX_DETERMINISTIC=max_deterministic",
    )  # fmt: skip
    cudnnConvolutionBwdFilterAlgo_t = Enum(
        "cudnnConvolutionBwdFilterAlgo_t", "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_",
        _BWD_FILTER + " FFT_TILING=fft_tiling",
    )  # fmt: skip
    deterministic_bwd_filter_algorithms = (
        *CuDNNV51.deterministic_bwd_filter_algorithms, "fft_tiling",
    )  # fmt: skip
    cudnnReduceTensorOp_t = Enum(
        "cudnnReduceTensorOp_t", "CUDNN_REDUCE_TENSOR_",
        "ADD=add MUL=mul MIN=minimum MAX=maximum AMAX=absmax AVG=avg NORM1=norm1 NORM2=norm2",
    )  # fmt: skip


class CuDNNV7(CuDNNV6):
    """The enums of cuDNN 7, the last that Theano knew, and of those since."""

    version = 7
    cudnnMathType_t = Enum(
        "cudnnMathType_t", "CUDNN_", "DEFAULT_MATH=non_tensor_op TENSOR_OP_MATH=tensor_op"
    )
    cudnnDeterminism_t = Enum(
        "cudnnDeterminism_t", "CUDNN_",
        "NON_DETERMINISTIC=non_deterministic DETERMINISTIC=deterministic",
    )  # fmt: skip


def get_definitions(cudnn_version: int | None = None) -> CuDNNV51:
    """The enums of a version as ``dnn.version()`` gives it; of the last one by default."""
    major = None if cudnn_version is None else cudnn_version // 1000
    return {5: CuDNNV51, 6: CuDNNV6}.get(major or 7, CuDNNV7)()

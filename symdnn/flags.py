"""The table of flags: each is declared here once, with its type, default, help and effect.

``symdnn.config`` gives the flags their values; this module only says which exist. To add a flag,
add one line to ``FLAGS``: its value is then validated, printed by ``symdnn config``, listed in the
documentation and, with ``affects="code"``, part of the key of everything that is compiled.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from symdnn.flag_types import Flag, Value, nearest

__all__ = ["CODE", "FLAGS", "SEARCH", "WITHOUT_MEANING", "nearest_flag"]


def _default_cache_folder() -> str:
    import platformdirs  # only when the flag is read: it costs import time

    try:
        return platformdirs.user_cache_dir("symdnn", appauthor=False)
    except RuntimeError:  # a user without a home, as in containers
        return os.path.join(tempfile.gettempdir(), f"symdnn-{os.geteuid()}")


def _choice(name: str, choices: str, help: str, default: str = "", **more: Any) -> Flag:
    """A flag that takes one of some words; the first is the default unless ``default`` is given."""
    words = tuple(choices.split())
    return Flag(name, "choice", default or words[0], help, choices=words, **more)


def _bool(name: str, default: bool, help: str, **more: Any) -> Flag:
    return Flag(name, "bool", default, help, **more)


def _int(name: str, default: int, help: str, **more: Any) -> Flag:
    return Flag(name, "int", default, help, minimum=0, **more)


def _str(name: str, help: str, **more: Any) -> Flag:
    return Flag(name, "str", "", help, **more)


CODE = "code"
#: Ways to choose an algorithm of a convolution, each once for a node or for each set of shapes.
SEARCH = " ".join(f"{way}_once {way}_on_shape_change" for way in ("guess", "time", "kept"))
_REACT = "ignore warn raise pdb"

#: What ``performance=max`` sets. Besides the time of the first call it changes rounding of float32
#: (TF32, other algorithms), layouts (``gpu.layout=auto``), and the slope of relu at exactly 0.
_FASTEST: dict[str, Value] = {
    "dnn.conv.algo_fwd": "time_once",
    "dnn.conv.algo_bwd_data": "time_once",
    "dnn.conv.algo_bwd_filter": "time_once",
    "dnn.conv.allow_tf32": True,
    "dnn.conv.time_runs": 0,
    "dnn.rnn.algo": "time_once",
    "gpu.gemm.algo": "time",
    "gpu.whole_loops": "always",
    "relu_grad_at_0": "zero",
    "onednn.conv.algo": "time",
}

_DISTRIBUTED = [
    Flag("distributed.timeout", "float", 600.0, "Seconds that a rank waits for others.", minimum=0),
    Flag("distributed.bucket_bytes", "bytes", 0, "Bytes of gradients averaged at once; 0: by the "
         "measured latency and bandwidth (25 MiB with deterministic=more)."),
    _bool("distributed.overlap", True, "Whether a GPU's collectives run beside its other kernels."),
    _choice("distributed.reduce_dtype", "auto gradient rounded float32 bfloat16", "The dtype of "
            "such averages. rounded: bfloat16 for what amp=bf16 has rounded to it, else gradient; "
            "auto: rounded where GPUs round a sum over ranks once, else gradient."),
    _bool("distributed.gather_rows", True, "Whether ranks gather the rows of which the gradient of "
          "a table (an embedding) is made, where that moves fewer bytes than its average."),
    _bool("distributed.registered", True, "Whether large values that NCCL moves on one machine lie "
          "in memory of its own allocator that is registered with it."),
    Flag("distributed.ctas", "int", 0, "The most thread blocks of a collective by NCCL (its "
         "channels); 0: 16 with registered memory, else NCCL's own choice.", minimum=0),
    _choice("distributed.cta_policy", "default efficiency zero", "NCCL's CTAPolicy. zero: copy "
            "engines move large values, which are registered then, and a reduction is a kernel "
            "between two moves."),
    _choice("distributed.single_rank", "copy nccl", "What runs collectives of one rank on a GPU; "
            "nccl tests NCCL where there is one GPU."),
]  # fmt: skip

_GENERAL = [
    _choice("floatX", "float32 float64 float16", "The float type of T.matrix() and its kin, and "
            "of Python floats in an expression.", affects=CODE),
    Flag("device", "device", "auto", "Where functions run. auto: a CUDA GPU if cuDNN is found, "
         "else the CPU.", affects=CODE),
    _choice("performance", "default max", "max: all flags for speed. Algorithms are measured at "
            "the first call, float32 convolutions and GEMMs of a GPU round their inputs to TF32 "
            "and use NHWC (channels last), small loops become kernels at once, and the gradient of "
            "relu at exactly 0 is 0. A flag that is set explicitly has precedence.",
            presets={"max": _FASTEST}),
    _choice("relu_grad_at_0", "half zero", "The gradient of relu at exactly 0, when a gradient is "
            "taken. half: 0.5, as in Theano; zero: 0, as in PyTorch and JAX, which needs only "
            "relu's result."),
    _bool("print_active_device", True, "Say once, on the standard error, which GPU is used."),
    _choice("mode", "Mode FAST_RUN FAST_COMPILE DebugMode DEBUG_MODE NanGuardMode",
            "How functions are compiled where `mode=` is not given.", affects=CODE),
    _choice("optimizer", "o4 o3 o2 o1 unsafe fast_run fast_compile merge None",
            "Which rewrites are applied; o4 and fast_run are all of them, None is none.",
            affects=CODE),
    _str("optimizer_including", "Tags and names of rewrites to add, separated by colons.",
         affects=CODE),
    _str("optimizer_excluding", "Tags and names of rewrites to leave out, separated by colons.",
         affects=CODE),
    _str("optimizer_requiring", "Tags and names of rewrites to add, separated by colons; compiling "
         "fails where there is no such rewrite.", affects=CODE),
    _bool("optimizer_verbose", False, "Print each rewrite as it is applied (to stderr)."),
    _choice("on_opt_error", "warn raise pdb ignore", "What a failing rewrite does."),
    _choice("on_unused_input", "raise warn ignore", "What an input does that no output needs."),
    _choice("exception_verbosity", "low high", "high adds the node's graph and inputs to errors."),
    _int("traceback.limit", 8, "How many lines of the place that made a node are remembered; "
         "0 for none."),
    _bool("profile", False, "Measure each step of each function and print a table at exit."),
    _bool("profile_memory", False, "Add the memory of each step to the profile."),
    _bool("profile_optimizer", False, "Add times of compiling and slow rewrites to the profile."),
    _choice("compute_test_value", "off ignore warn raise pdb", "Evaluate `tag.test_value` of "
            "the inputs while a graph is built; the value is the reaction to a missing one."),
    _bool("print_test_value", False, "The repr of a variable shows its test value."),
    _choice("deterministic", "default more", "more: only kernels that give the same bits each "
            "time.", affects=CODE),
    _choice("cast_policy", "numpy2 custom numpy+floatX", "The dtype of a Python number in ops with "
            "arrays. numpy2: theirs, as in NumPy 2; custom: Theano's rule, the smallest dtype for "
            "an int, floatX for a float; numpy+floatX: as custom, and a float64 result of "
            "operands that are not float64 becomes floatX.", affects=CODE),
    _choice("warn_float64", _REACT, "What an input, a shared variable or an op of type float64 "
            "does when it is made."),
    _choice("assert_no_cpu_op", _REACT, "What an op on the CPU does in a function for the GPU."),
    _choice("assert_lowered", "ignore warn raise", "What an op without a kernel there does."),
    _int("plan_cache_size", 64, "How many plans, one per set of shapes, a function keeps."),
    _bool("keep_prepared", True, "Values that depend on parameters alone (filters scaled by a "
          "batch norm, cast, or in another layout) are computed when these change, not per call.",
          affects=CODE),
    Flag("plan_cache_bytes", "bytes", 1 << 30, "Most memory that the plans of one segment of a "
         "function keep for themselves, besides the arena that all share; 0: no limit.",
         minimum=0),
    Flag("base_compiledir", "str", _default_cache_folder, "Folder of the cache on disk: compiled "
         "kernels and measured choices.", fixed=True),
    Flag("base_compiledir_bytes", "bytes", 2 << 30, "Most disk space of the cache. The least "
         "recently used entries are removed; 0: no limit.", minimum=0),
    Flag("load_limit_bytes", "bytes", 1 << 30, "Most that a file of weights may unpack to, where "
         "that is more than 16 times its own size; 0: no limit.", minimum=0),
    _int("unittests.rseed", 666, "Seed of verify_grad where none is given."),
    _choice("amp", "off bf16 fp16", "Mixed precision: the 16-bit type in which the CUDA target "
            "stores and multiplies values that permit it.", affects=CODE),
    Flag("amp_loss_scale", "float", 0.0, "The factor of LossScale, for amp=fp16; 0: it is found, "
         "and adapted.", minimum=0),
]  # fmt: skip

_MODES = [
    _choice("NanGuardMode.action", "raise warn pdb", "What NanGuardMode does at a bad value."),
    _bool("NanGuardMode.nan_is_error", True, "NanGuardMode looks for NaN.", affects=CODE),
    _bool("NanGuardMode.inf_is_error", True, "NanGuardMode looks for infinities.", affects=CODE),
    _bool("NanGuardMode.big_is_error", True, "NanGuardMode looks for values above 1e10.",
          affects=CODE),
    _bool("DebugMode.check_py", True, "DebugMode compares each kernel with the reference."),
    _bool("DebugMode.check_finite", True, "DebugMode refuses NaN and infinities."),
    _bool("DebugMode.check_strides", True, "DebugMode checks kernels on inputs of other strides."),
    _bool("DebugMode.check_preallocated_output", False, "DebugMode checks kernels that write into "
          "given memory."),
    _int("DebugMode.patience", 10, "How often DebugMode repeats the rewriting to see that its "
         "result is always the same."),
]  # fmt: skip

_CPU = [
    _int("openmp.threads", 0, "Threads of the CPU target; 0: as many as the process may use."),
    _choice("cpu.compile", "auto always never", "Whether the CPU target compiles elementwise "
            "kernels by LLVM. auto: where there is enough to compute.", affects=CODE),
    _str("onednn.library_path", "The oneDNN library (libdnnl.so.3), or its folder, for the CPU "
         "target."),
    _choice("onednn.conv.algo", "guess time", "How the CPU target chooses between layouts of a "
            "convolution.", affects=CODE),
    _choice("cpu.winograd", "auto never", "Whether the CPU target multiplies transformed tiles of "
            "images by transformed kernels, of 3x3 to 5x5, where that is faster: errors are about "
            "twice those of plain sums.", affects=CODE),
]  # fmt: skip

_CUDA = [
    _str("cuda.root", "Folder of a CUDA installation, searched for its libraries."),
    _choice("gpu.runtime", "auto pycuda cuda-bindings", "What drives a GPU, read when one is first "
            "used. auto: PyCUDA where it is installed, else cuda-bindings. With PyCUDA arrays on "
            "the GPU are its GPUArray, without it symdnn.gpu.DeviceArray."),
    _choice("gpu.graph", "auto off", "Whether the CUDA target captures plans into CUDA graphs.",
            affects=CODE),
    _choice("gpu.early_launch", "auto off", "Whether kernels of CUDA graphs may start early."),
    _choice("gpu.whole_loops", "auto always never", "Whether the CUDA target runs loops of small "
            "steps as one kernel of one block. always: from the first call; auto: after a "
            "thousand steps (fewer where a step has many ops), unless deterministic=more."),
    _choice("gpu.layout", "auto nchw nhwc", "Layout of activations in programs for a GPU. auto: "
            "NHWC (channels last) for convolutions on tensor cores (16-bit types, or float32 with "
            "dnn.conv.allow_tf32); nchw: never NHWC; nhwc: NHWC where possible.", affects=CODE),
    _choice("gpu.epilogue", "auto off", "Whether the CUDA target fuses a bias, a residual and an "
            "activation function into GEMMs and convolutions of NVIDIA's libraries.",
            affects=CODE),
    _choice("gpu.fold_batch_norm", "auto off", "Whether the CUDA target folds normalisation by "
            "given statistics into the filters of the convolution before it.", affects=CODE),
    _choice("gpu.gemm.algo", "guess time", "How an algorithm for a GEMM is chosen. guess: by "
            "cuBLASLt's heuristics; time: by measuring the first few.", affects=CODE),
    _choice("gpu.relu_grad_at_0", "half zero", "The old name of relu_grad_at_0.",
            sets=("relu_grad_at_0",), old=True),
    _choice("gpu.prefer", "own cudnn", "Which kernel is preferred for memory-bound operations "
            "(softmax, pooling, batch norm, reductions): a generated one, or cuDNN's. A hint "
            "backend=\"cudnn\" has precedence.", affects=CODE),
    Flag("gpu.memory_limit", "bytes", 0, "Most memory that the CUDA target takes; 0: all that is "
         "free.", minimum=0),
    _choice("dnn.enabled", "auto True False no_check", "Use of cuDNN. auto: if found; True: "
            "fail if not found; False: never; no_check: without trying it first.", affects=CODE),
    _str("dnn.base_path", "Folder of cuDNN, whose lib64 and lib are searched."),
    _str("dnn.include_path", "Accepted, and not used: no headers are needed."),
    _str("dnn.library_path", "Folder with cuDNN's libraries, searched before all others."),
    _str("dnn.bin_path", "Folder with cuDNN's libraries, searched after dnn.library_path."),
    _choice("dnn.conv.algo_fwd", "small none large fft fft_tiling winograd winograd_non_fused "
            + SEARCH, "Algorithm of cuDNN's convolution, forward.", affects=CODE, ways=True),
    _choice("dnn.conv.algo_bwd_data", "none deterministic fft fft_tiling winograd "
            "winograd_non_fused " + SEARCH, "Algorithm of cuDNN's convolution, gradient of the "
            "input.", affects=CODE, ways=True),
    _choice("dnn.conv.algo_bwd_filter", "none deterministic fft small winograd_non_fused "
            "fft_tiling " + SEARCH, "Algorithm of cuDNN's convolution, gradient of the filters.",
            affects=CODE, ways=True),
    _choice("dnn.conv.algo_bwd", "none deterministic fft fft_tiling winograd_non_fused " + SEARCH,
            "Sets dnn.conv.algo_bwd_data and dnn.conv.algo_bwd_filter at once.",
            sets=("dnn.conv.algo_bwd_data", "dnn.conv.algo_bwd_filter"), ways=True),
    _choice("dnn.rnn.algo", "standard persist_static persist_dynamic persist_static_small_h guess "
            "time_once", "Algorithm of cuDNN's recurrent networks; all but standard are checked "
            "against it before they are used.", affects=CODE),
    _choice("dnn.conv.precision", "as_input_f32 as_input tf32 float16 float32 float64", "The type "
            "in which cuDNN's convolution accumulates; as_input_f32: that of the input, but "
            "float32 for 16-bit types; tf32: so, and float32 inputs may be rounded to TF32, as "
            "with dnn.conv.allow_tf32 for convolutions alone.", affects=CODE),
    _bool("dnn.conv.allow_tf32", False, "Let float32 convolutions and GEMMs of the CUDA target "
          "round their inputs to TF32.", affects=CODE),
    Flag("dnn.conv.workspace_limit", "bytes", 0, "Most workspace for one convolution of cuDNN; "
         "0: as much as is free.", minimum=0, affects=CODE),
    _bool("dnn.verbose", False, "Print, on the standard error, the kernels of each new plan of a "
          "function, and the algorithms that the libraries chose."),
    _choice("dnn.batch_norm", "auto cudnn fused", "Batch normalisation in training on a GPU. auto: "
            "split into statistics and an elementwise op if that can be fused with others, and by "
            "kernels as gpu.prefer says; cudnn: by one kernel of cuDNN; fused: always split.",
            affects=CODE),
    _choice("dnn.conv.on_unsupported", "raise fallback", "The reaction to an algorithm that cuDNN "
            "refuses for the given shapes.", affects=CODE),
    _str("dnn.conv.overrides", "Algorithms by the name of a layer, such as conv3*=fft_tiling; "
         "head:bwd_data=deterministic. A name is the hint's, the filter's, or the path of its "
         "module. A file by f.dnn_report().save(path) gives the algorithms of that report.",
         affects=CODE),
    _choice("dnn.check", "once off always", "Whether the result of an algorithm is compared with "
            "that of a trusted one before it is used, on the call's own values. once: at the first "
            "call with new shapes; always: at every call, without CUDA graphs. What is wrong goes "
            "to the block list.", affects=CODE),
    Flag("dnn.conv.objective", "objective", "time", "What measured choices of convolutions "
         "minimise: time, memory (the workspace), energy (by the card's own counter), or a "
         "weighted sum such as 0.7*time+0.3*energy, each relative to its least possible value.",
         affects=CODE),
    Flag("dnn.conv.choose_by", "objective", "time", "The former name of dnn.conv.objective.",
         sets=("dnn.conv.objective",), old=True),
    Flag("dnn.conv.error_bound", "float", 0.0, "With dnn.workspace_budget: the largest root of the "
         "sum of squares of the relative errors of a plan's convolutions; 0: no bound.",
         minimum=0, affects=CODE),
    Flag("dnn.workspace_budget", "bytes", 0, "How much larger a plan's arena may become by the "
         "workspaces of its convolutions, whose algorithms are then chosen together, by measured "
         "tables; batches are split where that is faster. 0: each chooses for itself.",
         minimum=0, affects=CODE),
    _int("dnn.conv.time_budget", 2000, "Milliseconds after which one measurement, of a convolution "
         "or anything else, takes up no further algorithm."),
    _int("dnn.conv.time_total", 0, "Milliseconds that all measurements of the process may take "
         "together; then choices are guessed. 0: no bound. Not with deterministic=more."),
    _int("dnn.conv.time_patience", 16, "A measurement of one convolution takes up no further "
         "algorithm when so many in a row, in cuDNN's order, were not faster; 0: all."),
    _int("dnn.conv.time_runs", 1000, "A measurement of one convolution ends when it has taken as "
         "long as so many runs of the fastest algorithm so far: what another gains on a short one "
         "is not regained in a training. 0: no such end."),
    Flag("dnn.conv.tuning_cache", "str", "auto", "Folder in which measured choices are kept. auto: "
         "tuning in the folder base_compiledir; off: they are kept for the process only."),
]  # fmt: skip

_WARN = (
    "subtensor_merge_bug round argmax_pushdown_bug gpu_set_subtensor1 gpusum_01_011_0111_bug "
    "identify_1pexp_bug inc_set_subtensor1 inc_subtensor1_opt reduce_join "
    "signal_conv2d_interface sum_div_dimshuffle_bug sum_sum_bug vm_gc_bug"
)
# Programs of old set these when they start: the names exist, and change nothing.
_OLD = [
    Flag("warn.ignore_bug_before", "str", "all", "Accepted for old programs, without effect."),
    *(
        _bool(f"warn.{w}", False, "Accepted for old programs, without effect.")
        for w in _WARN.split()
    ),
]

_ALL = [*_GENERAL, *_DISTRIBUTED, *_MODES, *_CPU, *_CUDA, *_OLD]
FLAGS: dict[str, Flag] = {f.name: f for f in _ALL}


def _no_meaning(advice: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


_FUSION = "To switch fusion off, use optimizer_excluding=fusion."

# Names that Theano has and that mean nothing here, with what to use, if there is something.
WITHOUT_MEANING: dict[str, str] = {
    **_no_meaning("symdnn runs no C++ compiler.", "cxx gcc.cxxflags cmodule.age_thresh_use "
                  "cmodule.compilation_warning cmodule.debug cmodule.preload_cache "
                  "cmodule.remove_gxx_opt cmodule.warn_no_version compile.timeout compile.wait "
                  "nocleanup lib.amdlibm DebugMode.check_c"),
    **_no_meaning("Kernels are compiled by NVRTC; nvcc is not used.", "nvcc.flags nvcc.fastmath "
                  "nvcc.compiler_bindir nvcc.cudafe"),
    **_no_meaning("Compiled kernels are kept in the folder that base_compiledir names.",
                  "compiledir compiledir_format gpuarray.cache_path"),
    **_no_meaning("NumPy's own BLAS is used.", "blas.ldflags blas.check_openmp"),
    **_no_meaning("Use openmp.threads.", "openmp openmp_elemwise_minsize"),
    **_no_meaning("Use gpu.memory_limit to bound the memory of a GPU.",
                  "gpuarray.preallocate lib.cnmem"),
    **_no_meaning("Use device, or mode=Mode(target=...) for one function.",
                  "init_gpu_device contexts linker"),
    **_no_meaning("The CUDA target has one compute stream and synchronises where a value is needed "
                  "on the host.", "gpuarray.sched gpuarray.single_stream gpuarray.sync "
                  "gpuelemwise.sync"),
    **_no_meaning("Use dnn.conv.algo_fwd.", "dnn.conv.workmem"),
    **_no_meaning("Use dnn.conv.algo_bwd.", "dnn.conv.workmem_bwd"),
    **_no_meaning("No headers are needed; cuda.root names the folder of CUDA's libraries.",
                  "cuda.include_path"),
    **_no_meaning(_FUSION, "tensor.local_elemwise_fusion gpu.local_elemwise_fusion"),
    **_no_meaning("Use NumPy's numpy.seterr.", "numpy.seterr_all numpy.seterr_divide "
                  "numpy.seterr_invalid numpy.seterr_over numpy.seterr_under"),
    **_no_meaning("The quotient of integers is a float; write // for an integer.", "int_division"),
    **_no_meaning("DebugMode compares every rewrite.", "compute_test_value_opt"),
    **_no_meaning("Use profile, profile_memory and profile_optimizer.",
                  "profiling.debugprint profiling.destination profiling.ignore_first_call "
                  "profiling.min_memory_size profiling.min_peak_memory profiling.n_apply "
                  "profiling.n_ops profiling.output_line_width profiling.time_thunks "
                  "print_global_stats"),
    **_no_meaning("Use optimizer_including and optimizer_excluding.",
                  "metaopt.verbose metaopt.optimizer_excluding metaopt.optimizer_including "
                  "optdb.max_use_ratio optdb.position_cutoff cycle_detection "
                  "cache_optimizations check_stack_trace "
                  "tensor.insert_inplace_optimizer_validate_nb "
                  "experimental.local_alloc_elemwise experimental.local_alloc_elemwise_assert"),
    **_no_meaning("The memory of a function is planned when it first meets a shape.",
                  "allow_gc scan.allow_gc scan.allow_output_prealloc"),
    **_no_meaning("symdnn.dprint shows a loop with its step.", "scan.debug"),
    **_no_meaning("A shape that does not fit is an error.", "on_shape_error"),
    **_no_meaning("The sizes that a convolution is given are always checked.", "conv.assert_shape"),
    **_no_meaning("Where device=cuda can't be used, that is an error.", "force_device"),
    **_no_meaning("Use traceback.limit.", "traceback.compile_limit"),
    **_no_meaning("", "DebugMode.check_preallocated_output_ndim DebugMode.warn_input_not_reused "
                  "check_input ctc.root experimental.unpickle_gpu_on_cpu magma.enabled "
                  "magma.include_path magma.library_path pickle_test_value "
                  "reoptimize_unpickled_function tensor.cmp_sloppy unpickle_function vm.lazy"),
}  # fmt: skip


def nearest_flag(name: str) -> str:
    """The flag that ``name`` may have been meant to be; its last part alone is tried, too."""
    current = [name for name, flag in FLAGS.items() if not flag.old]
    longer = [flag for flag in current if len(name) > 3 and flag.startswith(name)]
    if longer:
        return longer[0]
    last = name.rpartition(".")[2]
    tails = {flag.rpartition(".")[2]: flag for flag in reversed(current)}
    return nearest(name, current) or tails.get(nearest(last, tails), "")

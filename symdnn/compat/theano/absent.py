"""Names of Theano that are not offered, with what to use instead."""

from __future__ import annotations

import difflib
import re

from symdnn.compat.theano.paths import MODULES

__all__ = ["advice"]

_C_CODE = (
    "ops of C code have no counterpart, since nothing is compiled by a C compiler. Write the op "
    "with perform(), or as docs/user_op.md says"
)
_REWRITES = (
    "rewrites of a program's own are written as docs/rewrites.md says; graphs are always rewritten "
    "by symdnn's own, which optimizer_excluding switches off"
)
_KERNELS = "kernels of a program's own are not taken; nearly every op has one (docs/gpu.md)"

#: Patterns of full names, and what to say of them. The first that fits is used.
_ADVICE = {
    r"theano\.breakpoint|.*PdbBreakpoint": "use theano.printing.Print(global_fn=...), or DebugMode",
    r"theano\.typed_list\.opt.*": _REWRITES,
    r"theano\.sandbox\.minimal.*": "it is Theano's example of an op; see docs/user_op.md",
    r"theano\.tensor\.fourier.*|theano\.sandbox\.fourier.*": "use theano.tensor.fft",
    r".*\.(MPI|mpi_|send|recv|isend|irecv).*": "use torch.distributed or mpi4py between calls",
    r"theano\.pathparse.*|theano\.misc\.windows.*": "it was for compilers",
    r"theano\.link.*": "there is one way of running; symdnn has no other linkers",
    r"theano\._version": "theano.__version__ and theano.version have it",
    r"theano\.d3viz\..*": "theano.d3viz.d3viz(fct, outfile) writes the page (docs/printing.md)",
    r"theano\.gof\.compile(dir|lock).*": "nothing is compiled by a C compiler, so no folder of "
        "modules is kept or locked; `python -m symdnn cache` shows what is kept",
    r"theano\.misc\.(check_blas|check_multi_gpu|burn_gpu).*": "`python -m symdnn doctor` says what "
        "libraries and GPUs are used, benchmarks/ has the timings",
    r"theano\.misc\.(buildbot_filter|check_duplicate_key|cpucount|elemwise_\w+|gh_api|"
    r"latence_gpu_transfert).*": "it is a script for Theano's own development",
    r"theano\.misc\.doubleop.*": "it is Theano's example of an op; see docs/user_op.md",
    r"theano\.scalar\.basic_sympy.*": "compile SymPy's expressions with "
        "sympy.printing.theanocode.theano_function",
    r"theano\.gof\.unify.*|theano\.scan_module\.scan_opt.*|theano\.sparse\.opt.*|"
    r"theano\.tensor\.opt2.*": _REWRITES,
    r"theano\.scan_module\.scan_perform.*|theano\.tensor\.(blas_\w+|elemwise_cgen|inc_code).*|"
    r"theano\.gof\.(cmodule|cutils|lazylinker_c).*": _C_CODE,
    r"theano\.(sandbox\.)?gpuarray\.(fp16_help|reduction|nerv).*|theano\.sandbox\.cuda\.(nvcc_compiler|cublas|"
    r"acdc|check).*": _KERNELS,
    r"theano\.sandbox\.cuda\.GpuConv\w+.*": "use theano.tensor.nnet.conv3d",
    r"theano\.sandbox\.cuda\.async.*": "calls of functions on a GPU do not wait for it anyway",
    r"theano\.sandbox\.cpu_corr.*": "use theano.tensor.nnet.conv2d",
    r"theano\.compile\.module.*|theano\.tensor\.(deprecated\.)?rmodule.*": "Module, Member and "
        "Method left Theano with 0.7; use shared variables and function(updates=)",
    r"theano\.tensor\.scipy_ndimage.*|theano\.tensor\.corrcoef.*": "they were in no release",
    r".*(COp|CLinker|CDataType|CThunk|OpWiseCLinker|DualLinker|ExternalCOp|GCC_compiler|cmodule|"
    r"CEnumType|EnumList|EnumType|OpenMPOp|cutils|lazylinker|ParamsType|c_code).*": _C_CODE,
    r".*(GpuKernelBase|CGpuKernelBase|nvcc|kernel_codegen|GpuOp|Kernel)\b.*": _KERNELS,
    r".*(EquilibriumDB|SequenceDB|LocalGroupDB|EquilibriumOptimizer|PatternSub|PatternOptimizer|"
    r"OpSub|OpRemove|TopoOptimizer|SeqOptimizer|FusionOptimizer|local_optimizer|register_\w+|"
    r"Unifier|MergeOptimizer|optdb(\.\w+)?|local_\w+)": _REWRITES,
    r".*(Feature|Validator|History|Supervisor|Bookkeeper|ReplaceValidate|NodeFinder|"
    r"PrintListener|DestroyHandler)": _REWRITES,
    r".*Linker.*|.*\.link\..*|.*\.vm\..*": "there is one way of running; linker= is ignored",
    r"theano\.sandbox\.cuda\.(CudaNdarray|filter|cuda_ndarray).*":
        "arrays on a GPU are PyCUDA's GPUArray, or symdnn.gpu.DeviceArray (docs/gpu.md)",
    r".*CudaNdarray.*|.*GpuArray.*": "use theano.shared: the compiler places values on the GPU",
    r"theano\.sparse.*": "symdnn.sparse has what there is of sparse matrices",
    r"theano\.tensor\.fft.*": "see symdnn.tensor.fft",
    r"theano\.(tensor\.[sn]linalg|sandbox\.linalg).*": "see symdnn.tensor.linalg",
    r".*\bGpu\w+": "write the op without Gpu in its name: the compiler places it",
}  # fmt: skip


_INNER = "it is an inner part of Theano's compiler, of which symdnn has another"
_FLAGS = "flags are read and set as theano.config.name; theano.configparser.AddConfigVar adds one"
_NUMBERS = "MRG_RandomStreams has Theano's numbers (docs/theano.md)"
_SPARSE = "docs/theano.md and symdnn.sparse say what there is of sparse matrices"

#: The same by the module in which a name of Theano 1.0 is, where no pattern above fits.
_BY_MODULE = {
    r"theano\.(disable_log_handler|has_handlers|logging_\w+|rpath)": "use Python's logging",
    r"theano\.compile\.debugmode": "DebugMode says in its error what it found; docs/debugging.md",
    r"theano\.compile\.profiling": "f.profile and docs/profiling.md have the times",
    r"theano\.compile\.(function_module|mode|ops|pfunc|builders|nanguardmode|sharedvalue)": _INNER,
    r"theano\.configdefaults\.(default_blas_ldflags|try_blas_flag|check_mkl_openmp|rc|p_out|var|"
    r"count)": "nothing is compiled by a C compiler; `python -m symdnn doctor` says which BLAS is "
        "used",
    r"theano\.(configdefaults|configparser)": _FLAGS,
    r"theano\.gof\.(cc|params_type)": _C_CODE,
    r"theano\.gof\.(opt|optdb|toolbox|destroyhandler)": _REWRITES,
    r"theano\.gof(\.\w+)?": _INNER,
    r"theano\.(sandbox\.)?gpuarray\.linalg": "use theano.tensor.slinalg and nlinalg: the compiler "
        "places them",
    r"theano\.(sandbox\.)?(gpuarray|cuda)(\.\w+)?": "write the op without gpu in its name: the "
        "compiler places it",
    r"theano\.(gradient|ifelse|scan_module\.\w+|d3viz\.\w+)": _INNER,
    r"theano\.misc\.\w+": "use Python's own (collections, types, pickle, textwrap)",
    r"theano\.printing": "use theano.printing.debugprint, pp and pydotprint (docs/printing.md)",
    r"theano\.sandbox\.(rng_mrg|multinomial)": _NUMBERS,
    r"theano\.tensor\.(raw_random|shared_randomstreams)": "use RandomStreams(seed).uniform(...) "
        "and its other methods",
    r"theano\.scalar(\.\w+)?": "use theano.tensor's function of that name: scalars are tensors of "
        "no dimensions",
    r"theano\.sparse(\.[\w.]+)?": _SPARSE,
    r"theano\.tensor\.nnet\.conv3d2d": "use theano.tensor.nnet.conv3d",
    r"theano\.tensor\.nnet\.corr3?d?": "use theano.tensor.nnet.conv2d or conv3d",
    r"theano\.tensor\.nnet\.(opt|sigm|nnet|bn|abstract_conv|conv|neighbours)": _REWRITES,
    r"theano\.tensor\.signal\.\w+": "use theano.tensor.signal.pool.pool_2d and T.grad of it",
    r"theano\.tensor\.(opt|blas|opt_uncanonicalize|subtensor|elemwise)": _REWRITES,
    r"theano\.tensor\.(basic|var|type|type_other|xlogx|extra_ops|sharedvar|io|slinalg)": "it is an "
        "inner part of theano.tensor; docs/theano.md says what there is",
    r"theano\.tests\.\w+": "it is for Theano's own tests",
    r"theano\.sandbox\.\w+": "it was never finished in Theano",
}  # fmt: skip


def advice(name: str) -> str:
    """What to use instead of ``name``, a full name of Theano's that symdnn does not offer.

    >>> print(advice("theano.breakpoint"))
    symdnn.compat.theano does not offer it; use theano.printing.Print(global_fn=...), or DebugMode
    """
    for pattern, text in _ADVICE.items():
        if re.fullmatch(pattern, name):
            return f"symdnn.compat.theano does not offer it; {text}"
    module, _, last = name.rpartition(".")
    near = difflib.get_close_matches(name, MODULES, n=1, cutoff=0.9)
    if near and near[0] != name:
        return f"symdnn.compat.theano does not offer it; the nearest module is {near[0]}"
    for pattern, text in _BY_MODULE.items():
        if re.fullmatch(pattern, name) or re.fullmatch(pattern, module):
            return f"symdnn.compat.theano does not offer it; {text}"
    return (
        "symdnn.compat.theano does not offer it, and Theano 1.0 may not have it; docs/theano.md "
        f"says what there is ({last!r} may be in another module than {module!r})"
    )

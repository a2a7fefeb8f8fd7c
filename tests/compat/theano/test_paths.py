"""All module paths, and what is said of names that are not offered."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from symdnn.compat.theano import finder
from symdnn.compat.theano.absent import advice
from symdnn.compat.theano.paths import FUNCTIONS_FIRST, MODULES

#: The modules of Theano 1.0.5 (without tests), and of 0.1 to 0.9 where these had others.
TREE_1_0 = """
theano: _version configdefaults configparser gradient ifelse pathparse printing raise_op updates
    version
theano.compile: builders debugmode function function_module io mode monitormode nanguardmode ops
    pfunc profiling sharedvalue
theano.d3viz: d3viz formatting
theano.gof: callcache cc cmodule compiledir compilelock cutils destroyhandler fg graph
    lazylinker_c link null_type op opt optdb params_type sched toolbox type unify utils vm
theano.gpuarray: basic_ops blas blocksparse ctc cudnn_defs dnn elemwise extra_ops fft fp16_help
    kernel_codegen linalg multinomial neighbours nerv nnet opt opt_util pool reduction rng_mrg
    sort subtensor type
theano.misc: buildbot_filter burn_gpu check_blas check_duplicate_key check_multi_gpu cpucount
    doubleop elemwise_openmp_speedup elemwise_time_test frozendict gh_api latence_gpu_transfert
    may_share_memory ordered_set pkl_utils safe_asarray strutil windows
theano.sandbox: blocksparse conv fourier minimal multinomial neighbours rng_mrg softsign solve
theano.sandbox.linalg: ops
theano.scalar: basic basic_scipy basic_sympy sharedvar
theano.scan_module: scan scan_checkpoints scan_op scan_opt scan_perform_ext scan_utils scan_views
theano.sparse: basic opt sharedvar type utils
theano.sparse.sandbox: sp sp2 truedot
theano.tensor: basic blas blas_c blas_headers blas_scipy elemwise elemwise_cgen extra_ops fft
    fourier inc_code inplace io nlinalg opt opt_uncanonicalize raw_random shared_randomstreams
    sharedvar slinalg sort subtensor type type_other utils var xlogx
theano.tensor.nnet: abstract_conv blocksparse bn conv conv3d2d corr corr3d ctc neighbours nnet opt
    sigm
theano.tensor.signal: conv pool
theano.typed_list: basic opt type
"""
TREES_BEFORE = """
theano.compile: module profilemode
theano.compile.sandbox: pfunc shared_randomstreams sharedvalue
theano.gof: env python25
theano.sandbox: downsample neighbourhoods scan
theano.sandbox.cuda: GpuConv3D GpuConvGrad3D GpuConvTransp3D basic_ops blas blocksparse cula
    cusolver dnn elemwise extra_ops fftconv kernel_codegen neighbours nnet nvcc_compiler opt
    opt_util rng_curand type var
theano.sandbox.gpuarray: basic_ops blas blocksparse dnn elemwise extra_ops fp16_help
    kernel_codegen multinomial neighbours nerv nnet opt opt_util subtensor type
theano.tensor: randomstreams rmodule tensor_grad
theano.tensor.nnet: Conv3D ConvGrad3D ConvTransp3D abstract_conv2d
theano.tensor.signal: downsample
"""


def listed(table):
    """The full names of a table's modules."""
    found, package = [], ""
    for word in table.split():
        if word.endswith(":"):
            package = word[:-1]
        else:
            found.append(f"{package}.{word}")
    return found


def test_every_module_of_theanos_trees_is_there_or_says_what_to_use(theano):
    paths = listed(TREE_1_0) + listed(TREES_BEFORE)
    absent = [p for p in paths if p not in MODULES]
    assert len(absent) < len(paths) / 4
    for path in absent:
        with pytest.raises(ModuleNotFoundError, match="not offer") as refused:
            importlib.import_module(path)
        said = str(refused.value)
        assert "may not have it" not in said, path
        assert "nearest module" not in said, path


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


def test_paths_of_theano_pymc(theano):
    from theano.graph.basic import Apply, graph_inputs, walk
    from theano.graph.fg import FunctionGraph
    from theano.graph.op import Op, get_test_value
    from theano.graph.utils import TestValueError
    from theano.sandbox.rng_mrg import MRG_RandomStream
    from theano.scan import until

    assert (Apply, Op, FunctionGraph) == (theano.Apply, theano.Op, theano.gof.FunctionGraph)
    assert callable(theano.scan)
    assert callable(until)
    x = theano.tensor.vector("x")
    parents = lambda v: v.owner.inputs if v.owner else None  # noqa: E731
    y = x + theano.tensor.exp(x)
    assert set(walk([y], parents)) == {x, y, y.owner.inputs[1]}
    assert dict(walk([y], parents, return_children=True))[x] is None
    assert list(graph_inputs([y])) == [x]
    with pytest.raises(TestValueError, match="no test value"):
        get_test_value(x)
    assert MRG_RandomStream(seed=1).normal((2,)).ndim == 1
    with pytest.raises(ModuleNotFoundError, match="linkers"):
        importlib.import_module("theano.link.jax")


def test_what_is_not_offered_says_so(theano):
    import theano.tensor as T

    for module, name, said in (
        (theano.gof, "COp", "C compiler"),
        (theano.gof, "PatternSub", "docs/rewrites.md"),
        (theano.gof, "PerformLinker", "linker= is ignored"),
        (T, "no_such_function", "Theano 1.0 may not have it"),
    ):
        with pytest.raises(AttributeError, match=f"has no {name!r}.*{said}"):
            getattr(module, name)
        with pytest.raises(ImportError, match=f"{name}.*{said}"):
            exec(f"from {module.__name__} import {name}")
        assert __import__(module.__name__, fromlist=["", name]) is module
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


#: Names of Theano 1.0 in modules that symdnn offers, of each kind that it does not.
NOT_OFFERED = """
theano: rpath
theano.compile.debugmode: NoDuplicateOptWarningFilter
theano.compile.function_module: std_fgraph insert_deepcopy
theano.compile.profiling: ScanProfileStats
theano.configdefaults: try_blas_flag rc
theano.configparser: fetch_val_for_key
theano.gof.cc: CLinker CodeBlock
theano.gof.graph: default_node_formatter
theano.gof.opt: LocalOptGroup Optimizer
theano.gof.sched: posort
theano.gof.utils: scratchpad
theano.gof.vm: VM
theano.gpuarray.basic_ops: get_ctype
theano.gpuarray.linalg: cublas_available
theano.gpuarray.opt: GraphToGPU
theano.ifelse: CondMerge
theano.misc.pkl_utils: zipadd
theano.misc.strutil: render_string
theano.printing: PrinterState
theano.sandbox.multinomial: ChoiceFromUniform
theano.sandbox.rng_mrg: DotModulo
theano.scalar.basic: NumpyAutocaster
theano.scan_module.scan_utils: scan_args
theano.sparse.basic: structured_monoid
theano.sparse.sandbox.sp2: multinomial
theano.tensor.basic: constant_cache
theano.tensor.blas: GemmOptimizer
theano.tensor.nnet.conv3d2d: IncDiagonalSubtensor
theano.tensor.nnet.sigm: parse_mul_tree
theano.tensor.opt: ShapeOptimizer
theano.tensor.raw_random: RandomFunction
theano.tensor.subtensor: get_canonical_form_slice
theano.tensor.var: equal_slices
"""


@pytest.mark.parametrize("path", listed(NOT_OFFERED))
def test_names_that_are_not_offered_say_what_to_use(theano, path):
    module, _, name = path.rpartition(".")
    with pytest.raises(AttributeError, match="does not offer it; ") as refused:
        getattr(importlib.import_module(module), name)
    assert "may not have it" not in str(refused.value)


def test_small_names_of_inner_modules(theano, T):
    from theano.compile.mode import OPT_NONE
    from theano.compile.nanguardmode import contains_inf, contains_nan
    from theano.gof.graph import is_in_ancestors
    from theano.gof.utils import difference, give_variables_names, hist
    from theano.scan_module.scan_utils import forced_replace, reconstruct_graph
    from theano.tensor import blas
    from theano.tensor.nnet import abstract_conv, conv, neighbours

    x, y = T.dmatrices("x", "y")
    z = T.exp(x) + y
    assert forced_replace(z, y, x).eval({x: [[0.0]]}) == 1
    (a, b), (copy,) = reconstruct_graph([x, y], [z], "_copy")
    assert (a.name, copy.eval({a: [[0.0]], b: [[2.0]]})) == ("x_copy", 3)
    assert is_in_ancestors(z.owner, z.owner.inputs[0].owner)
    assert not is_in_ancestors(z.owner.inputs[0].owner, z.owner)
    assert (difference([1, 2], [2]), hist("aab")) == ([1], {"a": 2, "b": 1})
    assert give_variables_names([T.scalar("v")]) == ["v_0"]
    assert (contains_nan([0.0, float("nan")]), contains_inf([1])) == (True, False)
    product = blas.gemm_inplace(x, 2.0, y, y, 3.0)
    assert product.eval({x: [[1.0]], y: [[5.0]]}) == 53
    mode = theano.Mode(optimizer=OPT_NONE)
    assert theano.function([x], x * 2, mode=mode)([[1.0]]) == 2
    theano.pprint.assign(T.exp, theano.printing.FunctionPrinter("e"))
    assert "x" in theano.pprint(x)
    assert [v.name for v in theano.scalar.floats("p", "q")] == ["p", "q"]
    assert theano.scalar.convert_to_int8(theano.scalar.float64()).dtype == "int8"
    image, w = T.dtensor4("image"), T.dtensor4("w")
    given = {image: np.arange(16.0).reshape(1, 1, 4, 4), w: np.arange(4.0).reshape(1, 1, 2, 2)}
    old = conv.ConvOp((1, 4, 4), (2, 2), 1, 1, output_mode="full")(image, w)
    new = T.nnet.conv2d(image, w, border_mode="full")
    np.testing.assert_array_equal(old.eval(given), new.eval(given))
    patches = neighbours.Images2Neibs("valid")(image, (2, 2))
    assert patches.eval({image: given[image]}).shape == (4, 4)
    assert abstract_conv.get_conv_gradinputs_shape_1axis(3, 5, "valid", 1, 1) == 7
    assert abstract_conv.get_conv_gradweights_shape_1axis(7, 5, (1, 1), 1, 1) is None
    assert abstract_conv.get_conv_gradweights_shape_1axis(7, 5, "valid", 1, 1) == 3

"""Theano's module paths, and where their names come from.

Each line of the table has a path, then modules in which its names are looked up, in this order:
those of :mod:`symdnn.compat.theano.names` by their last name, and modules of symdnn; at the end in
``names.commons``, what modules of Theano have because they import it. A line
``path = other`` has the same names as another path. A module of symdnn that does not exist in this
version offers nothing; ``T`` is short for ``symdnn.tensor``.
"""

from __future__ import annotations

import re

__all__ = ["FUNCTIONS_FIRST", "MODULES"]

_TABLE = """
theano                                  top gof_names symdnn
theano.version                          top
theano.configdefaults                   flags.configdefaults flags.configparser
theano.configparser                     flags.configparser symdnn.compat.theano.settings
theano.printing                         printing_names symdnn.printing symdnn
theano.gradient                         gradient_names symdnn.gradient
theano.updates                          top
theano.ifelse                           scan_names
theano.breakpoint
theano.raise_op                         gradient_names
theano.pathparse
theano.d3viz                            printing_names
theano.d3viz.d3viz                      = theano.d3viz
theano.typed_list                       lists.typed_list
theano.typed_list.basic                 = theano.typed_list
theano.typed_list.type                  = theano.typed_list
theano.compat                           pythons
theano.compat.six                       pythons
theano.compat.six.moves                 pythons
theano.compat.python2x                  pythons
theano.misc
theano.misc.pkl_utils                   pkl_utils
theano.misc.ordered_set                 pythons
theano.misc.frozendict                  pythons
theano.misc.safe_asarray                top
theano.misc.may_share_memory            compile_names
theano.misc.strutil                     pythons
theano.tests
theano.tests.unittest_tools             testing
theano.tests.disturb_mem                testing
theano.tests.record                     testing

theano.gof                              gof_names
theano.gof.graph                        = theano.gof
theano.gof.op                           = theano.gof
theano.gof.type                         = theano.gof
theano.gof.fg                           = theano.gof
theano.gof.utils                        = theano.gof
theano.gof.opt                          = theano.gof
theano.gof.toolbox                      = theano.gof
theano.gof.link                         = theano.gof
theano.gof.null_type                    = theano.gof
theano.gof.params_type                  = theano.gof
theano.gof.optdb                        = theano.gof
theano.gof.vm                           = theano.gof
theano.gof.cc                           = theano.gof
theano.gof.destroyhandler               = theano.gof
theano.gof.callcache                    = theano.gof
theano.gof.sched                        = theano.gof
theano.gof.env                          = theano.gof
theano.gof.python25                     pythons

theano.graph                            = theano.gof
theano.graph.basic                      = theano.gof
theano.graph.fg                         = theano.gof
theano.graph.null_type                  = theano.gof
theano.graph.op                         = theano.gof
theano.graph.opt                        = theano.gof
theano.graph.toolbox                    = theano.gof
theano.graph.type                       = theano.gof
theano.graph.utils                      = theano.gof

theano.compile                          compile_names
theano.compile.io                       = theano.compile
theano.compile.function                 = theano.compile
theano.compile.function_module          = theano.compile
theano.compile.pfunc                    = theano.compile
theano.compile.mode                     = theano.compile
theano.compile.monitormode              = theano.compile
theano.compile.nanguardmode             = theano.compile
theano.compile.debugmode                = theano.compile
theano.compile.profilemode              = theano.compile
theano.compile.profiling                = theano.compile
theano.compile.builders                 = theano.compile
theano.compile.ops                      = theano.compile
theano.compile.sharedvalue              = theano.compile
theano.compile.sandbox                  = theano.compile
theano.compile.sandbox.sharedvalue      = theano.compile
theano.compile.sandbox.pfunc            = theano.compile
theano.compile.sandbox.shared_randomstreams     random_names

theano.scalar                           scalar_names
theano.scalar.basic                     = theano.scalar
theano.scalar.basic_scipy               = theano.scalar
theano.scalar.sharedvar                 = theano.scalar

theano.scan                             scan_names
theano.scan.utils                       scan_names
theano.scan_module                      scan_names
theano.scan_module.scan                 = theano.scan_module
theano.scan_module.scan_views           = theano.scan_module
theano.scan_module.scan_op              = theano.scan_module
theano.scan_module.scan_utils           = theano.scan_module
theano.scan_module.scan_checkpoints     = theano.scan_module
theano.sandbox
theano.sandbox.scan                     = theano.scan_module
theano.sandbox.scan_module              = theano.scan_module
theano.sandbox.rng_mrg                  random_names
theano.sandbox.multinomial              random_names
theano.sandbox.softsign                 T.nnet
theano.sandbox.neighbours               nnet_names T.nnet
theano.sandbox.neighbourhoods           nnet_names T.nnet
theano.sandbox.conv                     nnet_names T.nnet
theano.sandbox.downsample               conv_names T.signal.pool
theano.sandbox.blocksparse              nnet_names
theano.sandbox.fourier
theano.sandbox.linalg                   linalg_names T.slinalg T.nlinalg T.linalg
theano.sandbox.linalg.ops               = theano.sandbox.linalg
theano.sandbox.linalg.kron              = theano.sandbox.linalg
theano.sandbox.solve                    = theano.sandbox.linalg
theano.sandbox.minimal
theano.sandbox.debug                    testing

theano.tensor                           tensor_names class_names elementwise_names T
theano.tensor.basic                     = theano.tensor
theano.tensor.var                       = theano.tensor
theano.tensor.type                      = theano.tensor
theano.tensor.type_other                lists.slices tensor_names class_names elementwise_names T
theano.tensor.sharedvar                 = theano.tensor
theano.tensor.elemwise                  = theano.tensor
theano.tensor.subtensor                 = theano.tensor
theano.tensor.extra_ops                 = theano.tensor
theano.tensor.sort                      = theano.tensor
theano.tensor.utils                     = theano.tensor
theano.tensor.blas                      = theano.tensor
theano.tensor.io                        = theano.tensor
theano.tensor.xlogx                     = theano.tensor
theano.tensor.deprecated                = theano.tensor
theano.tensor.opt                       gof_names T.opt tensor_names class_names elementwise_names T
theano.tensor.opt_uncanonicalize        = theano.tensor.opt
theano.tensor.inplace                   elementwise_names
theano.tensor.tensor_grad               gradient_names symdnn.gradient
theano.tensor.raw_random                random_names
theano.tensor.randomstreams             random_names
theano.tensor.shared_randomstreams      random_names
theano.tensor.slinalg                   linalg_names T.slinalg T.nlinalg T.linalg
theano.tensor.nlinalg                   linalg_names T.nlinalg T.slinalg T.linalg
theano.tensor.fft                       T.theano_fft
theano.tensor.fourier
theano.tensor.signal                    T.signal
theano.tensor.signal.pool               conv_names T.signal.pool
theano.tensor.signal.downsample         conv_names T.signal.pool
theano.tensor.signal.conv               T.signal.conv
theano.tensor.nnet                      elementwise_names nnet_names class_names T.nnet
theano.tensor.nnet.nnet                 = theano.tensor.nnet
theano.tensor.nnet.sigm                 = theano.tensor.nnet
theano.tensor.nnet.conv                 nnet_names T.nnet.conv
theano.tensor.nnet.Conv3D               conv_names
theano.tensor.nnet.ConvGrad3D           conv_names
theano.tensor.nnet.ConvTransp3D         conv_names
theano.tensor.nnet.conv3d2d             conv_names
theano.tensor.nnet.abstract_conv        conv_names T.nnet.abstract_conv
theano.tensor.nnet.abstract_conv2d      = theano.tensor.nnet.abstract_conv
theano.tensor.nnet.corr                 conv_names
theano.tensor.nnet.corr3d               conv_names
theano.tensor.nnet.bn                   nnet_names T.nnet.bn T.nnet
theano.tensor.nnet.ctc                  T.nnet.ctc nnet_names
theano.tensor.nnet.neighbours           nnet_names T.nnet.neighbours T.nnet
theano.tensor.nnet.blocksparse          nnet_names
theano.tensor.nnet.opt

theano.sparse                           symdnn.sparse sparse_names
theano.sparse.basic                     = theano.sparse
theano.sparse.type                      = theano.sparse
theano.sparse.sharedvar                 = theano.sparse
theano.sparse.utils                     = theano.sparse
theano.sparse.sandbox                   = theano.sparse
theano.sparse.sandbox.sp                = theano.sparse
theano.sparse.sandbox.sp2               = theano.sparse
theano.sparse.sandbox.truedot           = theano.sparse

theano.gpuarray                         gpu_names
theano.gpuarray.type                    = theano.gpuarray
theano.gpuarray.basic_ops               = theano.gpuarray
theano.gpuarray.elemwise                = theano.gpuarray
theano.gpuarray.subtensor               = theano.gpuarray
theano.gpuarray.blas                    = theano.gpuarray
theano.gpuarray.nnet                    = theano.gpuarray
theano.gpuarray.pool                    = theano.gpuarray
theano.gpuarray.opt                     gpu_names
theano.gpuarray.opt_util                gpu_names
theano.gpuarray.extra_ops               = theano.gpuarray
theano.gpuarray.sort                    = theano.gpuarray
theano.gpuarray.neighbours              = theano.gpuarray
theano.gpuarray.blocksparse             nnet_names
theano.gpuarray.ctc                     T.nnet.ctc nnet_names
theano.gpuarray.fft                     T.theano_fft
theano.gpuarray.linalg                  linalg_names T.slinalg T.nlinalg T.linalg
theano.gpuarray.rng_mrg                 random_names
theano.gpuarray.multinomial             random_names
theano.gpuarray.dnn                     dnn_names symdnn.gpu.dnn gpu_names
theano.gpuarray.cudnn_defs              cudnn_defs
theano.gpuarray.tests
theano.gpuarray.tests.config            testing

theano.sandbox.cuda                     gpu_names
theano.sandbox.cuda.type                = theano.gpuarray
theano.sandbox.cuda.var                 = theano.gpuarray
theano.sandbox.cuda.basic_ops           = theano.gpuarray
theano.sandbox.cuda.elemwise            = theano.gpuarray
theano.sandbox.cuda.blas                = theano.gpuarray
theano.sandbox.cuda.nnet                = theano.gpuarray
theano.sandbox.cuda.opt                 = theano.gpuarray.opt
theano.sandbox.cuda.neighbours          = theano.gpuarray
theano.sandbox.cuda.blocksparse         nnet_names
theano.sandbox.cuda.fftconv             = theano.gpuarray
theano.sandbox.cuda.rng_curand          random_names
theano.sandbox.cuda.cula                linalg_names T.slinalg
theano.sandbox.cuda.cusolver            linalg_names T.slinalg T.nlinalg T.linalg
theano.sandbox.cuda.extra_ops           = theano.gpuarray
theano.sandbox.cuda.opt_util            = theano.gpuarray.opt
theano.sandbox.cuda.pool                = theano.gpuarray
theano.sandbox.cuda.dnn                 dnn_names symdnn.gpu.dnn gpu_names
"""


def _full(source: str) -> str:
    """``T.nnet`` is short for ``symdnn.tensor.nnet``."""
    return re.sub(r"^T\b", "symdnn.tensor", source)


def _parsed(table: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, table.splitlines())):
        path, _, sources = line.partition(" ")
        sources = " ".join(_full(s) for s in sources.split())
        if sources.startswith("="):
            found[path] = found[sources[1:].strip()]
        else:
            found[path] = f"{sources} commons" if sources else ""
    return found | {
        f"theano.sandbox.{path.removeprefix('theano.')}": sources  # where 0.7 and 0.8 had it
        for path, sources in found.items()
        if path.partition(".tests")[0].startswith("theano.gpuarray") and ".tests" not in path
    }


#: Path -> the modules in which its names are looked up, separated by spaces.
MODULES = _parsed(_TABLE)

#: Paths that are modules and functions: as attributes of their parents they are the functions.
FUNCTIONS_FIRST = frozenset({
    "theano.compile.function", "theano.compile.pfunc", "theano.d3viz.d3viz", "theano.scan",
    "theano.scan_module.scan", "theano.compile.sandbox.pfunc", "theano.sandbox.linalg.kron",
    "theano.sandbox.scan",
    "theano.tensor.sort", "theano.tensor.var",
    "theano.tensor.nnet.conv2d", "theano.sandbox.solve", "theano.tensor.nnet.ctc",
})  # fmt: skip

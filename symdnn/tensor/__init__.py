"""``T``: tensors and the functions on them, under the names of Theano, NumPy and PyTorch.

Unless a function says otherwise:

- Arguments are variables, arrays, numbers, or lists of these. The result is a variable: a value
  takes a call of a function, or ``y.eval({x: value})``.
- Elementwise functions broadcast as in NumPy, but only dimensions of the *static* size 1 do. The
  dtype is the upcast of the arguments; a Python number takes that of the array beside it. ``exp``
  and its like give ``floatX`` (float32) for ints and bools, and keep the dtype of floats.
- ``axis`` may be negative. Reductions take an int, several, or None for all.
- Errors are classes of :mod:`symdnn.errors`, raised when the expression is written where types
  tell, else in the call: ``TypeMismatch``, ``NdimMismatch``, ``ShapeMismatch``, ``AxisError``.
- A result is differentiable (:func:`symdnn.grad`) wherever the function is.

Each module of this package has the public functions of one family and defines no op; this one
collects them, and the submodules ``T.nnet``, ``T.signal``, ``T.linalg``, ...
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.autodiff import Lop as Lop
from symdnn.autodiff import Rop as Rop
from symdnn.autodiff import grad as grad
from symdnn.autodiff import verify_grad as verify_grad
from symdnn.autodiff_rows import hessian as hessian
from symdnn.autodiff_rows import jacobian as jacobian
from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.matrix.determinant import det as det
from symdnn.ops.matrix.determinant import slogdet as slogdet
from symdnn.ops.matrix.expm import matrix_power as matrix_power
from symdnn.ops.matrix.functions import block_diag as block_diag
from symdnn.ops.numpy_names.numpy_arrays import *
from symdnn.ops.numpy_names.numpy_math import *
from symdnn.ops.numpy_names.numpy_more import *
from symdnn.ops.numpy_names.numpy_numbers import *
from symdnn.ops.numpy_names.numpy_polynomials import *
from symdnn.ops.numpy_names.numpy_reductions import *
from symdnn.ops.numpy_names.numpy_sets import *
from symdnn.ops.torch_names.torch_arrays import *
from symdnn.ops.torch_names.torch_distances import *
from symdnn.ops.torch_names.torch_math import *
from symdnn.ops.torch_names.torch_more import *
from symdnn.ops.torch_names.torch_scatter import *
from symdnn.ops.torch_names.torch_signal import *
from symdnn.tensor import extra_ops as extra_ops
from symdnn.tensor import fft as fft
from symdnn.tensor import linalg as linalg
from symdnn.tensor import nlinalg as nlinalg
from symdnn.tensor import nnet as nnet
from symdnn.tensor import opt as opt
from symdnn.tensor import random as random
from symdnn.tensor import signal as signal
from symdnn.tensor import slinalg as slinalg
from symdnn.tensor.constructors import *
from symdnn.tensor.elementwise import *
from symdnn.tensor.indexing import *
from symdnn.tensor.numpy_names import *
from symdnn.tensor.products import *
from symdnn.tensor.reductions import *
from symdnn.tensor.shaping import *
from symdnn.tensor.tools import *

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "TENSOR")

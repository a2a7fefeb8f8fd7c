"""Every exception of symdnn. Each subclasses the usual Python one: old ``except`` clauses work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class SymdnnError(Exception):
    """Base of all errors that symdnn raises on purpose."""

    #: The ``symdnn.graph.origin.Origin`` of the node that failed in a call, until the call tells.
    origin: Any = None


class ConfigError(SymdnnError, ValueError):
    """A value that the flag does not accept."""


class UnknownFlagError(ConfigError, AttributeError):
    """A flag of this name does not exist."""


class GraphError(SymdnnError, ValueError):
    """A graph is malformed: a cycle, a missing input, an input used twice."""


class OnnxMissing(SymdnnError, ImportError):
    """``symdnn.onnx`` is imported, and the package onnx is not installed."""


class ModelError(SymdnnError, ValueError):
    """A file with a model is damaged or inconsistent, or has something that symdnn does not
    support.
    """


class MissingInputError(GraphError):
    """A graph needs a variable that is neither an input nor has a value."""


class UnusedInputError(GraphError):
    """An input of a function does not influence its outputs or updates."""


class InputError(SymdnnError, TypeError):
    """A value handed to a function, or to ``set_value``, does not fit the type wanted."""


class DimensionMismatch(SymdnnError, ValueError):
    """Shapes that had to agree do not."""


class ArgumentShapeMismatch(DimensionMismatch, InputError):
    """A value for an input or a shared variable has another ndim or shape than its type says."""


class AssertionFailed(SymdnnError, AssertionError):
    """An ``Assert`` in the graph saw a false condition."""


class IndexOutOfRange(SymdnnError, IndexError):
    """An index or a label is outside of the array that it indexes."""


class DataError(SymdnnError, ValueError):
    """Values met while running that an op does not take: weights below 0, empty ranges."""


class LinAlgError(DataError, np.linalg.LinAlgError):
    """A matrix met while running has no such result: singular, not positive definite, with NaN."""


class OptionError(SymdnnError, ValueError):
    """An argument that says how (a mode, a size, a probability) has a value that is not taken."""


class UnknownWord(OptionError, InputError):
    """An argument that is one of a few words (a mode, a reduction) is none of them."""


class PaddingError(OptionError, NotImplementedError):
    """A pooling's padding does not go with its window or its borders."""


class ArgumentError(SymdnnError, TypeError):
    """A function is called with an argument that it does not know, or without one it needs."""


class SymbolicValueError(SymdnnError, TypeError):
    """Python needs a value of a variable that is known only in a call: its length, truth,
    elements.
    """


class DtypeError(SymdnnError, TypeError):
    """A dtype of this name does not exist here."""


class DataDependentShape(SymdnnError):
    """The shape of an output depends on the data of an input, not only on its shape."""


class NonDifferentiable(SymdnnError, TypeError):
    """There is no gradient (of an integer, of an op without ``vjp``)."""


class DisconnectedInput(SymdnnError, ValueError):
    """The cost does not depend on a variable with respect to which it is differentiated."""


class RetraceWarning(UserWarning):
    """A function of ``symdnn.jit`` is traced again and again: its arguments change their kind."""


class UnusedParameter(UserWarning):
    """A trained parameter has no influence on the loss: it is not updated."""


class NotEvaluable(SymdnnError):
    """A graph cannot be evaluated: an op has no reference, or a value is missing."""


class NotScalarConstantError(SymdnnError, ValueError):
    """A number is needed that is unknown before the function runs."""


class RewriteError(SymdnnError, RuntimeError):
    """A rewrite failed or produced a graph of another type."""


class NotLowered(SymdnnError, RuntimeError):
    """An op has no kernel on the target, and ``assert_lowered`` (or a mode) forbids that."""


class NanDetected(SymdnnError, AssertionError, ValueError):
    """``NanGuardMode`` met a NaN, an infinity or a very large value."""


class DebugModeError(SymdnnError, RuntimeError):
    """``DebugMode`` found a kernel, a rewrite or an in-place write that gives another result."""


class FileFormatError(SymdnnError, ValueError):
    """A file of parameters or of a function is corrupt, of another kind, or of a future version."""


class NumberOutOfRange(SymdnnError, OverflowError):
    """A Python int does not fit the integer dtype of the array that it meets."""


class TypeMismatch(SymdnnError, TypeError):
    """An op was applied to types it does not take.

    ``op`` names it, ``wanted`` says in words what it accepts, ``got`` is the actual value, ``do``
    is advice.
    """

    def __init__(self, op: Any, wanted: str, got: Any, do: str = "") -> None:
        self.op, self.wanted, self.got, self.do = op, wanted, got, do
        shown = ", ".join(map(str, got)) if isinstance(got, list | tuple) else str(got)
        text = f"{op}: wanted {wanted}, got {shown}"
        super().__init__(f"{text}. {do}" if do else text)


class NdimMismatch(TypeMismatch, ValueError):
    """A tensor, a shape or a pattern has another number of dimensions than an op takes."""


class AxisError(NdimMismatch, IndexError):
    """A tensor has no such axis, or an axis is named twice (as ``numpy.exceptions.AxisError``)."""


class StateMismatch(TypeMismatch, ValueError):
    """A step of a loop returns a state of another type than it takes."""


class ShapeMismatch(DimensionMismatch):
    """Shapes handed to an op at plan or run time do not fit it."""

    def __init__(self, op: Any, wanted: str, got: Any, do: str = "") -> None:
        self.op, self.wanted, self.got, self.do = op, wanted, got, do
        text = f"{op}: wanted {wanted}, got {got}"
        super().__init__(f"{text}. {do}" if do else text)


class SpecifiedShapeMismatch(ShapeMismatch, AssertionFailed):
    """A value has another shape than ``specify_shape`` says."""


class KernelCompileError(SymdnnError, RuntimeError):
    """A compiler refused the source of a kernel; ``log`` and ``source`` say what and where."""

    def __init__(self, log: str, source: str, options: Any, compiler: str = "NVRTC") -> None:
        self.log, self.source, self.options = log, source, tuple(options)
        super().__init__(f"{compiler} refused a kernel ({' '.join(self.options)}):\n{log}")


class CudnnError(SymdnnError, RuntimeError):
    """cuDNN can't be used, or one of its functions failed."""


class CudnnNotFound(CudnnError):
    """No cuDNN was found; the message lists every place that was searched and the problem there.

    ``tried`` has the same as values of :class:`symdnn.detect.Candidate`.
    """

    def __init__(self, message: str, tried: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.tried = list(tried)


class CudnnRequired(CudnnNotFound, AssertionError):
    """cuDNN is demanded (``optimizer_including=cudnn``, ``dnn.enabled=True``) and can't be used."""


class CudnnMixed(CudnnError):
    """Libraries of cuDNN from two places are in one process; the message names both."""


class CudnnVersionError(CudnnError):
    """cuDNN was found, but of a version that symdnn can't use."""


class CudnnArgumentError(InputError, ValueError):
    """An argument of a cuDNN function can't be passed to C; the function was not called."""


class UnsupportedAlgorithm(CudnnError):
    """cuDNN does not take the algorithm that was named for the shapes at hand."""


class NoAlgorithm(UnsupportedAlgorithm):
    """cuDNN takes a convolution by no algorithm at all."""


class OverBudget(SymdnnError, ValueError):
    """No plan is within ``dnn.workspace_budget``, ``dnn.conv.error_bound`` or ``memory_budget``."""


class CudaUnavailable(SymdnnError, RuntimeError):
    """The CUDA target was chosen and can't be used; the message says why."""


class GpuNotFound(CudaUnavailable):
    """There is no such GPU, or it is too old."""


class OutOfDeviceMemory(SymdnnError, MemoryError):
    """The device is out of memory; no shared variable was changed."""


class DistributedError(SymdnnError, RuntimeError):
    """What several processes do together does not work: no launcher, no engine, a broken world."""


class CollectiveTimeout(DistributedError, TimeoutError):
    """A rank waited for others longer than the flag ``distributed.timeout`` says."""


class CollectiveMismatch(DistributedError):
    """Ranks are about to run different collectives, which would hang or mix up values."""


class PeerFailed(DistributedError):
    """Another rank failed or ended, so this one cannot go on."""

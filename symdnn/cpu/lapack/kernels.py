"""Kernels of linear algebra by LAPACK.

LAPACK's matrices are stored by columns, so it sees each of ours transposed. The routines are called
for that transpose: what is a lower triangle here is an upper one there, and no matrix is copied for
its order. Results of several columns of LU solutions are, which ``getrs`` wants by columns.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.lapack.library import Calls, Each, Scratch, Shared, blas_threads, prefix
from symdnn.cpu.lapack.small import small_launch
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.graph.typing import Array, Arrays, OpT
from symdnn.ops.matrix.base import failed
from symdnn.ops.matrix.cholesky import Cholesky
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.qr import QR
from symdnn.ops.matrix.solve import MatrixInverse, Solve

LAPACK = Traits("lapack", asks_threads=True, runs_user_code=True)

#: Matrices of up to so many rows are divided between threads; for larger ones BLAS has its own.
_MAX_ROWS_OF_TASKS = 64
_WORK_PER_THREAD = 1 << 17
_MIN_ROWS_FOR_BLAS_THREADS = 256
#: Up to so many rows QR factors are made a reflector at a time.
_UNBLOCKED = 32


class Stack:
    """A stack of ``count`` matrices of at most ``n`` rows, and how its calls are divided."""

    def __init__(self, dtype: str, count: int, n: int) -> None:
        self.letter, self.dtype, self.count, self.n = prefix(dtype), np.dtype(dtype), count, n
        shared = count > 1 and n <= _MAX_ROWS_OF_TASKS
        self.tasks = min(count, threads.threads(count * n**3, _WORK_PER_THREAD)) if shared else 1
        self.threads = threads.allowed() if n >= _MIN_ROWS_FOR_BLAS_THREADS else 1

    def calls(self, name: str, *arguments: Shared | Each | Scratch) -> Calls:
        """Calls of the routine of this name, without its first letter."""
        return Calls(self.letter + name, self.count, self.tasks, arguments)

    def each(self, *dims: int, shared: bool = False) -> Each:
        """An array with a matrix of these dimensions for each call, or one for all."""
        return Each(0 if shared else prod(dims) * self.dtype.itemsize)

    def number(self, value: float) -> Shared:
        """A factor in the dtype of the matrices."""
        return Shared(value, self.dtype.name)

    def info(self) -> Array:
        """Room for the status of each call."""
        return np.zeros(self.count, np.int32)


INFO = Each(4)
_ONE = np.int32(1)


def word(text: str) -> Shared:
    """A letter that says how."""
    return Shared(text)


def sized(value: int) -> Shared:
    """A size."""
    return Shared(value)


class LapackKernel(Kernel[OpT]):
    """Base of the kernels: ``launch(inputs, outputs)`` is :meth:`launcher`'s."""

    traits = LAPACK

    def __init__(self, name: str) -> None:
        self.name = f"lapack.{name}"

    def refuses(self, call: Call[OpT]) -> str | None:
        """Nothing but empty arrays, where loops can be compiled."""
        if call.has_sizes and any(0 in t.shape for t in (*call.inputs, *call.outputs)):
            return "there are no elements"
        return compiler_refusal()

    def bind(self, call: Call[OpT]) -> Any:
        """The launch for contiguous outputs; others are copied."""
        launcher = self.launcher(call)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            made = [o if o.flags.c_contiguous else np.empty(o.shape, o.dtype) for o in outputs]
            launcher(inputs, made)
            for whole, out in zip(made, outputs, strict=True):
                if whole is not out:
                    np.copyto(out, whole)

        return small_launch(call, self.tasks(call), launch) or launch

    def tasks(self, call: Call[OpT]) -> int:
        """Between how many threads a call is divided."""
        shape = max((t.shape for t in call.inputs), key=len)
        return Stack(call.outputs[0].dtype, prod(shape[:-2]), max(shape[-2:])).tasks

    def launcher(self, call: Call[OpT]) -> Any:
        """A function of inputs and contiguous outputs."""
        raise NotImplementedError


def report(op: Any, info: Array, what: str, out: Array) -> None:
    """An error, or NaN, for matrices whose ``info`` is not 0."""
    if not (info.any() if info.size > 1 else info[0]):
        return
    wrong = np.flatnonzero(info)
    if op.on_error == "raise":
        raise failed(op, int(wrong[0]), what)
    out.reshape(info.size, -1)[wrong] = np.nan


def own_or_one(x: Array, lead: tuple[int, ...]) -> tuple[Array, bool]:
    """``x`` contiguous with a matrix for each of ``lead``, or one matrix for all (True)."""
    if x.flags.c_contiguous and x.shape[:-2] == lead:
        return x, False
    if prod(x.shape[:-2]) == 1:
        return np.ascontiguousarray(x), True
    wide = np.broadcast_to(x, lead + x.shape[-2:])
    return np.ascontiguousarray(wide), False


class Factor:
    """Factors the triangle of each matrix that is read, in place, and sets the other one to 0.

    ``potrf``, then ``laset`` on the part beside the diagonal.
    """

    def __init__(self, stack: Stack, lower: bool) -> None:
        n, self.stack = stack.n, stack
        self.potrf = stack.calls(
            "potrf", word("U" if lower else "L"), sized(n), stack.each(n, n), sized(n), INFO
        )
        zero, self.first = stack.number(0), 1 if lower else n
        self.laset = stack.calls(
            "laset", word("L" if lower else "U"), sized(n - 1), sized(n - 1), zero, zero,
            stack.each(n, n), sized(n),
        )  # fmt: skip

    def __call__(self, matrices: Array) -> Array:
        """Factor contiguous matrices; returns the status of each."""
        info = self.stack.info()
        self.potrf(matrices, info)
        if self.stack.n > 1:
            self.laset(
                matrices.reshape(-1)[self.first :],
            )
        return info


# -- Cholesky -------------------------------------------------------------------------------------


class CholeskyKernel(LapackKernel[Cholesky]):
    """``potrf``, in the result's own memory."""

    def launcher(self, call: Call[Cholesky]) -> Any:
        """Factors a copy."""
        op, shape = call.op, call.inputs[0].shape
        stack = Stack(call.inputs[0].dtype, prod(shape[:-2]), shape[-1])
        factor = Factor(stack, op.lower)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            np.copyto(outputs[0], inputs[0])
            with blas_threads(stack.threads):
                info = factor(outputs[0])
            # OpenBLAS does not report a NaN, which goes on to the last element.
            unknown = np.isnan(outputs[0].reshape(stack.count, -1)[:, -1])
            if unknown.any():
                info[unknown] = 1
            report(op, info, "not positive definite", outputs[0])

        return launch


# -- triangles ------------------------------------------------------------------------------------


def triangle_calls(
    stack: Stack, columns: int, shared: bool, lower: bool, how: str, unit: bool = False
) -> Calls:
    """Calls with (triangles, right sides), which become the solutions of ``how(a) x = b``.

    ``how`` is ``N``, ``T`` or ``C``. With the right sides as rows it is ``x.T m = b.T`` for the
    transpose ``m`` of ``a`` that BLAS sees.
    """
    n = stack.n
    uplo, diag = word("U" if lower else "L"), word("U" if unit else "N")
    a = stack.each(n, n, shared=shared)
    if columns == 1 and how != "C":
        turned = word("T" if how == "N" else "N")
        return stack.calls("trsv", uplo, turned, diag, sized(n), a, sized(n), stack.each(n),
                           sized(1))  # fmt: skip
    return stack.calls(
        "trsm", word("R"), uplo, word(how), diag, sized(columns), sized(n), stack.number(1), a,
        sized(n), stack.each(n, columns), sized(columns),
    )  # fmt: skip


class TriangularKernel(LapackKernel[Solve]):
    """``trsm`` and ``trsv``, in the result's own memory."""

    def refuses(self, call: Call[Solve]) -> str | None:
        """Matrices that are no triangles."""
        if not call.op.triangular:
            return f"it is for triangles, not for {call.op.A_structure} matrices"
        return super().refuses(call)

    def launcher(self, call: Call[Solve]) -> Any:
        """Copies the right sides, and solves there."""
        op, (a, _), (out,) = call.op, call.inputs, call.outputs
        n, columns = out.shape[-2:]
        lead = out.shape[:-2]
        stack = Stack(out.dtype, prod(lead), n)
        shared = prod(a.shape[:-2]) == 1
        solve = triangle_calls(
            stack, columns, shared, op.reads_lower, "T" if op.transposed else "N", op.unit_diagonal
        )

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (m, b), (x,) = inputs, outputs
            singular = None if op.unit_diagonal else zero_on_diagonal(m)
            np.copyto(x, b)
            with blas_threads(stack.threads):
                solve(own_or_one(m, lead)[0], x)
            if singular is not None:
                report(op, np.broadcast_to(singular, lead).ravel(), "singular", x)

        return launch


def zero_on_diagonal(m: Array) -> Array | None:
    """Which matrices have a 0 on the diagonal; None if there are none."""
    diagonal = np.einsum("...ii->...i", m)
    return None if diagonal.all() else ~diagonal.all(-1)


class HermitianKernel(LapackKernel[Solve]):
    """``potrf`` and two triangular solutions; matrices that are indefinite by ``gesv``."""

    def refuses(self, call: Call[Solve]) -> str | None:
        """Other structures, and the transpose of complex matrices."""
        op = call.op
        if op.A_structure != "hermitian":
            return f"it is for Hermitian matrices, not for {op.A_structure} ones"
        if op.transposed and call.inputs[0].dtype.startswith("complex"):
            return "it has no transposed complex matrices"
        return super().refuses(call)

    def launcher(self, call: Call[Solve]) -> Any:
        """Factors a copy."""
        op, (a, _), (out,) = call.op, call.inputs, call.outputs
        n, columns, lead = out.shape[-2], out.shape[-1], out.shape[:-2]
        factors = Stack(out.dtype, prod(a.shape[:-2]), n)
        stack = Stack(out.dtype, prod(lead), n)
        factor = Factor(factors, op.lower)
        shared = factors.count == 1
        steps = [
            triangle_calls(stack, columns, shared, op.lower, how)
            for how in (("N", "C") if op.lower else ("C", "N"))
        ]

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (m, b), (x,) = inputs, outputs
            part = np.array(m, order="C")
            np.copyto(x, b)
            with blas_threads(stack.threads):
                info = factor(part)
                for step in steps:
                    step(own_or_one(part, lead)[0], x)
            if info.any():
                indefinite(op, info.reshape(m.shape[:-2]), [m, b], x)

        return launch


def indefinite(op: Solve, info: Array, operands: Arrays, x: Array) -> None:
    """Solve the systems that have no Cholesky factor by the reference."""
    lead = x.shape[:-2]
    wide = [np.broadcast_to(v, lead + v.shape[-2:]) for v in operands]
    none, quiet = np.zeros(lead, bool), replace(op, on_error="nan")
    for i in map(tuple, np.argwhere(np.broadcast_to(info, lead))):
        x[i] = quiet.reference(*[v[i] for v in wide])
        none[i] = np.isnan(x[i]).all()
    report(op, none.ravel(), op.problem, x)


# -- LU -------------------------------------------------------------------------------------------


def lu_calls(stack: Stack, m: int, n: int) -> Calls:
    """Calls of ``getrf`` with (matrices of m columns and n rows, pivots, info)."""
    return stack.calls(
        "getrf", sized(n), sized(m), stack.each(m, n), sized(n), Each(4 * min(m, n)), INFO
    )


class LUFactorKernel(LapackKernel[LUFactor]):
    """``getrf``, with exchanged columns in the result's own memory."""

    def launcher(self, call: Call[LUFactor]) -> Any:
        """Factors a copy, or a transposed one."""
        shape, columns = call.inputs[0].shape, call.op.pivoted == "columns"
        m, n = shape[-2:] if columns else shape[:-3:-1]
        stack = Stack(call.inputs[0].dtype, prod(shape[:-2]), max(m, n))
        getrf = lu_calls(stack, m, n)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (a,), (f, pivots) = inputs, outputs
            if columns:
                np.copyto(f, a)
                whole = f
            else:
                whole = np.array(np.swapaxes(a, -1, -2), order="C")
            with blas_threads(stack.threads):
                getrf(whole, pivots, stack.info())
            np.subtract(pivots, 1, out=pivots)
            if not columns:
                np.copyto(f, np.swapaxes(whole, -1, -2))

        return launch


class LUSolveKernel(LapackKernel[LUSolve]):
    """``getrs``; right sides of several columns are transposed for it."""

    def launcher(self, call: Call[LUSolve]) -> Any:
        """Solves in the result's own memory, or in a transposed copy."""
        op, (f, _, _), (out,) = call.op, call.inputs, call.outputs
        n, columns, lead = out.shape[-2], out.shape[-1], out.shape[:-2]
        by_columns = op.pivoted == "columns"
        stack = Stack(out.dtype, prod(lead), n)
        shared = prod(f.shape[:-2]) == 1
        getrs = stack.calls(
            "getrs", word("N" if op.transposed == by_columns else "T"), sized(n), sized(columns),
            stack.each(n, n, shared=shared), sized(n), Each(0 if shared else 4 * n),
            stack.each(columns, n), sized(n), INFO,
        )  # fmt: skip

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (lu, pivots, b), (x,) = inputs, outputs
            singular = zero_on_diagonal(lu)
            factors = own_or_one(lu if by_columns else lu.swapaxes(-1, -2), lead)[0]
            exchanged = pivots + _ONE
            if exchanged.shape[:-1] != lead:
                wide = np.broadcast_to(exchanged[..., None], (*lu.shape[:-1], 1))
                exchanged = own_or_one(wide, lead)[0]
            turned = x if columns == 1 else np.empty((*lead, columns, n), x.dtype)
            np.copyto(turned, b.swapaxes(-1, -2) if columns > 1 else b)
            with blas_threads(stack.threads):
                getrs(factors, exchanged, turned, stack.info())
            if columns > 1:
                np.copyto(x, turned.swapaxes(-1, -2))
            if singular is not None:
                report(op, np.broadcast_to(singular, lead).ravel(), "singular", x)

        return launch


class InverseKernel(LapackKernel[MatrixInverse]):
    """``getrf`` and ``getri``, in the result's own memory."""

    def launcher(self, call: Call[MatrixInverse]) -> Any:
        """Factors a copy, and inverts it there."""
        op, shape = call.op, call.inputs[0].shape
        n = shape[-1]
        stack = Stack(call.inputs[0].dtype, prod(shape[:-2]), n)
        getrf, length = lu_calls(stack, n, n), n * min(n, 64)
        getri = stack.calls(
            "getri", sized(n), stack.each(n, n), sized(n), Each(4 * n),
            Scratch(length * stack.dtype.itemsize), sized(length), INFO,
        )  # fmt: skip

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (a,), (y,) = inputs, outputs
            np.copyto(y, a)
            pivots, info = np.empty((stack.count, n), np.int32), stack.info()
            with blas_threads(stack.threads):
                getrf(y, pivots, info)
                getri(y, pivots, info)
            report(op, info, "singular", y)

        return launch


# -- QR -------------------------------------------------------------------------------------------


class QRKernel(LapackKernel[QR]):
    """``gelqf`` and ``orglq``: LAPACK sees ``a.T``, and ``a = q r`` is ``a.T = r.T q.T``."""

    def launcher(self, call: Call[QR]) -> Any:
        """Factors a copy, which is ``q``'s own memory where ``q`` has as many columns."""
        m, n = call.inputs[0].shape[-2:]
        k, lead = min(m, n), call.inputs[0].shape[:-2]
        made = {"reduced": k, "complete": m, "r": 0}[call.op.mode]  # columns of q
        ld, rows = max(n, made), call.outputs[-1].shape[-2]
        stack = Stack(call.inputs[0].dtype, prod(lead), max(m, n))
        length = ld * (1 if ld <= _UNBLOCKED else 32)
        own = (stack.each(m, ld), sized(ld), stack.each(k),
               Scratch(length * stack.dtype.itemsize), sized(length), INFO)  # fmt: skip
        gelqf = stack.calls("gelqf", sized(n), sized(m), *own)
        form = "orglq" if stack.dtype.kind == "f" else "unglq"
        orglq = stack.calls(form, sized(made), sized(m), sized(k), *own) if made else None
        zero = stack.number(0)
        laset = stack.calls(
            "laset",
            word("U"),
            sized(k - 1),
            sized(k - 1),
            zero,
            zero,
            stack.each(rows, n),
            sized(n),
        )

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            r = outputs[-1]
            whole = outputs[0] if made == ld else np.empty((*lead, m, ld), stack.dtype)
            np.copyto(whole[..., :n], inputs[0])
            tau, info = np.empty((stack.count, k), stack.dtype), stack.info()
            with blas_threads(stack.threads):
                gelqf(whole, tau, info)
                np.copyto(r[..., :k, :], whole[..., :k, :n])
                r[..., k:, :] = 0
                if k > 1:
                    laset(r.reshape(-1)[n:])
                if orglq is not None:
                    orglq(whole, tau, info)
            if made and made != ld:
                np.copyto(outputs[0], whole[..., :made])

        return launch


KERNELS: tuple[Row, ...] = (
    ((Cholesky,), (CholeskyKernel("potrf"),)),
    ((Solve,), (TriangularKernel("trsm"), HermitianKernel("posv"))),
    ((LUFactor,), (LUFactorKernel("getrf"),)),
    ((LUSolve,), (LUSolveKernel("getrs"),)),
    ((MatrixInverse,), (InverseKernel("getri"),)),
    ((QR,), (QRKernel("gelqf"),)),
)

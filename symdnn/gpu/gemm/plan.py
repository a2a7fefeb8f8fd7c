"""One GEMM for cuBLASLt: column-major operands, an epilogue, descriptors."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from symdnn.gpu.binding import libcublaslt as lt
from symdnn.gpu.binding.libcublaslt import Algorithm, CublasError, Heuristic

#: NVIDIA's advice for Hopper. With less the heuristics list no algorithms that divide sums well,
#: even where these need less: 64x65536x64 in float32 took 79 us with 17 MB.
WORKSPACE_BYTES = 32 << 20
#: Bytes of operands and result up to which a product reserves only what divided sums can fill.
_FEW_BYTES = 1 << 20

#: Sides of a block's tile of the result, terms of a sum below which it is not divided, and blocks
#: that run at a time on the largest card.
_TILE, _TERMS, _BLOCKS = 128, 32, 264
#: The largest alignment that cuBLASLt makes use of, and that of its workspace.
ALIGNMENT_BYTES = 256


def aligned(n: int) -> int:
    """An address, or a number of bytes, rounded up to what cuBLASLt makes use of."""
    return -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def alignment_of(pointer: int) -> int:
    """The largest power of two up to 256 that divides an address."""
    return ALIGNMENT_BYTES if pointer % ALIGNMENT_BYTES == 0 else pointer & -pointer


def workspace_for(rows: int, columns: int, terms: int, batch: int, itemsize: int) -> int:
    """The workspace of a GEMM: all of it, or of a small one parts of sums of as many blocks."""
    if (rows * terms + terms * columns + rows * columns) * batch * itemsize > _FEW_BYTES:
        return WORKSPACE_BYTES
    tiles = -(-rows // _TILE) * -(-columns // _TILE) * batch
    shares = min(-(-terms // _TERMS), max(1, -(-_BLOCKS // max(1, tiles))))
    return min(WORKSPACE_BYTES, tiles * shares * _TILE**2 * max(4, itemsize))


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix of a batch: ``rows`` by ``columns`` with leading dimension ``ld``."""

    rows: int
    columns: int
    ld: int
    transposed: bool = False
    batch_offset: int = 0


@dataclass(frozen=True)
class GemmSignature:
    """``D = epilogue(alpha op(A) op(B) + beta C)``: the key of a choice.

    ``dtype`` is that of A and B, or of A alone where ``dtype_b`` is another; ``result`` is that of
    C, D and the bias; ``compute`` is ``float32``, ``tf32``, ``float64`` or ``int32``. With
    ``scaled`` A and B have factors on the device. ``epilogue`` is a key of
    :data:`~symdnn.gpu.binding.libcublaslt.EPILOGUE`. ``alignment`` is that of the addresses of A,
    B, C and D.
    """

    dtype: str
    result: str
    compute: str
    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None = None
    batch: int = 1
    epilogue: str = ""
    alignment: tuple[int, int, int, int] = (ALIGNMENT_BYTES,) * 4
    workspace_limit: int = WORKSPACE_BYTES
    dtype_b: str = ""
    scaled: bool = False

    @property
    def k(self) -> int:
        """The length of the sums."""
        return self.a.rows if self.a.transposed else self.a.columns

    def __str__(self) -> str:
        sides = "NT"[self.a.transposed] + "NT"[self.b.transposed]
        stack = f"{self.batch} x " * (self.batch != 1)
        more = [self.epilogue] * bool(self.epilogue) + ["+ C"] * (self.c is not None)
        return " ".join(
            [f"{stack}{self.d.rows}x{self.d.columns}x{self.k} {sides} {self.dtype}->{self.result}",
             f"in {self.compute}", *more]
        )  # fmt: skip


@dataclass(frozen=True)
class Pointers:
    """Addresses of one run, or 0. ``bias`` is also that of a bias's gradient.

    ``a_scale`` and ``b_scale`` are those of the factors of A and B.
    """

    a: int
    b: int
    d: int
    c: int = 0
    bias: int = 0
    a_scale: int = 0
    b_scale: int = 0


@dataclass(frozen=True)
class GemmAlgorithm:
    """An algorithm of cuBLASLt, configured for a GEMM."""

    data: Algorithm
    workspace_bytes: int

    @property
    def number(self) -> int:
        """cuBLASLt's number of the algorithm."""
        return lt.get_attribute(self.data, lt.ALGORITHM["id"])

    @property
    def words(self) -> dict[str, Any]:
        """JSON values that identify it, for records."""
        words = [int(w) for w in self.data.data]
        return {"name": str(self.number), "algorithm": words,
                "workspace_bytes": self.workspace_bytes}  # fmt: skip

    def __str__(self) -> str:
        """The numbers of algorithm, tile and stages, and the split of the sum."""
        n = {word: lt.get_attribute(self.data, lt.ALGORITHM[word]) for word in lt.ALGORITHM}
        split = f", sum split in {n['split_k']}" if n["split_k"] > 1 else ""
        return (
            f"cuBLASLt algorithm {n['id']}, tile {n['tile']}, stages {n['stages']}{split}, "
            f"workspace {self.workspace_bytes} bytes"
        )


class GemmPlan:
    """A GEMM with its descriptors, which are destroyed with it."""

    def __init__(self, handle: int, signature: GemmSignature) -> None:
        s = signature
        self.signature, self.handle = s, c_void_p(handle)
        self._owned: list[tuple[str, c_void_p]] = []
        weakref.finalize(self, _destroy, self._owned)
        narrow = s.dtype in ("float16", "bfloat16", *lt.CODE_TYPE)
        scale = "int32" if s.compute == "int32" else "float32" if narrow else s.dtype
        self._scalar = _scalar_type(scale)
        self.description = self._own(
            "MatmulDesc", c_int(lt.COMPUTE[s.compute]), c_int(_TYPES[scale])
        )
        self._describe("transa", c_int(int(s.a.transposed)))
        self._describe("transb", c_int(int(s.b.transposed)))
        operands = [self._layout(s.dtype, s.a), self._layout(s.dtype_b or s.dtype, s.b)]
        self.layouts = [*operands, *(self._layout(s.result, m) for m in (s.c or s.d, s.d))]
        self._bias = 0
        self._scales = (0, 0)
        if s.scaled:
            self._scale_by(ALIGNMENT_BYTES, ALIGNMENT_BYTES)
        if s.epilogue:
            self._describe("epilogue", c_int(lt.EPILOGUE[s.epilogue]))
            self._point(ALIGNMENT_BYTES)  # any aligned address, for the heuristics

    def _own(self, kind: str, *args: Any) -> c_void_p:
        made = lt.create_descriptor(kind, *args)
        self._owned.append((kind, made))
        return made

    def _describe(self, word: str, value: Any) -> None:
        lt.set_attribute("MatmulDesc", self.description, lt.MATMUL[word], value)

    def _layout(self, dtype: str, m: Matrix) -> c_void_p:
        layout = self._own(
            "MatrixLayout", c_int(_TYPES[dtype]), c_uint64(m.rows), c_uint64(m.columns),
            c_int64(m.ld),
        )  # fmt: skip
        if self.signature.batch != 1:
            for word, value in (
                ("batch_count", c_int(self.signature.batch)),
                ("batch_offset", c_int64(m.batch_offset)),
            ):
                lt.set_attribute("MatrixLayout", layout, lt.LAYOUT[word], value)
        return layout

    def _point(self, bias: int) -> None:
        """Set the address of the epilogue's vector. An epilogue without one refuses an address."""
        if bias != self._bias and "b" in self.signature.epilogue:
            self._describe("bias_pointer", c_void_p(bias))
            self._bias = bias

    def _scale_by(self, a: int, b: int) -> None:
        """Set the addresses of the factors of A and B."""
        if (a, b) != self._scales:
            self._describe("a_scale_pointer", c_void_p(a))
            self._describe("b_scale_pointer", c_void_p(b))
            self._scales = a, b

    def algorithms(self, count: int) -> list[GemmAlgorithm]:
        """The ``count`` algorithms that the heuristics expect to be fastest, in that order."""
        s = self.signature
        wishes = {"workspace_bytes": c_size_t(s.workspace_limit)}
        for word, alignment in zip("abcd", s.alignment, strict=True):
            wishes[f"alignment_{word}"] = c_int(alignment)  # type: ignore[assignment]
        if s.result in ("float16", "bfloat16"):
            wishes["reduction_schemes"] = c_int(lt.REDUCE_IN_COMPUTE_TYPE)  # type: ignore[assignment]
        preference = lt.create_descriptor("MatmulPreference")
        results, found = (Heuristic * count)(), c_int()
        try:
            for word, value in wishes.items():
                lt.set_attribute("MatmulPreference", preference, lt.PREFERENCE[word], value)
            a, b, c, d = self.layouts
            lt.call(
                "cublasLtMatmulAlgoGetHeuristic", self.handle, self.description, a, b, c, d,
                preference, c_int(count), results, byref(found),
            )  # fmt: skip
        finally:
            lt.call("cublasLtMatmulPreferenceDestroy", preference)
        good = [r for r in results[: found.value] if r.state == 0]
        if not good:
            raise CublasError(f"cuBLASLt has no algorithm for {s}")
        return [GemmAlgorithm(r.algo, int(r.workspace_bytes)) for r in good]

    def run(
        self, algorithm: GemmAlgorithm, at: Pointers, factors: Sequence[float], workspace: int,
        stream: int,
    ) -> None:  # fmt: skip
        """Enqueue the GEMM with the factors alpha and beta.

        The address ``workspace`` is rounded up to a multiple of 256, which cuBLASLt requires even
        for 0 bytes.
        """
        workspace = aligned(workspace)
        alpha, beta = (self._scalar(f) for f in factors)
        if self.signature.epilogue:
            self._point(at.bias)
        if self.signature.scaled:
            self._scale_by(at.a_scale, at.b_scale)
        a, b, c, d = self.layouts
        lt.call(
            "cublasLtMatmul", self.handle, self.description, byref(alpha),
            c_void_p(at.a), a, c_void_p(at.b), b, byref(beta), c_void_p(at.c or at.d), c,
            c_void_p(at.d), d, byref(algorithm.data), c_void_p(workspace),
            c_size_t(algorithm.workspace_bytes), c_void_p(stream),
        )  # fmt: skip


def _destroy(owned: Sequence[tuple[str, c_void_p]]) -> None:
    for kind, what in owned:
        lt.call(f"cublasLt{kind}Destroy", what)


_TYPES = {**lt.CUDA_TYPE, **lt.CODE_TYPE}


def _scalar_type(dtype: str) -> Any:
    if dtype == "int32":
        return lambda v: c_int(int(v))
    if dtype == "complex64":
        return lambda v: (c_float * 2)(v, 0)
    if dtype == "complex128":
        return lambda v: (ctypes.c_double * 2)(v, 0)
    return ctypes.c_double if dtype == "float64" else c_float

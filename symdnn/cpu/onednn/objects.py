"""oneDNN's objects: memory descriptors as values, primitives that are bound once and executed.

A :class:`Layout` is the shape, dtype and strides of an array; ``ANY`` strides are oneDNN's choice.
:func:`primitive` creates a primitive by its ``..._primitive_desc_create`` with the C arguments in
order. Operands are named by oneDNN's ``DNNL_ARG_*``. The caller provides scratch memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.object_cache import cached
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.fastcall_ir import execute_module
from symdnn.cpu.onednn.library import OnednnError, call, library
from symdnn.cpu.threads import thread_pools

#: Names of ``TensorType`` -> ``dnnl_data_type_t``.
DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}

#: ``dnnl_prop_kind_t``
PROP = {"training": 64, "inference": 96, "backward": 128, "backward_data": 160}

#: ``dnnl_alg_kind_t``
ALG = {
    "direct": 0x1, "relu": 0x20, "tanh": 0x21, "elu": 0x22, "logistic": 0x29,
    "linear": 0x26, "hardsigmoid": 0x28, "clip": 0x2E, "hardswish": 0x34,
    "gelu_tanh": 0x2B, "swish": 0x2C, "max": 0x1FF, "average_inc_pad": 0x2FF,
    "average_exc_pad": 0x3FF,
}  # fmt: skip

#: ``DNNL_ARG_*``
ARG = {
    "src": 1, "dst": 17, "weights": 33, "bias": 41, "mean": 49, "variance": 50, "scale": 51,
    "shift": 52, "scratchpad": 80, "diff_src": 129, "diff_dst": 145,
    "diff_weights": 161, "diff_bias": 169, "diff_scale": 255, "diff_shift": 256,
    "src_scale": 4096 | 1, "weights_scale": 4096 | 33, "dst_scale": 4096 | 17,
    "src_zero": 8192 | 1, "weights_zero": 8192 | 33, "dst_zero": 8192 | 17,
}  # fmt: skip

#: ``dnnl_query_t``: the implementation's name, the memory descriptor of an operand.
_QUERY_IMPLEMENTATION, _QUERY_EXEC_ARG = 8, 255
_MAX_NDIMS = 12
_USER_SCRATCHPAD = 1

#: Strides of a layout that oneDNN chooses.
ANY: tuple[int, ...] = (-1,)


def dims(values: Sequence[int]) -> Any:
    """``dnnl_dims_t``"""
    return (ctypes.c_int64 * _MAX_NDIMS)(*values)


#: ``dnnl_normalization_flags_t``
NORMALISATION = {"global_stats": 1, "scale": 2, "shift": 4, "relu": 8}


#: Primitives in oneDNN's own cache.
_PRIMITIVE_CACHE_CAPACITY = 64


@cache
def engine() -> Any:
    """The CPU engine (``dnnl_engine_create``)."""
    handle = ctypes.c_void_p()
    call("engine_create", ctypes.byref(handle), 1, ctypes.c_size_t(0))
    # By default oneDNN caches 1024 primitives; ours are in `object_cache` already.
    library().dll.dnnl_set_primitive_cache_capacity(ctypes.c_int(_PRIMITIVE_CACHE_CAPACITY))
    return handle


@cache
def _stream() -> Any:
    handle = ctypes.c_void_p()
    call("stream_create", ctypes.byref(handle), engine(), 1)
    return handle


@dataclass(frozen=True)
class Layout:
    """Shape, dtype and strides (in elements) of an array; ``ANY`` strides are oneDNN's choice."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.strides:
            object.__setattr__(self, "strides", packed(self.shape))

    @property
    def any(self) -> Layout:
        """The same array in a layout of oneDNN's choice."""
        return Layout(self.shape, self.dtype, ANY)

    def channels_last(self) -> Layout:
        """The NHWC layout of the same array (N, C, sizes)."""
        n, c, *sizes = self.shape
        inner = packed((n, *sizes, c))
        return Layout(self.shape, self.dtype, (inner[0], inner[-1], *inner[1:-1]))


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


class Descriptor:
    """A ``dnnl_memory_desc_t``: an object of its own, or a part of a primitive."""

    def __init__(self, handle: Any, owner: Any = None) -> None:
        self.handle, self._owner = handle, owner
        if owner is None:
            _finally(self, "memory_desc_destroy", handle)

    @property
    def nbytes(self) -> int:
        """Size of the memory that it describes."""
        size = library().dll.dnnl_memory_desc_get_size
        size.restype = ctypes.c_size_t
        return int(size(self.handle))

    def equals(self, other: Descriptor) -> bool:
        """Whether both describe the same layout."""
        return bool(library().dll.dnnl_memory_desc_equal(self.handle, other.handle))


def _finally(thing: Any, function: str, handle: Any) -> None:
    # The function is looked up now: the flag may name another library later.
    end = weakref.finalize(thing, getattr(library().dll, f"dnnl_{function}"), handle)
    end.atexit = False  # at exit the library may be unloaded, and memory is freed anyway


@cached(2 << 10)
def describe(layout: Layout) -> Descriptor:
    """The descriptor of a layout."""
    handle = ctypes.c_void_p()
    shape, data_type = layout.shape, DATA_TYPES[layout.dtype]
    if layout.strides == ANY:
        arguments = (dims(shape), data_type, 1)  # dnnl_format_tag_any
        call("memory_desc_create_with_tag", ctypes.byref(handle), len(shape), *arguments)
    else:
        arguments = (dims(shape), data_type, dims(layout.strides))
        call("memory_desc_create_with_strides", ctypes.byref(handle), len(shape), *arguments)
    return Descriptor(handle)


class Attributes:
    """A ``dnnl_primitive_attr_t``: post-ops, scales, and that the caller provides scratch memory.

    ``quantized`` maps operands ``src_scale``, ``dst_zero``, ... to (mask of dimensions, count).
    """

    def __init__(
        self, *post_ops: tuple[Any, ...], quantized: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """``post_ops``: ``("eltwise", algorithm, alpha, beta)`` or ``("sum", scale, zero)``."""
        self.handle, self.has_post_ops = ctypes.c_void_p(), bool(post_ops)
        call("primitive_attr_create", ctypes.byref(self.handle))
        _finally(self, "primitive_attr_destroy", self.handle)
        call("primitive_attr_set_scratchpad_mode", self.handle, _USER_SCRATCHPAD)
        if post_ops:
            self._append(post_ops)
        #: The layouts of scales and zero points, which are operands of an execution.
        self.layouts: dict[str, Layout] = {}
        for name, (mask, count) in (quantized or {}).items():
            what, _, kind = name.partition("_")
            word = "scales" if kind == "scale" else "zero_points"
            call(f"primitive_attr_set_{word}_mask", self.handle, ARG[what], mask)
            self.layouts[name] = Layout((count,), "float32" if kind == "scale" else "int32")

    def _append(self, post_ops: Sequence[tuple[Any, ...]]) -> None:
        chain = ctypes.c_void_p()
        call("post_ops_create", ctypes.byref(chain))
        try:
            for kind, *words in post_ops:
                if kind == "sum":
                    scale, zero = (*words, 0)[:2]
                    call("post_ops_append_sum", chain, ctypes.c_float(scale), zero, 0)
                else:
                    algorithm, alpha, beta = words
                    a, b = ctypes.c_float(alpha), ctypes.c_float(beta)
                    call("post_ops_append_eltwise", chain, ALG[algorithm], a, b)
            call("primitive_attr_set_post_ops", self.handle, chain)
        finally:
            call("post_ops_destroy", chain)


class Primitive:
    """A primitive and the layouts of its operands. Several plans may execute it."""

    def __init__(self, description: Any, name: str) -> None:
        self._description, self.name = description, name
        _finally(self, "primitive_desc_destroy", description)
        self._handle: Any = None
        #: The layouts of scales and zero points, of which oneDNN tells nothing.
        self.layouts: Mapping[str, Layout] = {}

    @property
    def handle(self) -> Any:
        """oneDNN's handle, created when first used: many primitives are only queried."""
        if self._handle is None:
            handle = ctypes.c_void_p()
            call("primitive_create", ctypes.byref(handle), self._description)
            _finally(self, "primitive_destroy", handle)
            self._handle = handle
        return self._handle

    @property
    def implementation(self) -> str:
        """oneDNN's name of the implementation (``impl_info_str``), e.g. ``brgconv:avx512_core``."""
        text = ctypes.c_char_p()
        query = library().dll.dnnl_primitive_desc_query
        query(self._description, _QUERY_IMPLEMENTATION, 0, ctypes.byref(text))
        return (text.value or b"").decode()

    def has_next(self) -> bool:
        """Take oneDNN's next implementation; False if there is none. Not after :attr:`handle`."""
        return bool(library().dll.dnnl_primitive_desc_next_impl(self._description) == 0)

    @property
    def is_reference(self) -> bool:
        """Whether it is oneDNN's slow reference implementation."""
        return self.implementation.startswith("ref")

    def operand(self, name: str) -> Descriptor:
        """The layout of an operand that the primitive needs."""
        if name in self.layouts:
            return describe(self.layouts[name])
        query = library().dll.dnnl_primitive_desc_query_md
        query.restype = ctypes.c_void_p
        found = query(self._description, _QUERY_EXEC_ARG, ARG[name])
        return Descriptor(ctypes.c_void_p(found), self)

    @property
    def scratch_bytes(self) -> int:
        """Size of the scratch memory of an execution."""
        return self.operand("scratchpad").nbytes


class _ExecArg(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


class BoundPrimitive:
    """A primitive with memory objects for its operands; a call sets pointers and executes it."""

    def __init__(self, primitive: Primitive, names: Sequence[str]) -> None:
        self.primitive, self.names = primitive, tuple(names)
        dll = library().dll
        self._execute, self._set = dll.dnnl_primitive_execute, dll.dnnl_memory_set_data_handle
        self._handle = primitive.handle
        self._memories = [_memory(primitive.operand(n)) for n in self.names]
        pairs = [_ExecArg(ARG[n], m.value) for n, m in zip(self.names, self._memories)]
        self._arguments = (_ExecArg * len(pairs))(*pairs)
        for m in self._memories:
            _finally(self, "memory_destroy", m)
        self._last = [0] * len(pairs)

    def __call__(self, *pointers: int) -> None:
        """Execute on operands at these addresses, in the order of ``names``."""
        last = self._last
        for i, pointer in enumerate(pointers):
            if pointer != last[i]:
                self._set(self._memories[i], ctypes.c_void_p(pointer))
                last[i] = pointer
        status = self._execute(self._handle, _stream(), len(last), self._arguments)
        if status != 0:
            raise OnednnError("dnnl_primitive_execute", status, self.primitive.name)

    def native(
        self, places: Mapping[str, tuple[int, int]], at: Sequence[str], keep: Any,
        copied: tuple[int, int, int] | None = None,
    ) -> FastCall:  # fmt: skip
        """An execution from compiled code; this object must not be called any more.

        ``at`` names the operand of each array of the launch, ``""`` for none. ``places`` maps an
        operand to (array object, offset in bytes); arrays of the launch replace the array object.
        ``keep`` is an object that must stay alive. ``copied`` has (bytes, source, target): the
        positions in ``at`` of two arrays, of which one is copied to the other before.
        """
        dll = library().dll
        words: list[Any] = [0] * (_HEAD_WORDS + _OPERAND_WORDS * len(self.names))
        pointers = (dll.dnnl_primitive_execute, dll.dnnl_memory_set_data_handle)
        words[:2] = [ctypes.cast(p, ctypes.c_void_p).value or 0 for p in pointers]
        words[2:4] = [self.primitive.handle.value, _stream().value]
        words[4:7] = [len(self.names), ctypes.addressof(self._arguments), len(self.names)]
        for k, (name, memory) in enumerate(zip(self.names, self._memories)):
            found = (memory.value, *places.get(name, (0, 0)))
            words[_HEAD_WORDS + _OPERAND_WORDS * k : _HEAD_WORDS + _OPERAND_WORDS * k + 3] = found
        places_at = [
            _HEAD_WORDS + _OPERAND_WORDS * self.names.index(n) + 1 if n else -1 for n in at
        ]
        extra: tuple[tuple[int, int], ...] = ()
        if copied is not None:
            nbytes, source, target = copied
            words[_COPY_WORD] = nbytes
            extra = ((_COPY_WORD + 1, source), (_COPY_WORD + 2, target))
        block = (ctypes.c_int64 * len(words))(*words)
        return FastCall.of(_execute(), block, places_at, extra=extra, status=0, keep=(self, keep))


#: Words of ``execute``'s block: in front of the operands, for each operand.
_HEAD_WORDS, _OPERAND_WORDS = 10, 4
#: Bytes to copy before an execution, then the array objects of source and target.
_COPY_WORD = 7


@cache
def _execute() -> Any:
    return jit.compile_for_process(execute_module, (), "execute", ctypes.c_void_p)


def _memory(descriptor: Descriptor) -> Any:
    handle = ctypes.c_void_p()
    call("memory_create", ctypes.byref(handle), descriptor.handle, engine(), None)
    return handle


def primitive(name: str, *arguments: Any, options: Mapping[str, Any] | None = None) -> Primitive:
    """Create a primitive by ``dnnl_<name>_primitive_desc_create``.

    ``arguments`` are the C arguments between the engine and the attributes: a :class:`Layout` (or
    None) becomes its descriptor, a sequence of ints ``dnnl_dims_t``, a :class:`Primitive` its
    description. Raises :class:`~symdnn.cpu.onednn.library.OnednnError` if oneDNN has none.
    """
    thread_pools.set_threads()  # a primitive is created for a number of threads
    attributes = (options or {}).get("attributes") or _plain()
    handle = ctypes.c_void_p()
    converted = [_as_c(a) for a in arguments]
    create = f"{name}_primitive_desc_create"
    call(create, ctypes.byref(handle), engine(), *converted, attributes.handle)
    made = Primitive(handle, name)
    made.layouts = attributes.layouts
    return _without_kept_code(made) if attributes.has_post_ops else made


#: Primitives of the process whose code oneDNN 3.x keeps for its life, about 30 KB of each.
_kept_code = [0]
_MAX_KEPT_CODE = 128


def _without_kept_code(made: Primitive) -> Primitive:
    """The primitive, by another implementation once oneDNN has kept much code.

    It keeps all kernels of ``brg`` implementations in a set of the process, where equal ones are
    one. With a post-op no two are equal: the code of each has the address of a table. Not with
    ``deterministic=more``: equal calls would have other last bits later in a process.
    """
    if not made.implementation.startswith("brg") or config.deterministic == "more":
        return made
    _kept_code[0] += 1
    if _kept_code[0] > _MAX_KEPT_CODE:
        while made.implementation.startswith("brg") and made.has_next():
            pass
    return made


@cache
def _plain() -> Attributes:
    return Attributes()


def _as_c(value: Any) -> Any:
    if isinstance(value, Layout):
        return describe(value).handle
    if isinstance(value, Descriptor):
        return value.handle
    if isinstance(value, Primitive):
        return value._description
    if isinstance(value, tuple | list):
        return dims(value)
    return ctypes.c_float(value) if isinstance(value, float) else value


def reorder(source: Descriptor, target: Descriptor) -> Primitive:
    """The primitive that copies from one layout into another.

    oneDNN provides its scratch memory, which only the packing of 8-bit weights needs.
    """
    handle = ctypes.c_void_p()
    at = engine()
    call(
        "reorder_primitive_desc_create", ctypes.byref(handle), source.handle, at, target.handle,
        at, None,
    )  # fmt: skip
    return Primitive(handle, "reorder")

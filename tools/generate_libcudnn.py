"""Writes symdnn/gpu/binding/libcudnn_table.py: every function, enum and structure of cuDNN's
headers; and their version beside it, as libcudnn_version.py.

    python tools/generate_libcudnn.py                      headers of the wheel nvidia-cudnn-cu13
    python tools/generate_libcudnn.py FOLDER [-o FILE]     other headers, another file

The headers are preprocessed by pcpp and parsed by pycparser, both pure Python (extra ``test``); no
compiler and no header of CUDA is needed. The same headers give the same text.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pcpp import Preprocessor
from pycparser import c_ast, c_parser

TABLE = Path(__file__).parent.parent / "symdnn" / "gpu" / "binding" / "libcudnn_table.py"
HEADERS = ("cudnn_version.h", "cudnn_graph.h", "cudnn_ops.h", "cudnn_adv.h", "cudnn_cnn.h")
NEWER_HEADERS = ("cudnn_subquadratic_ops.h", "cudnn_gnn_ops.h")

# What cuDNN's headers take from CUDA's and C's. Nothing else of those is used.
SYSTEM_HEADERS = {
    "cuda_runtime_api.h": (
        "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUgraph_st *cudaGraph_t;\n"
    ),
    "library_types.h": (
        "typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;\n"
    ),
    "stdint.h": "",
    "stddef.h": "",
}
C_TYPES = """
typedef signed char int8_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t; typedef unsigned long size_t;
"""

NUMBERS = {
    "int": "INT", "int32_t": "INT32", "unsigned": "UINT", "unsigned int": "UINT",
    "uint32_t": "UINT32", "int64_t": "INT64", "unsigned long long": "UINT64", "uint64_t": "UINT64",
    "size_t": "SIZE", "float": "FLOAT", "double": "DOUBLE",
}  # fmt: skip
CTYPES = {
    "int": "c_int", "int32_t": "c_int32", "unsigned": "c_uint", "unsigned int": "c_uint",
    "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t",
    "unsigned long long": "c_ulonglong", "float": "c_float", "double": "c_double",
}  # fmt: skip

# What C's types do not say, in the order in which the rules below ask.
# Arrays in device memory: cuDNN's comments say so. `const float *` always is.
DEVICE_ARRAYS = re.compile(r"dev[A-Z]\w*")
DEVICE_ARRAYS_OF = {"cudnnCTCLoss_v8": ("labels", "labelLengths", "inputLengths")}
# Host pointers to one number: a scaling factor, or an element of a tensor. cudnnSetTensor's
# valuePtr is a float like a factor, also for float16, bfloat16 and int8: seen with cuDNN 9.14 and
# 9.19, where the headers' comment says that it has the tensor's type.
SCALES = re.compile(r"(alpha|beta)(\d|[A-Z]\w*)?|valuePtr")
ELEMENTS = ("paddingFill",)
# Which parameter says how long an array is: the first of these that the function has.
LENGTHS = {
    "seqLengthArray": (
        "seqLengthSizeRequested", "arrayLengthRequested", "seqLengthArraySize", "batchSize",
    ),
    "perfResults": ("requestedAlgoCount",),
    "message": ("max_size",),
    "loWinIdx": (), "hiWinIdx": (),  # the longest sequence of a descriptor
    "": ("nbDimsRequested", "arrayLengthRequested", "nbDims", "arrayLength"),
}  # fmt: skip
# Which output says how many of them C has written.
WRITTEN = {
    "seqLengthArray": ("seqLengthArraySize", "batchSize"),
    "perfResults": ("returnedAlgoCount",),
    "": ("nbDims", "arrayLength"),
}
# Folding leaves out the batch and the channels.
SHORTER = {"foldA": 2}
# A list tells its own length.
NOT_RETURNED = ("returnedAlgoCount",)

# Statuses that are also one of Python's own kinds of error.
BUILTIN_ERRORS = {
    "BAD_PARAM": "ValueError", "NOT_SUPPORTED": "NotImplementedError",
    "INTERNAL_ERROR_HOST_ALLOCATION_FAILED": "MemoryError",
    "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": "MemoryError",
}  # fmt: skip
STATUS = "cudnnStatus_t"


@dataclass(frozen=True)
class CParameter:
    """A parameter as C declares it."""

    name: str
    base: str  # the type without const, * and []
    pointers: int  # 0: by value; 1: * or []; 2: **
    const: bool
    array: bool


@dataclass
class Api:
    """What the headers declare, each in the order in which they declare it."""

    version: tuple[int, int, int] = (0, 0, 0)
    constants: dict[str, str] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    handles: list[str] = field(default_factory=list)
    # Fields: name, type, length of an array or 0.
    structures: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    callbacks: dict[str, list[CParameter]] = field(default_factory=dict)
    functions: dict[str, tuple[str, list[CParameter], bool]] = field(default_factory=dict)


# --- reading the headers --------------------------------------------------------------------------


def read_headers(folder: Path) -> Api:
    """Everything that the headers in ``folder`` declare."""
    names = [*HEADERS, *(n for n in NEWER_HEADERS if (folder / n).exists())]
    text, macros = preprocessed(folder, names)
    api = Api()
    for node in c_parser.CParser().parse(C_TYPES + text).ext:
        read_declaration(node, api)
    values = constants_of(macros, api)
    major, minor, patch = (int(values.pop(f"CUDNN_{n}")) for n in ("MAJOR", "MINOR", "PATCHLEVEL"))
    api.version = (major, minor, patch)
    api.constants = values
    return api


def preprocessed(folder: Path, names: list[str]) -> tuple[str, dict[str, str]]:
    """The headers' C without directives, and cuDNN's macros with their replacements.

    A deprecated function is marked by ``volatile``, which C takes there and cuDNN does not use.
    """
    with tempfile.TemporaryDirectory() as system:
        for name, text in SYSTEM_HEADERS.items():
            Path(system, name).write_text(text, encoding="utf-8")
        reader = Preprocessor()
        reader.line_directive = None
        reader.add_path(system)
        reader.add_path(str(folder))
        # So the headers write out __attribute__((deprecated)).
        reader.define("CUDNN_WARN_DEPRECATED 1")
        reader.define("__GNUC__ 4")
        reader.parse("".join(f'#include "{name}"\n' for name in names), "all.h")
        out = io.StringIO()
        reader.write(out)
    if reader.return_code:
        raise SystemExit(f"the headers in {folder} can't be preprocessed")
    text = re.sub(r"^\s*__attribute__\(\(deprecated\)\)", "volatile", out.getvalue(), flags=re.M)
    text = text.replace("__attribute__((deprecated))", "")
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    macros = {
        name: "".join(token.value for token in macro.value)
        for name, macro in reader.macros.items()
        if name.startswith("CUDNN_") and macro.arglist is None and macro.value
    }
    return text, macros


def constants_of(macros: dict[str, str], api: Api) -> dict[str, str]:
    """The macros that are numbers, evaluated; they may use each other and enumerators."""
    known: dict[str, Any] = {k: v for members in api.enums.values() for k, v in members.items()}
    values = {}
    for name, text in macros.items():
        expression = re.sub(r"\b(\d+)[uU]\b", r"\1", text)
        try:
            known[name] = eval(expression, {"__builtins__": {}}, known)
        except (SyntaxError, NameError):  # an attribute, a cast
            continue
        values[name] = repr(known[name])
    skipped = re.compile(r"CUDNN_(GRAPH|OPS|ADV|CNN)_(MAJOR|MINOR|PATCH)|CUDNN_WARN_DEPRECATED")
    return {name: value for name, value in values.items() if not skipped.fullmatch(name)}


def read_declaration(node: Any, api: Api) -> None:
    """Enter one declaration of the headers into ``api``."""
    if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
        read_function(node, api)
    elif isinstance(node, c_ast.Typedef):
        read_typedef(node, api)


def read_function(node: Any, api: Api) -> None:
    """A function's result, parameters, and whether it is marked as deprecated."""
    result = c_type(node.type.type)
    returns = f"const {result.base} *" if result.pointers else result.base
    deprecated = "volatile" in quals(node.type.type)
    api.functions[node.name] = (returns, parameters(node.type), deprecated)


def read_typedef(node: Any, api: Api) -> None:
    """A new type: an enum, a structure, a pointer to one that is not declared, a callback."""
    kind = node.type
    inner = kind.type
    if isinstance(kind, c_ast.PtrDecl) and isinstance(inner, c_ast.FuncDecl):
        api.callbacks[node.name] = parameters(inner)
    elif isinstance(kind, c_ast.PtrDecl):
        if node.name not in api.handles:  # CUDA's two come with each header that includes CUDA's
            api.handles.append(node.name)
    elif isinstance(inner, c_ast.Enum):
        api.enums[node.name] = enumerators(inner)
    elif isinstance(inner, c_ast.Struct) and inner.decls:
        api.structures[node.name] = [structure_field(d) for d in inner.decls]


def enumerators(node: Any) -> dict[str, int]:
    """Names and values; without a value it is one more than the one before."""
    values: dict[str, int] = {}
    following = 0
    for each in node.values.enumerators:
        value = number(each.value, values) if each.value is not None else following
        values[each.name] = value
        following = value + 1
    return values


def number(node: Any, known: dict[str, int]) -> int:
    """The value of a constant expression."""
    if isinstance(node, c_ast.Constant):
        return int(node.value.rstrip("uUlL"), 0)
    if isinstance(node, c_ast.ID):
        return known[node.name]
    if isinstance(node, c_ast.UnaryOp) and node.op == "-":
        return -number(node.expr, known)
    if isinstance(node, c_ast.BinaryOp):
        left, right = number(node.left, known), number(node.right, known)
        return {"+": left + right, "|": left | right, "<<": left << right}[node.op]
    raise SystemExit(f"{node.coord}: not a constant that this script can evaluate")


def structure_field(node: Any) -> tuple[str, str, int]:
    """Name, type and length of a structure's field."""
    if isinstance(node.type, c_ast.ArrayDecl):
        return node.name, c_type(node.type.type).base, number(node.type.dim, {})
    kind = c_type(node.type)
    return node.name, "void *" if kind.pointers else kind.base, 0


def parameters(node: Any) -> list[CParameter]:
    """The parameters of a function; ``(void)`` has none."""
    declared = node.args.params if node.args else []
    return [c_type(p.type, p.name) for p in declared if p.name]


def c_type(node: Any, name: str = "") -> CParameter:
    """A declarator, taken apart."""
    array, pointers = isinstance(node, c_ast.ArrayDecl), 0
    while isinstance(node, c_ast.PtrDecl | c_ast.ArrayDecl):
        node, pointers = node.type, pointers + 1
    base = " ".join(getattr(node.type, "names", None) or [node.type.name])
    return CParameter(name, base, pointers, "const" in node.quals, array)


def quals(node: Any) -> list[str]:
    """``const`` and ``volatile`` of the type at the end of a declarator."""
    while isinstance(node, c_ast.PtrDecl):
        node = node.type
    return list(node.quals)


# --- what each parameter is for -------------------------------------------------------------------


@dataclass
class Writer:
    """Turns what C declares into the text of the table."""

    api: Api

    def __post_init__(self) -> None:
        self.kinds = set(self.api.enums) | set(self.api.handles) | set(self.api.callbacks)

    def type_of(self, base: str) -> str:
        """The table's name of a type that is passed by value."""
        if base in NUMBERS:
            return NUMBERS[base]
        if base not in self.kinds:
            raise SystemExit(f"no type of the table stands for {base}")
        return python_name(base)

    def parameter(self, function: str, p: CParameter, others: list[CParameter]) -> str:
        """A parameter as an entry of the table: its kind says who fills it, and how."""
        if p.base == "void" and p.pointers == 1 and not p.array:
            return self.address(p, others)
        if p.pointers == 0:
            return self.type_of(p.base)
        if p.pointers == 2:
            return "Output(POINTER)"
        if p.base == "char":
            return f'OutputText(size="{length(p.name, others, LENGTHS)}")'
        if self.on_device(function, p) or self.is_incomplete(p.base):
            declared = f"{'const ' if p.const else ''}{p.base} *"
            return f'Pointer("{declared}")'
        if p.base in self.api.structures and p.const:
            return f"StructPointer({p.base})"
        return self.array(p, others) if is_array(p) else self.output(p)

    def address(self, p: CParameter, others: list[CParameter]) -> str:
        """A ``void *``: mostly device memory, sometimes one number in host memory."""
        asked = descriptor(others)
        if SCALES.fullmatch(p.name) and asked:
            return f"Scale({asked})"
        data_type = next((o for o in others if o.base == "cudnnDataType_t"), None)
        if p.name in ELEMENTS and data_type and not data_type.pointers:
            declared = f"{'const ' if p.const else ''}void *"
            return f'Element("{data_type.name}", cudnnDataType_t.number, declared="{declared}")'
        return "CONST_POINTER" if p.const else "POINTER"

    def array(self, p: CParameter, others: list[CParameter]) -> str:
        """An array in host memory, which C reads or writes."""
        element = p.base if p.base in self.api.structures else self.type_of(p.base)
        count = length(p.name, others, LENGTHS)
        less = f", less={SHORTER[p.name]}" if p.name in SHORTER else ""
        if p.const:
            named = f', count="{count}"' if count else ""
            return f"GivenArray({element}{named}{less})"
        if not count:
            raise SystemExit(f"nothing says how long {p.name} is")
        outputs = [o for o in others if o.pointers and not is_array(o)]
        written = length(p.name, outputs, WRITTEN)
        actual = f', actual="{written}"' if written else ""
        return f'OutputArray({element}, requested="{count}"{actual}{less})'

    def output(self, p: CParameter) -> str:
        """One value that C writes."""
        hidden = ", returned=False" if p.name in NOT_RETURNED else ""
        return f"Output({self.type_of(p.base)}{hidden})"

    def is_incomplete(self, base: str) -> bool:
        """Whether the headers only name this structure."""
        return base not in {*NUMBERS, *self.kinds, *self.api.structures}

    @staticmethod
    def on_device(function: str, p: CParameter) -> bool:
        """Whether an array is in device memory."""
        return (
            bool(DEVICE_ARRAYS.fullmatch(p.name))
            or p.name in DEVICE_ARRAYS_OF.get(function, ())
            or (p.base == "float" and p.const)
        )


def is_array(p: CParameter) -> bool:
    """Whether a pointer is to several values: C's ``[]``, ``const``, a list of algorithms."""
    return p.array or p.const or p.name in LENGTHS


def length(name: str, others: list[CParameter], table: dict[str, tuple[str, ...]]) -> str:
    """The parameter that says how long the array ``name`` is, or nothing."""
    names = [o.name for o in others]
    return next((n for n in table.get(name, table[""]) if n in names), "")


def descriptor(others: list[CParameter]) -> str:
    """The arguments that say which descriptor is asked for its data type, and how."""
    for kind, ask in (
        ("cudnnTensorDescriptor_t", "tensor_data_type"),
        ("cudnnFilterDescriptor_t", "filter_data_type"),
    ):
        for other in others:
            if other.base == kind and not other.pointers:
                return f'"{other.name}", {ask}'
    return ""


def python_name(base: str) -> str:
    """The class of a C type; an enum without ``_t`` gets one, as its dict has the bare name."""
    return base if base.endswith("_t") else f"{base}_t"


# --- writing the table ----------------------------------------------------------------------------

HEAD = '''"""Every function, enum and structure of cuDNN {version}, in the headers' order.

Generated by tools/generate_libcudnn.py from the headers; not to be edited.
"""

# fmt: off
# ruff: noqa: I001

from __future__ import annotations

import ctypes

from symdnn.gpu.binding.cudnn_call import CudnnStatusError, Function, function
from symdnn.gpu.binding.cudnn_data_type import filter_data_type, tensor_data_type
from symdnn.gpu.binding.cudnn_params import (
    Element, GivenArray, Output, OutputArray, OutputText, Scale,
)
from symdnn.gpu.binding.cudnn_types import (
    CONST_POINTER, DOUBLE, FLOAT, INT, INT32, INT64, POINTER, SIZE, UINT, UINT32, UINT64, Callback,
    CudnnEnum, CudnnStructure, Handle, Pointer, StructPointer, enum_field,
)
from symdnn.gpu.binding.libcudnn_version import VERSION

_IMPORTED = frozenset(globals())
'''

TAIL = """
# --- all of it -----------------------------------------------------------------------------------

__all__ = ["VERSION", "FUNCTIONS", "ENUMS"]
__all__ += [name for name in globals() if name not in _IMPORTED and not name.startswith("_")]

FUNCTIONS = tuple(each for each in globals().values() if isinstance(each, Function))
ENUMS: tuple[type[CudnnEnum], ...] = tuple(
    each for name, each in globals().items()
    if name not in _IMPORTED and isinstance(each, type) and issubclass(each, CudnnEnum)
)
"""

VERSION_FILE = '''"""The version of the headers of :mod:`symdnn.gpu.binding.libcudnn_table`.

Generated by tools/generate_libcudnn.py from the headers; not to be edited.
"""

VERSION = {tuple}
'''


def version_text(api: Api) -> str:
    """The module with the version."""
    return VERSION_FILE.replace("{tuple}", repr(api.version))


def table_text(api: Api) -> str:
    """The whole table."""
    writer = Writer(api)
    version = ".".join(map(str, api.version))
    parts = [
        HEAD.replace("{version}", version),
        heading("macros"),
        "\n".join(f"{name} = {value}" for name, value in api.constants.items()),
        heading("handles"),
        *(f"class {name}(Handle):\n    pass\n" for name in api.handles),
        heading("enums"),
        *(enum_text(name, members) for name, members in api.enums.items()),
        heading("structures"),
        *(structure_text(api, name, fields) for name, fields in api.structures.items()),
        *(callback_text(api, name, given) for name, given in api.callbacks.items()),
        heading("exceptions, one for each status"),
        *exceptions(api.enums[STATUS]),
        heading("functions"),
        *(function_text(writer, name, *rest) for name, rest in api.functions.items()),
        TAIL,
    ]
    return "\n".join(parts).rstrip() + "\n"


def heading(text: str) -> str:
    """A line between two parts of the module."""
    return f"\n# --- {text} {'-' * (92 - len(text))}\n"


def enum_text(name: str, members: dict[str, int]) -> str:
    """An enum's class and its dict."""
    lines = "\n".join(f"    {member} = {value}" for member, value in members.items())
    kind = python_name(name)
    return f"class {kind}(CudnnEnum):\n{lines}\n\n{kind[:-2]} = {kind}.as_dict()\n"


def structure_text(api: Api, name: str, fields: list[tuple[str, str, int]]) -> str:
    """A structure; its enums are kept as numbers and read as members."""
    lines, properties = [], []
    for field_name, base, count in fields:
        stored = f"_{field_name}" if base in api.enums else field_name
        times = f" * {count}" if count else ""
        lines.append(f'        ("{stored}", {ctype(api, base)}{times}),')
        if base in api.enums:
            properties.append(f'    {field_name} = enum_field("{stored}", {python_name(base)})')
    body = "\n".join(["    _fields_ = [", *lines, "    ]", *properties])
    return f"class {name}(CudnnStructure):\n{body}\n"


def ctype(api: Api, base: str) -> str:
    """The type of a structure's field, or of a callback's parameter."""
    if base in CTYPES:
        return f"ctypes.{CTYPES[base]}"
    if base in api.enums:
        return "ctypes.c_int"
    return "ctypes.c_void_p" if base == "void *" else base


def callback_text(api: Api, name: str, given: list[CParameter]) -> str:
    """A pointer to a function of the caller's."""
    kinds = []
    for p in given:
        if p.base in api.structures:
            kinds.append(f"ctypes.POINTER({p.base})")
        elif p.pointers:
            kinds.append("ctypes.c_char_p" if p.base == "char" else "ctypes.c_void_p")
        else:
            kinds.append(ctype(api, p.base))
    kind = f"ctypes.CFUNCTYPE(None, {', '.join(kinds)})"
    return listing(f"{name} = Callback(", [f'"{name}"', kind], ")")


def exceptions(statuses: dict[str, int]) -> Iterator[str]:
    """A class for each status, below the class of its category where it has one."""
    names = without_aliases(statuses)
    by_value = {statuses[name]: name for name in names}
    for value, name in sorted(by_value.items()):
        category = by_value.get(value // 1000 * 1000)
        above = exception_name(category) if category not in (None, name) else "CudnnStatusError"
        short = name.removeprefix("CUDNN_STATUS_")
        also = f", {BUILTIN_ERRORS[short]}" if short in BUILTIN_ERRORS else ""
        yield (f'class {exception_name(name)}({above}{also}, status={value}):\n    """{name}."""\n')


def without_aliases(statuses: dict[str, int]) -> list[str]:
    """The first name of each status but success."""
    first = {value: name for name, value in reversed(statuses.items())}
    return [name for name, value in statuses.items() if value and first[value] == name]


def exception_name(status: str | None) -> str:
    """``CUDNN_STATUS_NOT_SUPPORTED`` to ``CudnnNotSupported``."""
    words = str(status).removeprefix("CUDNN_STATUS_").split("_")
    return "Cudnn" + "".join(word.capitalize() for word in words)


def function_text(
    writer: Writer, name: str, returns: str, given: list[CParameter], deprecated: bool
) -> str:
    """One function with its parameters."""
    entries = [f'"{name}"', *(f"{p.name}={writer.parameter(name, p, given)}" for p in given)]
    if returns != STATUS:
        entries.append(f'returns="{returns}"')
    if deprecated:
        entries.append("deprecated=True")
    return listing(f"{name} = function(", entries, ")")


def listing(opening: str, entries: Any, closing: str) -> str:
    """Entries on one line, or several on a line; only one that is too long is broken."""
    entries = list(entries)
    if len(line := f"{opening}{', '.join(map(str, entries))}{closing}") <= 99:
        return f"{line}\n"
    kept = (str(each) if len(str(each)) > 93 else str(each).replace(" ", "\0") for each in entries)
    text = ", ".join(kept)
    lines = textwrap.wrap(text, 94, break_long_words=False, break_on_hyphens=False)
    inside = "".join(f"    {line}\n" for line in lines).replace("\0", " ").rstrip("\n")
    return f"{opening}\n{inside},\n{closing}\n"


def default_headers() -> Path | None:
    """The headers of the wheel in this environment, if it is installed."""
    folder = Path(sysconfig.get_path("purelib"), "nvidia", "cudnn", "include")
    return folder if (folder / HEADERS[0]).exists() else None


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headers", nargs="?", type=Path, default=default_headers())
    parser.add_argument("-o", "--output", type=Path, default=TABLE)
    args = parser.parse_args()
    if args.headers is None:
        sys.exit("no headers: pip install nvidia-cudnn-cu13, or give their folder")
    api = read_headers(args.headers)
    args.output.write_text(table_text(api), encoding="utf-8")
    version = args.output.with_name("libcudnn_version.py")
    version.write_text(version_text(api), encoding="utf-8")
    print(f"{args.output}: cuDNN {api.version}, {len(api.functions)} functions")


if __name__ == "__main__":
    main()

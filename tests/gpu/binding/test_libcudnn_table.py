"""The table against the headers it was made from, and against the real library."""

import ctypes
import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from symdnn.gpu.binding import libcudnn_table as table
from symdnn.gpu.binding.cudnn_params import GivenArray, Output, OutputArray, OutputText, Scale
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

ROOT = Path(__file__).parents[3]
HEADERS = Path(sysconfig.get_path("purelib"), "nvidia", "cudnn", "include")


@pytest.fixture(scope="module")
def generator():
    for needed in ("pycparser", "pcpp"):
        pytest.importorskip(needed)
    script = ROOT / "tools" / "generate_libcudnn.py"
    if not script.exists():
        pytest.skip("not a checkout")
    spec = importlib.util.spec_from_file_location("generate_libcudnn", script)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def headers_of_the_table(generator):
    """The installed headers, if they are those that the table was made from."""
    if not (HEADERS / "cudnn_version.h").exists():
        pytest.skip("no headers of cuDNN here")
    api = generator.read_headers(HEADERS)
    if api.version != table.VERSION:
        pytest.skip(f"the headers are of {api.version}, the table is of {table.VERSION}")
    return api


def test_the_headers_give_the_table(generator):
    api = headers_of_the_table(generator)
    text = generator.table_text(api)
    assert text == Path(table.__file__).read_text(encoding="utf-8")
    version = Path(table.__file__).with_name("libcudnn_version.py")
    assert generator.version_text(api) == version.read_text(encoding="utf-8")


def test_every_symbol_is_there_or_marked_absent(real_cudnn):  # noqa: F811
    missing = [f.__name__ for f in table.FUNCTIONS if not hasattr(real_cudnn.cdll, f.__name__)]
    assert missing == [f.__name__ for f in table.FUNCTIONS if not f.present]
    if real_cudnn.version >= table.VERSION:
        assert missing == []


def test_the_table_is_whole():
    assert len(table.FUNCTIONS) > 230
    assert len({f.__name__ for f in table.FUNCTIONS}) == len(table.FUNCTIONS)
    assert all(getattr(table, f.__name__) is f for f in table.FUNCTIONS)
    assert all(hasattr(table, name) for name in table.__all__)
    assert len(set(table.__all__)) == len(table.__all__)


@pytest.mark.parametrize("function", table.FUNCTIONS, ids=lambda f: f.__name__)
def test_parameters_name_each_other_rightly(function):
    """Lengths and descriptors that an entry names are parameters of the same function."""
    given = {name for name, p in function.parameters.items() if p.given}
    every = set(function.parameters)
    for p in function.parameters.values():
        if isinstance(p, Scale):
            assert p.descriptor in given
        elif isinstance(p, GivenArray):
            assert p.count in given | {""}
        elif isinstance(p, OutputArray):
            assert p.requested in given
            assert p.actual in (every - given) | {""}
        elif isinstance(p, OutputText):
            assert p.size in given
    if function.__name__.startswith("cudnnCreate"):
        assert [p for p in function.parameters.values() if isinstance(p, Output)]
    assert function.prototype.startswith(f"{function.returns} ".replace("* ", "*"))


# A made-up header: what the generator does with each construction.
HEADER = """
#define CUDNN_MAJOR 9
#define CUDNN_MINOR 1
#define CUDNN_PATCHLEVEL 2
#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
#define CUDNN_SOME_BIT (1U << 3)
#define CUDNN_OTHER(x) (x)
#if defined(CUDNN_WARN_DEPRECATED) && defined(__GNUC__)
#define CUDNN_DEPRECATED __attribute__((deprecated))
#endif
typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_BAD_PARAM_SHAPE = 2003, CUDNN_STATUS_OLD = CUDNN_STATUS_BAD_PARAM } cudnnStatus_t;
typedef enum { CUDNN_A = -1, CUDNN_B, CUDNN_C = 1 << 4, CUDNN_D } cudnnDataType_t;
struct cudnnThing; typedef struct cudnnThing *cudnnTensorDescriptor_t;
typedef struct { cudnnDataType_t kind; size_t size; int reserved[3]; } cudnnPerf_t;
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *desc);
/* a comment, with cudnnStatus_t cudnnNothing(void); inside */
CUDNN_DEPRECATED cudnnStatus_t cudnnSet(const cudnnTensorDescriptor_t desc, int nbDims,
    const int dimA[], unsigned flags, const void *alpha, void *y);
cudnnStatus_t cudnnGet(cudnnTensorDescriptor_t desc, int nbDimsRequested, int *nbDims, int dimA[]);
cudnnStatus_t cudnnRun(const int devLengths[], const cudnnPerf_t *perf, void **where);
const char *cudnnText(cudnnStatus_t status);
"""


@pytest.fixture
def small(generator, tmp_path):
    for name in generator.HEADERS:
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / generator.HEADERS[0]).write_text(HEADER, encoding="utf-8")
    return generator.read_headers(tmp_path)


def test_the_generator_reads_declarations(small):
    assert small.version == (9, 1, 2)
    assert small.constants == {"CUDNN_VERSION": "90102", "CUDNN_SOME_BIT": "8"}
    assert small.enums["cudnnDataType_t"] == {
        "CUDNN_A": -1, "CUDNN_B": 0, "CUDNN_C": 16, "CUDNN_D": 17,
    }  # fmt: skip
    assert small.handles == ["cudnnTensorDescriptor_t"]
    assert small.structures["cudnnPerf_t"] == [
        ("kind", "cudnnDataType_t", 0), ("size", "size_t", 0), ("reserved", "int", 3),
    ]  # fmt: skip
    assert list(small.functions) == [
        "cudnnCreateTensorDescriptor", "cudnnSet", "cudnnGet", "cudnnRun", "cudnnText",
    ]  # fmt: skip
    assert [name for name, (_, _, old) in small.functions.items() if old] == ["cudnnSet"]


def test_the_generator_says_who_fills_a_parameter(generator, small):
    writer = generator.Writer(small)
    entries = {
        name: [f"{p.name}={writer.parameter(name, p, given)}" for p in given]
        for name, (_, given, _) in small.functions.items()
    }
    assert entries["cudnnCreateTensorDescriptor"] == ["desc=Output(cudnnTensorDescriptor_t)"]
    assert entries["cudnnSet"] == [
        "desc=cudnnTensorDescriptor_t",
        "nbDims=INT",
        'dimA=GivenArray(INT, count="nbDims")',
        "flags=UINT",
        'alpha=Scale("desc", tensor_data_type)',
        "y=POINTER",
    ]
    assert entries["cudnnGet"][2:] == [
        "nbDims=Output(INT)",
        'dimA=OutputArray(INT, requested="nbDimsRequested", actual="nbDims")',
    ]
    assert entries["cudnnRun"] == [
        'devLengths=Pointer("const int *")',
        "perf=StructPointer(cudnnPerf_t)",
        "where=Output(POINTER)",
    ]


def test_the_generator_writes_a_class_for_each_status(generator, small):
    text = "".join(generator.exceptions(small.enums["cudnnStatus_t"]))
    assert "class CudnnBadParam(CudnnStatusError, ValueError, status=2000)" in text
    assert "class CudnnBadParamShape(CudnnBadParam, status=2003)" in text
    assert "CudnnOld" not in text  # another name of the same status


def test_structures_are_laid_out_as_the_compiler_does(generator, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler here")
    api = headers_of_the_table(generator)
    for name, text in generator.SYSTEM_HEADERS.items():
        if text:  # CUDA's; C's own are the compiler's
            guard = name.replace(".", "_")
            (tmp_path / name).write_text(f"#ifndef {guard}\n#define {guard}\n{text}#endif\n")
    lines = []
    for name, fields in api.structures.items():
        lines.append(f'printf("%zu", sizeof({name}));')
        lines += [f'printf(" %zu", offsetof({name}, {field}));' for field, _, _ in fields]
        lines.append('printf("\\n");')
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n"
        f'#include "cudnn.h"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
    )
    program = tmp_path / "sizes"
    folders = [f"-I{tmp_path}", f"-I{HEADERS}"]
    subprocess.run([compiler, "-w", *folders, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    for (name, fields), line in zip(api.structures.items(), printed.splitlines(), strict=True):
        kind = getattr(table, name)
        size, *offsets = map(int, line.split())
        stored = [f"_{f}" if hasattr(kind, f"_{f}") else f for f, _, _ in fields]
        assert ctypes.sizeof(kind) == size, name
        assert [getattr(kind, f).offset for f in stored] == offsets, name

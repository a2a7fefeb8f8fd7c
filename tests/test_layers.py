"""Reads every import of the package, at any depth; refuses what points upward or is heavy."""

import ast
import graphlib
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import symdnn
from symdnn.cpu.compiler import jit
from tests import sources
from tests.sources import SOURCES

ROOT = Path(symdnn.__file__).parent

# From the bottom up. A module may import from its own layer and from those below. A new module or
# folder directly under symdnn/ must be given a place here.
LAYERS = [
    {"_starting", "flag_types", "flags", "errors", "callers", "config", "detect", "disk",
     "options"},
    {"world"},
    {"graph"},
    {"ops"},
    {"rewriting"},
    {"stable"},
    {"autodiff", "autodiff_flat", "autodiff_rows"},
    {"sharding"},
    {"opt"},
    {"libraries"},
    {"tuning"},
    {"cpu", "gpu"},
    {"compile"},
    {"distributed"},
    {"tensor", "nn", "io", "printing", "saving", "serving", "sparse", "gradient",
     "loss_scale", "rewrites", "distributions", "transforms", "control", "onnx"},
    {"__init__"},
    {
        "compat", "cli", "commands", "doctor", "demo", "__main__",
    },
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
STRANGERS = {("cpu", "gpu"), ("gpu", "cpu")}

# Rooms of a folder, and modules that stand beside them, in the same way: what runs when a module is
# imported points into its own room or downwards. Rooms in one line do not meet.
ROOMS = {
    "ops": [
        {"core"}, {"elemwise"}, {"elementwise", "linalg"}, {"array", "random"},
        {"collective", "control", "fourier", "matrix", "sparse"}, {"written_out"}, {"nn"},
        {"attention", "quantized"},
        {"lowered"}, {"nest"}, {"numpy_names", "steps", "vendor"},
        {"torch_names"},
    ],
    "libraries": [
        {p.parent.name for p in (ROOT / "libraries").glob("*/__init__.py")},
        {"table", "theano_words"}, {"words"},
    ],
    "opt": [
        {"canonicalize", "engine", "lower", "scan"}, {"fuse", "layout", "precision"}, {"epilogue"},
        {"phases"}, {"optimise"},
    ],
    "cpu": [
        {"compiler"}, {"math", "threads"}, {"ir"}, {"launch"}, {"pool", "reference"},
        {"collective", "elementwise", "fourier", "sparse", "steps"}, {"nest"}, {"onednn", "reduce"},
        {"conv", "lapack"}, {"gemm"},
        {"attention", "prefer_generated", "rnn"}, {"registry"}, {"execution"},
    ],
    "gpu": [
        {"binding", "dnn_rnn", "registry", "shared"}, {"detect", "device", "libcudnn"},
        {"codegen", "dnn_names"}, {"dnn", "kernels"}, {"cudnn", "execution", "indexing", "norm"},
        {"fft", "gemm", "nccl", "solver"}, {"conv"}, {"conv_table", "rnn"}, {"function_tables"},
    ],
    "compile": [
        {"precompile", "program", "updates"}, {"plan"}, {"execute", "report"}, {"nanguard"},
        {"modes"},
        {"call", "shared"}, {"function"}, {"evaluation"},
    ],
    "onnx": [
        {"model"}, {"ops"}, {"build", "save"}, {"graph"}, {"call"}, {"backend"},
    ],
    "nn": [
        {"init"}, {"modules"}, {"layers", "losses", "optimizers", "schedule"},
        {"functional", "transformers", "utils"}, {"backend", "formats", "models", "optim"},
        {"parallel", "quantization", "training", "weights"},
    ],
}  # fmt: skip
PLACES = {
    (folder, name): rank
    for folder, rooms in ROOMS.items()
    for rank, names in enumerate(rooms)
    for name in names
}
MOST_MODULES = 25

AT_MODULE_LEVEL = {"numpy", "ml_dtypes"}
INSIDE_FUNCTIONS = {
    "scipy", "networkx", "rich", "platformdirs", "opt_einsum", "safetensors",
    "h5py", "sklearn", "matplotlib", "onnxruntime", "pydot", "starlette", "tensorboard", "uvicorn",
}  # fmt: skip
#: Imported by type checkers alone, which bring them.
FOR_CHECKERS = {"typing_extensions"}
# Named here: only there. Others: in no more than one folder.
ONE_FOLDER = {
    "pycuda": "gpu", "cuda": "gpu", "cudnn": "gpu", "nvmath": "gpu", "llvmlite": "cpu",
    "mpi4py": "world", "nccl": "gpu",
    "onnx": "onnx", "google": "onnx",
}  # fmt: skip
NOT_BY_IMPORT_SYMDNN = INSIDE_FUNCTIONS | set(ONE_FOLDER)


@dataclass(frozen=True)
class Import:
    """One import: who, what, where, and when it runs: "import", "call", or never: "types"."""

    importer: str  # "graph.op", "__init__", "ops.__init__"
    imported: str  # "symdnn.graph.type" or "numpy.linalg"
    line: int
    when: str

    def __str__(self) -> str:
        return f"symdnn/{self.importer.replace('.', '/')}.py:{self.line} imports {self.imported}"

    @property
    def folder(self) -> str:
        return self.importer.partition(".")[0]

    @property
    def target(self) -> str:
        """The module or folder of symdnn that is imported, or ``""``."""
        first, _, rest = self.imported.partition(".")
        return (rest.partition(".")[0] or "__init__") if first == "symdnn" else ""

    @property
    def rooms(self) -> tuple[str, str] | None:
        """The rooms that import and are imported, of one folder that has rooms."""
        mine, other = self.importer.split("."), self.imported.split(".")[1:]
        if (
            self.folder not in ROOMS
            or self.target != self.folder
            or len(mine) < 2
            or len(other) < 2
        ):
            return None
        return (mine[1], other[1]) if "__init__" not in (mine[1], other[1]) else None


def imports_of(tree: ast.Module, importer: str) -> Iterator[Import]:
    rest: list[tuple[ast.AST, str]] = [(tree, "import")]
    while rest:
        node, when = rest.pop()
        for name in imported_names(node, importer):
            yield Import(importer, name, node.lineno, when)
        when = when_inside(node, when)
        rest += [(c, when) for c in ast.iter_child_nodes(node) if not is_leaf(c)]


def is_leaf(node: ast.AST) -> bool:
    """Half of all nodes, which hold no import."""
    return isinstance(node, ast.Name | ast.Constant) or not node._fields


def when_inside(node: ast.AST, when: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "call"
    if isinstance(node, ast.If):
        names = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node.test)}
        return "types" if "TYPE_CHECKING" in names else when
    return when


def imported_names(node: ast.AST, importer: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, importer)
        return [f"{base}.{a.name}" if is_module(f"{base}.{a.name}") else base for a in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def absolute(node: ast.ImportFrom, importer: str) -> str:
    if not node.level:
        return node.module or ""
    package = ["symdnn", *importer.split(".")][: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


@cache
@cache
def is_module(name: str) -> bool:
    """Whether ``name`` is a module or package of symdnn."""
    first, *rest = name.split(".")
    path = ROOT.joinpath(*rest)
    return first == "symdnn" and (path.is_dir() or path.with_suffix(".py").is_file())


def faults(found: Import) -> Iterator[str]:
    """What is wrong with one import."""
    if found.target:
        yield from faults_of_direction(found)
    else:
        yield from faults_of_weight(found)


def faults_of_direction(found: Import) -> Iterator[str]:
    for name in (found.folder, found.target):
        if name not in RANK:
            yield f"{found}: {name} has no place in LAYERS"
            return
    if RANK[found.target] > RANK[found.folder]:
        yield f"{found}: upward, {found.target} is above {found.folder}"
    yield from faults_of_room(found)
    if (found.folder, found.target) in STRANGERS:
        yield f"{found}: {found.folder} and {found.target} never meet"


def faults_of_room(found: Import) -> Iterator[str]:
    if found.rooms is None:
        return
    for name in found.rooms:
        if (found.folder, name) not in PLACES:
            yield f"{found}: {name} has no place in ROOMS"
            return
    mine, other = (PLACES[found.folder, name] for name in found.rooms)
    if found.when == "import" and found.rooms[0] != found.rooms[1] and other >= mine:
        yield f"{found}: {found.rooms[1]} is not below {found.rooms[0]}"


def faults_of_weight(found: Import) -> Iterator[str]:
    library = found.imported.partition(".")[0]
    if library in sys.stdlib_module_names or library in AT_MODULE_LEVEL:
        return
    if library in FOR_CHECKERS and found.when == "types":
        return
    if library in ONE_FOLDER:
        if ONE_FOLDER[library] not in ("", found.folder):
            yield f"{found}: {library} belongs in {ONE_FOLDER[library]}/"
    elif library not in INSIDE_FUNCTIONS and library not in found.importer.split(".")[1:-1]:
        yield (
            f"{found}: not among the dependencies; a package of a vendor's library is imported in "
            "its room, symdnn/libraries/<package>; others are named in INSIDE_FUNCTIONS"
        )
    elif found.when == "import":
        yield f"{found}: heavy, import it inside the function that needs it"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def trees() -> dict[str, ast.Module]:
    return {module_name(path): tree for path, tree in sources.trees().items()}


@cache
def imports() -> list[Import]:
    return [found for name, tree in trees().items() for found in imports_of(tree, name)]


# --- the package ----------------------------------------------------------------------------------


def test_nothing_imports_upward_or_too_much():
    wrong = [text for found in imports() for text in faults(found)]
    assert not wrong, "\n".join(wrong)


def test_rewrites_know_no_library_and_no_kernel():
    """What these can do ``compile`` hands to them, as a value: ``rewriting/rewrite.py``."""
    neutral = {"rewriting", "stable", "autodiff", "opt"}
    for_compile = ("symdnn.ops.vendor", "symdnn.graph.kernel", "symdnn.graph.substitute")
    found = [
        str(i) for i in imports() if i.folder in neutral and i.imported.startswith(for_compile)
    ]
    assert not found, "\n".join(found)


def test_every_module_has_a_place():
    assert {name.partition(".")[0] for name in trees()} <= set(RANK)


def test_no_room_is_crowded():
    count = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    crowded = {str(p.relative_to(ROOT)): n for p, n in count.items() if n > MOST_MODULES}
    assert not crowded


def test_every_room_says_what_it_is():
    inits = [p for p in SOURCES if p.name == "__init__.py"]
    assert not [str(p) for p in inits if not ast.get_docstring(trees()[module_name(p)])]


@pytest.mark.parametrize("library", ONE_FOLDER)
def test_library_is_imported_in_one_folder(library):
    users = {i.folder for i in imports() if i.imported.partition(".")[0] == library}
    assert len(users) <= 1, f"{library} is imported in {sorted(users)}"


def test_no_module_needs_itself():
    """No cycle between modules. Within a folder a function may import back, to break one."""
    graph: dict[str, set[str]] = {name: set() for name in trees()}
    for found in imports():
        name = found.imported.removeprefix("symdnn").removeprefix(".")
        for module in (name or "__init__", f"{name}.__init__"):
            runs = found.target and found.when == "import"
            if runs and module in trees() and module != found.importer:
                graph[found.importer].add(module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("these import each other: " + " <- ".join(error.args[1]))


# Modules that need each other by types and by imports inside functions, by what is inherent: types
# and variables, loops and their derivatives, a module and the tree of its parts.
CIRCLES = [
    ("graph.",), ("compat.theano.names.",), ("nn.modules.",), ("ops.nn.conv",),
    ("ops.control.batching", "ops.control.from_graph", "ops.control.scan"),
    ("ops.matrix.eigen", "ops.matrix.svd"),
    ("compile.plan.memory", "compile.plan.operand_memory"), ("compile.report.profile",),
    ("compile.execute.executor", "compile.execute.loop"),
]  # fmt: skip


def test_no_new_circle_of_types_and_late_imports():
    names = sorted(trees())
    number = {name.removesuffix(".__init__"): i for i, name in enumerate(names)}
    pairs = []
    for found in imports():
        name = found.imported.removeprefix("symdnn.")
        name = name if name in number else name.rpartition(".")[0]
        if found.target and name in number:
            pairs.append((number[found.importer.removesuffix(".__init__")], number[name]))
    matrix = coo_matrix((np.ones(len(pairs)), np.transpose(pairs)), (len(names), len(names)))
    _, of = connected_components(matrix, connection="strong")
    for members in ([names[i] for i in np.flatnonzero(of == n)] for n in set(of)):
        known = any(all(m.startswith(circle) for m in members) for circle in CIRCLES)
        assert len(members) == 1 or known, f"these need each other: {', '.join(members)}"


def test_texts_of_kernels_are_made_of_sources_that_their_keys_cover():
    """Object code is kept by the content of these: :mod:`symdnn.cpu.compiler.jit`."""
    # world says which rank compiles a text, and nothing of the text.
    covered = {
        *jit._GENERATOR_SOURCES, "callers", "config", "errors", "flag_types", "flags",
        "detect", "disk", "world",
    }  # fmt: skip
    needed: dict[str, set[Import]] = {}
    for found in imports():
        if found.target and found.when != "types":
            needed.setdefault(found.importer, set()).add(found)
    rest = [n for n in trees() if n.startswith("cpu.") and n.endswith("_ir")]
    assert len(rest) > 20
    seen = set(rest)
    while rest:
        for found in needed.get(rest.pop(), ()):
            assert found.target in covered, f"{found}: kernels would be kept though it changes"
            module = found.imported.removeprefix("symdnn.")
            if module not in seen:
                seen.add(module)
                rest.append(module)


# Written by a script from the vendor's headers and never read from top to bottom: one entry for
# each C function, so that a search finds it. tests/gpu/binding/test_libcudnn_table.py checks it.
GENERATED = {ROOT / "gpu" / "binding" / "libcudnn_table.py"}
MOST_LINES = 500


def test_no_file_is_long():
    lines = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    long = {str(p): n for p, n in lines.items() if n > MOST_LINES and p not in GENERATED}
    assert not long, f"over {MOST_LINES} lines: move a family of functions to a module of its own"


def test_no_function_is_long():
    long = [
        f"{name}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= 60
    ]
    assert not long, "\n".join(long)


# --- a fresh process ------------------------------------------------------------------------------


#: By ``import symdnn``, those of the standard library among them; 561 in November 2026.
MOST_IMPORTED_MODULES = 600


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported():
    """Those that nothing imports yet, too."""
    for name in trees():
        if not name.endswith("__main__"):
            importlib.import_module(f"symdnn.{name}")


def test_import_loads_few_modules():
    """The time of an import is that of its modules: need 19 measures it."""
    code = """if True:
        import sys, numpy, ml_dtypes
        before = set(sys.modules)
        import symdnn
        print(len(sys.modules.keys() - before))
    """
    assert int(in_new_process(code)) <= MOST_IMPORTED_MODULES


def test_import_loads_nothing_heavy():
    modules = ["symdnn", "symdnn.tensor", "symdnn.gpu.dnn", "symdnn.cli"]
    told = f"*{NOT_BY_IMPORT_SYMDNN!r} & set(sys.modules)"
    code = "\n".join(f"import sys, {name}; print({name!r}, {told})" for name in modules)
    assert in_new_process(code).split() == modules


# --- this file itself -----------------------------------------------------------------------------


def faults_in(code: str, importer: str) -> list[str]:
    return [text for found in imports_of(ast.parse(code), importer) for text in faults(found)]


@pytest.mark.parametrize(
    ("code", "importer", "fault"),
    [
        ("import symdnn.ops", "graph.op", "upward"),
        ("from symdnn import ops", "graph.op", "upward"),
        ("def f():\n    from symdnn.compile.plan.plan import x", "opt.fuse", "upward"),
        ("from ..compile import plan", "opt.fuse", "upward"),
        ("if TYPE_CHECKING:\n    import symdnn.cli", "config", "upward"),
        ("importlib.import_module('symdnn.cpu')", "opt.fuse", "upward"),
        ("import symdnn", "ops.conv", "upward"),
        ("import symdnn.gpu", "cpu.conv", "never meet"),
        ("import symdnn.other", "cli", "no place in LAYERS"),
        ("import symdnn.cpu.rnn.recurrent", "cpu.gemm.gemm", "rnn is not below gemm"),
        ("import symdnn.cpu.gemm.gemm", "cpu.conv.winograd", "gemm is not below conv"),
        ("import symdnn.cpu.other.winograd", "cpu.gemm.gemm", "no place in ROOMS"),
        ("import scipy.special", "ops.math", "heavy"),
        ("import rich", "cli", "heavy"),
        ("def f():\n    import llvmlite", "gpu.conv", "belongs in cpu/"),
        ("import pycuda.driver", "compile.plan", "belongs in gpu/"),
        ("def f():\n    import torch", "ops.conv", "not among the dependencies"),
        ("def f():\n    import numexpr", "libraries.cufft.kernels", "not among the dependencies"),
        ("import numexpr", "libraries.numexpr.kernels", "heavy"),
    ],
)
def test_wrong_imports_are_noticed(code, importer, fault):
    (text,) = faults_in(code, importer)
    assert fault in text


@pytest.mark.parametrize(
    ("code", "importer"),
    [
        ("from symdnn.errors import SymdnnError", "graph.op"),
        ("from .type import TensorType", "graph.op"),
        ("def f():\n    import scipy.special", "ops.math"),
        ("def f():\n    import numexpr", "libraries.numexpr.kernels"),
        ("import llvmlite", "cpu.kernels"),
        ("import symdnn.cpu.gemm.gemm_ir", "cpu.gemm.gemm"),
        ("import symdnn.cpu.gemm.gemm", "cpu.rnn.recurrent"),
        ("def f():\n    import symdnn.cpu.rnn.recurrent", "cpu.gemm.gemm"),
        ("import numpy, ml_dtypes, sys", "graph.type"),
        ("importlib.import_module('symdnn.gpu')", "compile.function"),
    ],
)
def test_right_imports_pass(code, importer):
    assert faults_in(code, importer) == []

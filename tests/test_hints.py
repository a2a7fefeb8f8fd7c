"""How much the signatures say: few hints are ``Any``, few lines ask the checker to look away."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import symdnn
from tests.sources import SOURCES, trees

MAX_ANY = 0.145
MAX_IGNORED_LINES = 235
#: Hints of functions whose results have no truth.
OF_VARIABLES = {"Variable", "Variable | None"}
#: What stands in their brackets says which numbers: ``np.ndarray[Any, np.dtype[Any]]`` is an array.
OF_NUMPY = {"ndarray", "dtype", "number", "floating", "integer"}


def read(path: Path) -> ast.Module:
    return trees().get(path) or ast.parse(path.read_text(encoding="utf-8"))


def hints(tree: ast.AST) -> Iterator[ast.expr]:
    """Annotations of parameters, results and assignments."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # it has none
            continue
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns
        yield from hints(node)


def names(hint: ast.expr, of_alias: bool = False) -> Iterator[str]:
    """The names that a hint consists of, those in strings too."""
    if isinstance(hint, ast.Name):
        yield hint.id
    elif isinstance(hint, ast.Constant) and isinstance(hint.value, str):
        yield from names(ast.parse(hint.value, mode="eval").body, of_alias)
    elif isinstance(hint, ast.Attribute):
        yield hint.attr
    elif isinstance(hint, ast.Subscript) and "Literal" in names(hint.value):
        yield "Literal"
    elif not (of_alias and isinstance(hint, ast.Subscript) and of_numpy(hint.value)):
        for part in ast.iter_child_nodes(hint):
            if isinstance(part, ast.expr):
                yield from names(part, of_alias)


def of_numpy(hint: ast.expr) -> bool:
    return isinstance(hint, ast.Attribute) and hint.attr in OF_NUMPY


def file_of(module: str) -> Path:
    """The file of a module of this package."""
    path = Path(symdnn.__file__).parent.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def bindings(path: Path) -> dict[str, ast.expr | Path]:
    """What may be an alias in a module: names that are assigned, and where others come from."""
    found: dict[str, ast.expr | Path] = {}
    body = read(path).body
    body = body + [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("symdnn."):
            found |= {a.asname or a.name: file_of(node.module) for a in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" in names(node.annotation):
            found[node.target.id] = node.value
    return found


@cache
def is_any(name: str, path: Path) -> bool:
    """Whether a name in a module is Any, or an alias with Any in it."""
    if name == "Any":
        return True
    bound = bindings(path).get(name)
    if isinstance(bound, Path):
        return bound.exists() and is_any(name, bound)
    if not isinstance(bound, ast.Name | ast.Subscript | ast.BinOp | ast.Constant):
        return False
    inside = names(bound, of_alias=True)
    return any(n != name and is_any(n, path) for n in inside)


def says_any(hint: ast.expr, path: Path) -> bool:
    return any(is_any(name, path) for name in names(hint))


def test_few_hints_are_any():
    found = [(hint, path) for path in SOURCES for hint in hints(read(path))]
    assert len(found) > 20_000
    assert sum(says_any(*each) for each in found) / len(found) < MAX_ANY


def test_an_alias_does_not_hide_any(tmp_path):
    text = """
Plain = Any
Deep: TypeAlias = "dict[str, Plain]"
Numbers = np.ndarray[Any, np.dtype[Any]]
Tree: TypeAlias = "str | list[Tree]"
def f(a: Plain, b: "list[Deep]", c: Numbers, d: Tree, e: np.dtype[Any], f: Any) -> int: ...
"""
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")
    said = [says_any(hint, path) for hint in hints(read(path))][2:]
    assert said == [False, True, True, False, False, True, True]
    # Through imports: values by variable, of any kind, and arrays of NumPy's.
    assert is_any("Values", file_of("symdnn.gpu.execution.plan"))
    assert not is_any("Array", file_of("symdnn.cpu.conv.winograd"))


def test_few_lines_are_ignored():
    lines = [line for path in SOURCES for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum("# type: ignore" in line for line in lines) < MAX_IGNORED_LINES


def returning_variables(path: Path) -> set[str]:
    """The functions that a module defines or imports whose result is a variable, or None."""
    own = {n.name: n.returns for n in ast.walk(read(path)) if isinstance(n, ast.FunctionDef)}
    found = {name for name, hint in own.items() if hint and ast.unparse(hint) in OF_VARIABLES}
    for name, origin in bindings(path).items():
        if isinstance(origin, Path) and origin.exists() and name not in own:
            body = [n for n in read(origin).body if isinstance(n, ast.FunctionDef)]
            hint = next((n.returns for n in body if n.name == name), None)
            found |= {name} if hint and ast.unparse(hint) in OF_VARIABLES else set()
    return found


def asked(node: ast.AST) -> list[ast.expr]:
    """The expressions of whose truth a node asks."""
    if isinstance(node, ast.BoolOp):
        return node.values[:-1]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return [node.test]
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


def truths_of_variables(path: Path) -> list[int]:
    """The lines that ask for the truth of a variable that a function returned."""
    made = returning_variables(path)
    calls = [e for node in ast.walk(read(path)) for e in asked(node) if isinstance(e, ast.Call)]
    return [e.lineno for e in calls if isinstance(e.func, ast.Name) and e.func.id in made]


def test_no_variable_is_asked_for_its_truth():
    """``f(v) or v`` raises in a function that is traced, where ``f`` gives a variable or None."""
    found = {str(path): lines for path in SOURCES if (lines := truths_of_variables(path))}
    assert not found


def test_a_truth_of_a_variable_is_found(tmp_path):
    path = tmp_path / "module.py"
    text = """
def f(v) -> Variable | None: ...
def g(v) -> bool: ...
a = f(v) or v
b = g(v) or f(v)
c = None if not f(v) else 1
"""
    path.write_text(text, encoding="utf-8")
    assert truths_of_variables(path) == [4, 6]

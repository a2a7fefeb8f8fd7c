"""``symdnn kernels``: which kernels can run an op, the preferred first.

symdnn kernels                   all ops that have kernels of their own on the CPU
symdnn kernels softmax           those whose names contain "softmax", also kernels of their bases
symdnn kernels Softmax --where   where its class, builder, gradient, kernels, rewrites, tests are
symdnn kernels conv2d --where    the same of the op that a function makes
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.flag_types import nearest

_PACKAGE = Path(__file__).parent.parent
_CHECKOUT = _PACKAGE.parent
_GRADIENTS = ("slope", "point_slope", "order_slope", "scalar_vjp", "vjp", "scalar_jvp", "jvp")
#: Modules whose methods call an op's own, or refuse: they say nothing about the op.
_BASES = ("symdnn.graph.", "symdnn.ops.elemwise")


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "kernels", help="which kernels run an op, and where its source is", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("op", nargs="?", help="an op, or a part of its name such as softmax")
    targets = ["cpu", "cuda"]
    parser.add_argument("--target", choices=targets, default="cpu", help="kernels of which target")
    parser.add_argument("--where", action="store_true", help="print the source lines of the op")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from symdnn.compile.execute.targets import load_kernels
    from symdnn.graph.kernel import table
    from symdnn.graph.target import Target

    if args.where:
        for kind in ("cpu", "cuda"):
            load_kernels(Target(kind))
        print("\n".join(_where_of(args.op or "")))
        return
    load_kernels(Target(args.target))
    wanted = _letters(args.op or "")
    rows = [(op, names) for op, names in table(args.target) if wanted in _letters(op)]
    if wanted:
        rows = sorted({**dict(_through_bases(wanted, args.target)), **dict(rows)}.items())
    if not rows:
        raise SymdnnError(
            f"no op whose name has {args.op!r} in it has kernels on {args.target}"
            + _meant(args.op, (op for op, _ in table(args.target)))
        )
    width = max(len(op) for op, _ in rows)
    for op, names in rows:
        print(f"{op:{width}}  {', '.join(names)}")


def _through_bases(wanted: str, target: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The ops whose names contain ``wanted``, with the kernels that they have from their bases."""
    from symdnn.graph.kernel import own_kernels_for

    for op in _own_ops():
        kernels = own_kernels_for(op, target)
        if kernels and wanted in _letters(op.__name__) and "abstract" not in vars(op):
            yield op.__name__, tuple(k.name for k in kernels)


# --- where ----------------------------------------------------------------------------------------


def _own_ops() -> list[Any]:
    """The classes of symdnn's ops. Theano's stand-ins are none."""
    from symdnn.graph.op import Op

    own = [c for c in _subclasses(Op) if c.__module__.startswith("symdnn.")]
    return list(dict.fromkeys(c for c in own if not c.__module__.startswith("symdnn.compat.")))


def _where_of(name: str) -> Iterator[str]:
    """The lines of the ops of this name, or of the function of this name and the ops it makes."""
    known, wanted = _own_ops(), _letters(name)
    ops = [c for c in known if _letters(c.__name__) == wanted]
    functions = [] if ops else list(_functions(name))
    if not ops and not functions:
        raise _unknown(name, known)
    for function in functions:
        yield f"{'function':<13} {_line(function)}  {name}"
        ops += [op for op in _made_by(function) if op not in ops]
    for op in ops:
        yield from _where(op)


def _functions(name: str) -> Iterator[Any]:
    """The functions of this name in the modules of ops."""
    for module in sorted(m for m in sys.modules if m.startswith("symdnn.ops.")):
        function = inspect.unwrap(vars(sys.modules[module]).get(name, ""))
        if inspect.isfunction(function) and function.__module__ == module:
            yield function


def _made_by(function: Any) -> list[type]:
    """The ops of the same folder that a function makes, by the names in its code and its helpers'.

    Helpers that make one end the search: what these call in turn is not looked at.
    """
    from symdnn.graph.op import Op

    room = function.__module__.rpartition(".")[0]
    seen: set[Any] = {function}
    now = [function]
    while now:
        named = [each for helper in now for each in _names_in(helper) if each not in seen]
        seen.update(named)
        near = [n for n in named if getattr(n, "__module__", "").startswith(room)]
        if found := [n for n in near if inspect.isclass(n) and issubclass(n, Op)]:
            return list(dict.fromkeys(found))
        now = near
    return []


def _names_in(helper: Any) -> Iterator[Any]:
    """The functions and classes that the code of a function, or of a class's methods, names."""
    inside = vars(helper).values() if inspect.isclass(helper) else [helper]
    for each in inside:
        function = inspect.unwrap(each) if inspect.isfunction(each) else None
        if function is not None:
            names = [function.__globals__.get(n) for n in function.__code__.co_names]
            yield from (n for n in names if inspect.isfunction(n) or inspect.isclass(n))


def _unknown(name: str, known: list[Any]) -> SymdnnError:
    wanted = _letters(name)
    near = sorted({c.__name__ for c in known if wanted in _letters(c.__name__)})
    return SymdnnError(
        f"symdnn kernels --where: no op and no function is called {name!r}"
        + (f"; there are {', '.join(near)}" if near and name else "")
        + ("" if near else _meant(name, (c.__name__ for c in known)))
    )


def _letters(name: str) -> str:
    """What a function's name and its op's have in common (``batch_norm``, ``BatchNorm``)."""
    return name.lower().replace("_", "")


def _meant(name: str, known: Iterable[str]) -> str:
    found = nearest(name, known)
    return f". Did you mean {found!r}?" if found else ""


def _subclasses(op: Any) -> Iterator[type]:
    for each in op.__subclasses__():
        yield each
        yield from _subclasses(each)


def _where(op: type) -> Iterator[str]:
    yield f"{'op':<13} {_line(op)}  {op.__name__}"
    yield from _builders(op)
    for name in _GRADIENTS:
        method = getattr(op, name, None)
        if method is not None and not method.__module__.startswith(_BASES):
            yield f"{'gradient':<13} {_line(method)}  {method.__qualname__}"
    yield from _kernels(op)
    yield from _rewrites(op)
    yield from _tests(op)


def _builders(op: type) -> Iterator[str]:
    """The functions of the op's module that make it, and the faces of ``T`` that name them."""
    for name, made in vars(sys.modules[op.__module__]).items():
        function = inspect.unwrap(made) if callable(made) else None
        if not inspect.isfunction(function) or function.__module__ != op.__module__:
            continue
        if op.__name__ in function.__code__.co_names and not name.startswith("_"):
            yield f"{'builder':<13} {_line(function)}  {name}"
            for line in _lines_with(_PACKAGE / "tensor", f'"{name}"'):
                yield f"{'public name':<13} {line}"


def _kernels(op: Any) -> Iterator[str]:
    from symdnn.graph.kernel import kernels_for

    for kind in ("cpu", "cuda"):
        for kernel in kernels_for(op, kind):
            yield f"{f'kernel, {kind}':<13} {_line(type(kernel))}  {kernel.name}"


def _rewrites(op: type) -> Iterator[str]:
    """Rules whose equation or op types name the op."""
    from symdnn.libraries.table import ALL_RULES
    from symdnn.rewriting.rewrite import Rewrite

    word = re.compile(rf"\b{op.__name__}\b")
    for rule in ALL_RULES:
        if not isinstance(rule, Rewrite):
            continue
        if op in rule.ops or (rule.pattern is not None and word.search(rule.text)):
            low = _lowered(rule.name)
            becomes = f", to {low}" if low else ""
            yield f"{'rewrite':<13} {_line_of_rule(rule)}  {rule.name} ({rule.phase}){becomes}"


def _lowered(rule: str) -> str:
    """The library's op that a lowering of this name makes; empty for another rewrite."""
    from symdnn.libraries.table import LIBRARIES

    made = [x.low for library in LIBRARIES for x in library.lowerings if x.name == rule]
    return made[0].__name__ if made and made[0] else ""


def _line_of_rule(rule: Any) -> str:
    """The line of a rule's name in quotes, else of its function."""
    rooms = [_PACKAGE / room for room in ("opt", "stable", "libraries")]
    found = [line for room in rooms for line in _lines_with(room, f'"{rule.name}"')]
    return found[0] if found else _line(inspect.unwrap(rule.function))


def _tests(op: type) -> Iterator[str]:
    """The records of the op's class in the op table, if this is a checkout."""
    tests = _CHECKOUT / "tests"
    for line in _lines_with(tests / "op_table", rf"\b{op.__name__}\b,?\)", pattern=True):
        yield f"{'test record':<13} {line}"


def _lines_with(folder: Path, text: str, pattern: bool = False) -> list[str]:
    """``file:line`` of all lines in a folder's modules that have ``text``."""
    wanted = re.compile(text if pattern else re.escape(text))
    return [
        f"{path.relative_to(_CHECKOUT)}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if wanted.search(line)
    ]


def _line(thing: Any) -> str:
    """The file and line of a class or function, relative to the checkout."""
    path = Path(inspect.getsourcefile(thing) or "")
    name = path.relative_to(_CHECKOUT) if path.is_relative_to(_CHECKOUT) else path
    return f"{name}:{inspect.getsourcelines(thing)[1]}"

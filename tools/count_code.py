"""Lines of code of files and folders: without blank lines, comments and docstrings; imports count.

    python tools/count_code.py symdnn/opt/lower symdnn/tuning

Prints a line for each file, and the sum of each argument.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(text: str) -> int:
    """The number of lines of a module that have code.

    >>> lines_of_code('"A docstring."\\n\\nx = 1  # a comment\\n')
    1
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = {
        line for t in tokens if t.type not in _NO_CODE for line in range(t.start[0], t.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                found -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = text.split("\n")
    return sum(bool(lines[i - 1].strip()) for i in found)


def main(arguments: list[str]) -> None:
    """Print the counts of the arguments."""
    for argument in arguments:
        path, total = Path(argument), 0
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            count = lines_of_code(file.read_text(encoding="utf-8"))
            total += count
            print(f"{count:6} {file}")
        print(f"{total:6} in all of {argument}")


if __name__ == "__main__":
    main(sys.argv[1:])

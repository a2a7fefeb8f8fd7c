"""A module as a printed tree, in the form of Torch7's ``print(net)``, with the names of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module


def tree(module: Module) -> str:
    """The module's title and, for one with children, a line for each, indented by two spaces.

    Modules in sequence have ``[input -> (0) -> ... -> output]`` first, parallel ones a fork. Their
    names are those of their parameters in files: the attribute, or a number from 0.
    """
    title = f"{module.title}{module.describe()}"
    children = module.children()
    if not children:
        return title
    if getattr(module, "branches", False):
        return _fork(title, children)
    chain = getattr(module, "chain", None)
    lines = [f"{title} {{"]
    if chain is not None:
        lines.append("  " + chain())
    for name, child in children.items():
        first, *rest = tree(child).split("\n")
        lines += [f"  ({name}): {first}", *(f"  {line}" for line in rest)]
    return "\n".join([*lines, "}"])


def _fork(title: str, children: dict[str, Any]) -> str:
    """One input for all of them, one output of all."""
    lines = [f"{title} {{", "  input"]
    for i, (name, child) in enumerate(children.items(), 1):
        last = i == len(children)
        first, *rest = tree(child).split("\n")
        lines.append(("     `-> " if last else "    |`-> ") + f"({name}): {first}")
        lines += [("         " if last else "    |    ") + line for line in rest]
    return "\n".join([*lines, "     ... -> output", "}"])

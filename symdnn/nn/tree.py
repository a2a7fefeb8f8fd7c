"""A module as a printed tree, in the form that Torch7's ``print(net)`` has."""

from __future__ import annotations

from typing import Any

__all__ = ["tree"]


def tree(module: Any) -> str:
    """The module's title and, for one with children, a line for each, indented by two spaces."""
    children = module.children()
    if not children:
        return f"{module.title}{module.describe()}"
    chain = getattr(module, "chain", None)
    lines = [f"{module.title}{module.describe()} {{"]
    if chain is not None:
        lines.append("  " + chain())
    for name, child in children.items():
        label = str(int(name) + 1) if name.isdigit() else name  # Torch7 counts from 1
        first, *rest = tree(child).split("\n")
        lines += [f"  ({label}): {first}", *(f"  {line}" for line in rest)]
    return "\n".join([*lines, "}"])

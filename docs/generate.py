"""Writes the pages that follow from the code: flags, a map of the modules, a page for each part."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

from reference import topic_pages

import symdnn
from symdnn.flag_types import Flag
from symdnn.flags import FLAGS, WITHOUT_MEANING

# Pages are the modules and folders directly under symdnn/; these are no modules to import from.
NOT_SHOWN = {"__main__", "cli", "commands", "doctor", "demo", "tensor"}  # tensor: reference.py
# All that it has is shown where it is used: symdnn.gpu.libcudnn.
TABLES = {"symdnn.gpu.binding.libcudnn_table"}
# They offer what other modules define, under the names that programs use; it is shown there.
FACES = {
    "symdnn.gpu.dnn", "symdnn.nn.models", "symdnn.nn.optim", "symdnn.nn.training",
    "symdnn.nn.weights",
}  # fmt: skip
#: Folders of such modules.
FACES_UNDER = ("symdnn.compat.theano.names.",)

# What they have is shown on the pages of the reference, by topic.
IN_TOPICS = {"symdnn", "distributions"}


def write_pages(folder: Path) -> None:
    """Write all generated pages under ``folder``, and remove those of modules that are gone."""
    pages = {"flags.rst": flags_page(), "modules.rst": map_page()}
    pages |= {f"reference/{name}.rst": text for name, text in topic_pages()}
    for name, modules in sorted(parts().items()):
        pages[f"api/{name}.rst"] = api_page(name, modules)
    for old in folder.rglob("*.rst"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        write_if_changed(folder / name, text)


def write_if_changed(path: Path, text: str) -> None:
    """A page that stays the same keeps its time, so that it is not built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- flags ----------------------------------------------------------------------------------------


def flags_page() -> str:
    """Every flag of the table, and the names that are known but mean nothing."""
    entries = "\n".join(map(flag_entry, FLAGS.values()))
    old = "\n".join(
        f"``{name}``\n   {advice or 'Nothing takes its place.'}\n"
        for name, advice in sorted(WITHOUT_MEANING.items())
    )
    return (
        f"{title('Every flag')}"
        "How flags are set: :doc:`/configuration`. ``symdnn config`` prints their values.\n\n"
        f"{entries}\n"
        f"{title('Names without meaning', '-')}"
        "Theano has these, symdnn does not. To set one gives a warning.\n\n"
        f"{old}"
    )


def flag_entry(flag: Flag) -> str:
    """A flag as an entry of a definition list."""
    default = "the user's cache folder" if callable(flag.default) else f"``{flag.default!r}``"
    facts = [f"Allowed: {flag.allowed()}."]
    if flag.sets:
        facts.append("Has no value of its own.")
    else:
        facts.append(f"Default: {default}.")
    if flag.affects == "code":
        facts.append("Functions are compiled anew when it changes.")
    if flag.fixed:
        facts.append("Can't be changed after import.")
    return f"``{flag.name}``\n   {flag.help}\n   {' '.join(facts)}\n"


# --- modules --------------------------------------------------------------------------------------


def map_page() -> str:
    """One line for each module: the first sentence of its docstring."""
    root = Path(symdnn.__path__[0])
    files = [p for p in root.rglob("*.py") if not p.name.startswith("__main__")]
    rooms = sorted({p.parent for p in files})
    text = "One line for each module, by folder and room. Where new code goes: :doc:`/design`.\n\n"
    return title("Map of the modules") + text + "\n".join(room_entry(r, root) for r in rooms)


def room_entry(room: Path, root: Path) -> str:
    """A folder: what it holds, and its modules as a table."""
    name = ".".join(["symdnn", *room.relative_to(root).parts])
    lines = [f"{title(name, '-')}{first_sentence(room / '__init__.py')}\n", ".. list-table::"]
    lines += ["   :widths: 25 75\n"]
    for file in sorted(room.glob("*.py")):
        if not file.name.startswith("__"):
            lines += [f"   * - ``{file.stem}``", f"     - {first_sentence(file)}"]
    return "\n".join(lines if len(lines) > 3 else lines[:1]) + "\n"


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring, with roles as plain literals."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    text = " ".join(text.partition("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0].rstrip(":")


def parts() -> dict[str, list[str]]:
    """For each part of the package its modules: ``{"graph": ["symdnn.graph", ...], ...}``."""
    found: dict[str, list[str]] = {"symdnn": ["symdnn"]}
    for module in pkgutil.walk_packages(symdnn.__path__, "symdnn.", onerror=lambda name: None):
        part = module.name.split(".")[1]
        private = module.name.rpartition(".")[2].startswith("_")
        if part not in NOT_SHOWN and module.name not in TABLES and not private:
            found.setdefault(part, []).append(module.name)
    return found


def api_page(name: str, modules: list[str]) -> str:
    """One page: the part's own docstring and members, then each of its modules."""
    head, *rest = modules
    sections = [f"{title(m, '-')}.. automodule:: {m}\n{members(m)}" for m in rest]
    shown = "" if name in IN_TOPICS else f"   :members:\n{without(head)}"
    own = f"{title(head)}.. automodule:: {head}\n{shown}"
    return "\n".join([own, *sections])


def without(package: str) -> str:
    """The option that leaves out a function called as its module is: ``symdnn.nn.summary``."""
    found = importlib.import_module(package)
    own = [m.name for m in pkgutil.iter_modules(getattr(found, "__path__", ()))]
    both = [n for n in own if inspect.isfunction(getattr(found, n, None))]
    return f"   :exclude-members: {', '.join(both)}\n" if both else ""


def members(module: str) -> str:
    """The option that shows a module's members: of a face, only those that it defines itself."""
    if module not in FACES and not module.startswith(FACES_UNDER):
        return f"   :members:\n{without(module)}"
    face = importlib.import_module(module)
    names = getattr(face, "__all__", ())
    own = [n for n in names if getattr(getattr(face, n), "__module__", None) == module]
    return f"   :members: {', '.join(own)}\n" if own else ""


def title(text: str, line: str = "=") -> str:
    """A heading in reStructuredText."""
    return f"{text}\n{line * len(text)}\n\n"

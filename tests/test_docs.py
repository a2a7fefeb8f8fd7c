"""The Python of README.md and of docs/ runs, and what these pages name exists."""

import ast
import doctest
import pkgutil
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import numpy as np
import pytest

import symdnn
from symdnn.compile.execute.targets import load_kernels
from symdnn.flags import FLAGS
from symdnn.graph import kernel
from symdnn.graph.target import Target
from tests.seeded import sampled
from tests.sources import trees

ROOT = Path(__file__).parent.parent
DOCS = sorted(p for p in (ROOT / "docs").iterdir() if p.suffix == ".md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)


def blocks_of(page, *languages):
    """(line, text) of each block in one of these languages."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found[2] in languages:
            lines = [line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True)]
            yield text.count("\n", 0, found.start(3)) + 1, "".join(lines)


def run(page, line, text, names):
    if text.lstrip().startswith(">>>"):
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
        test.globs = names
        out = []
        doctest.DocTestRunner(optionflags=flags).run(test, out=out.append, clear_globs=False)
        assert not out, "".join(out)
    else:
        code = compile("\n" * (line - 1) + text, str(page), "exec", dont_inherit=True)
        exec(code, names)


@pytest.mark.cpu
@by_page
def test_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """The blocks of one page run in order in one namespace, in an empty folder."""
    blocks = list(blocks_of(page, "python"))
    if not blocks:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(tmp_path)
    for kind in ("cpu", "cuda"):
        load_kernels(Target(kind))
    rows = {row: list(kernels) for row, kernels in kernel._table.items()}
    monkeypatch.setattr(kernel, "_table", rows)  # a page's kernels stay on this page
    names = {"__name__": "__main__"}
    flags = dict(symdnn.config._global)
    try:
        with symdnn.config.change_flags(on_unused_input="raise"):
            for line, text in blocks:
                run(page, line, text, names)
    finally:
        symdnn.config._global.clear()
        symdnn.config._global.update(flags)


def test_readme_names_all_extras():
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [e for e in settings["options.extras_require"] if f"`{e}`" not in text] == []


def test_readme_links_every_page_and_has_the_index_s_table():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(docs/([\w.]+)", readme))
    assert [p.name for p in DOCS if p.name not in linked | {"index.md"}] == []
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    tables = [re.findall(r"^\| to \| see \|\n(?:\|.*\n)+", t, re.M) for t in (readme, index)]
    assert tables[0][0].replace("](docs/", "](") == tables[1][0]


def test_the_extra_docs_has_what_modules_import():
    """Pages of modules are made by importing these, and Sphinx stops where a package is missing."""
    found = set()
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    extra = settings["options.extras_require"]["docs"]
    needed = {"google": "onnx"}  # protobuf, which comes with it
    for name in found - set(sys.stdlib_module_names) - {"symdnn"}:
        name = needed.get(name, name)
        assert name in settings["options"]["install_requires"] or f"symdnn[{name}]" in extra, name


def test_readme_example_runs_as_a_file(tmp_path):
    """As a user has it: saved to a file, run by a fresh interpreter."""
    _, text = next(blocks_of(ROOT / "README.md", "python"))
    (tmp_path / "first.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_all_blocks_are_found():
    """The tests below see every block of a page."""
    for page in PAGES:
        opened = r"^ *```(?:python|sh|py)$"
        lines = re.findall(opened, page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(lines) == len(list(blocks_of(page, "python", "sh", "py"))), page.name


@by_page
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not re.match(r"https?:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]*)\)", text):
        there = page.parent / target if target else page
        assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"
    for target in re.findall(r"\{doc\}`(?:[^`<]*<)?/?([^`<>]+)>?`", text):
        assert target.startswith("_generated/") or ROOT / "docs" / target in [
            p.with_suffix("") for p in DOCS
        ], f"{page.name}: {target}"


def anchors(page):
    """The names of a page's headings in links."""
    headings = re.findall(r"^#{1,3} (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_pages_are_markdown():
    assert not [p.name for p in (ROOT / "docs").iterdir() if p.suffix == ".rst"]
    for page in PAGES:  # reStructuredText's links are plain text in Markdown
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        spans = re.findall(r"`[^`]+`_*", prose)
        assert not [span for span in spans if span.endswith("_")], page.name
        prose = re.sub(r"`[^`]*`", "", prose)  # a link by name alone is plain text in Sphinx
        by_name = re.findall(r"\[[A-Za-z]\w*(?: \w+)+\](?![(:])|\]\[[^]]*\]", prose)
        assert not by_name, f"{page.name}: {by_name}"


PARTS = sorted({p.relative_to(ROOT).parts[1] for p in (ROOT / "symdnn").rglob("*.py")})


@pytest.mark.parametrize("part", sampled(PARTS, every=3))
def test_docstrings_parse(part):
    """Docstrings are parts of the pages of modules, which are built with warnings as errors."""
    path = ROOT / "symdnn" / part
    for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
        if module.name != "libcudnn_table.py":
            found = list(docstrings(module))
            if complaints("\n\n".join(text for _, text in found), str(module)):
                for line, text in found:
                    assert not complaints(text, f"{module.relative_to(ROOT)}:{line}")


def docstrings(module):
    """(line, text) of public docstrings and ``#:`` comments."""
    text = module.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        found = ast.get_docstring(node)
        if found and not getattr(node, "name", "").startswith("_"):
            yield getattr(node, "lineno", 1), found
    for found in re.finditer(r"(?:^#: .*\n)+(?=[^_])", text, re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, re.sub("(?m)^#: ?", "", found[0])


def complaints(text, name):
    """docutils' complaints about a text, without those about Sphinx's roles."""
    docutils = pytest.importorskip("docutils.core")
    told = []
    settings = {"warning_stream": Told(told), "report_level": 2, "_disable_config": True}
    text = re.sub(r":[\w:]+:(`[^`]*`)", r"*\1*", text)
    docutils.publish_doctree(text, name, settings_overrides=settings)
    return "".join(told)


class Told:
    """Where docutils writes: a list of texts."""

    def __init__(self, texts):
        self.write = texts.append


@by_page
def test_commands_exist(page):
    """``make X`` is a target, ``symdnn X`` a subcommand, ``pip install -e '.[x]'`` an extra."""
    makefile = (ROOT / "Makefile").read_text()
    setup = (ROOT / "setup.cfg").read_text()
    for _, text in blocks_of(page, "sh"):
        for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
        for command in re.findall(r"^(?:\S*/)?symdnn ([a-z]+)", text, re.MULTILINE):
            assert command in subcommands(), f"symdnn {command}"
        for extras in re.findall(r"'\.\[(.*?)\]'", text):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} =$", setup, re.MULTILINE), f"extra {extra}"


def subcommands():
    from symdnn.cli import _parser

    (choices,) = [a.choices for a in _parser()._actions if a.choices]
    return choices


@by_page
def test_options_exist(page):
    """Those of ``symdnn X`` and of programs that are run by ``python -m X``."""
    for _, text in blocks_of(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = line.split()
            program = next((i for i, w in enumerate(words) if w.endswith("symdnn")), None)
            if program is not None and words[program + 1 :]:
                own = words[program + 1 :]
                known = options_in(f"symdnn.commands.{own[0]}") | options_in(f"symdnn.{own[0]}")
                known |= set(subcommands()[own[0]]._option_string_actions)
                if "--" in own or any(w.endswith(".py") for w in own):
                    continue  # the rest goes to a user's program
            elif "-m" in words and (known := options_in(words[words.index("-m") + 1])):
                own = words
            else:
                continue
            own = [w.partition("=")[0] for w in own if w.startswith("--")]
            assert [w for w in own if w not in known] == [], line


def options_in(module):
    """Options that a module of the tree, or those of a package, name; none for others."""
    path = ROOT / module.replace(".", "/")
    files = [path.with_suffix(".py"), *sorted(path.glob("*.py"))]
    text = "".join(p.read_text(encoding="utf-8") for p in files if p.exists())
    return set(re.findall(r"\"(--?[\w-]+)\"", text))


#: Names that pages mention because they do not exist.
ABSENT = {
    "symdnn.dnn", "symdnn.tensor.printing.Print", "symdnn.tensor.xlogy",
    "symdnn.tensor.elemwise.Sum", "numpy.float", "numpy.asscalar", "numpy.product",
}  # fmt: skip
SHORT = {"T": "symdnn.tensor", "nn": "symdnn.nn", "np": "numpy"}
FILES = ("md", "py", "pyi", "npz", "svg", "torch", "readthedocs")


@by_page
def test_names_in_prose_exist(page):
    """``symdnn.x``, ``T.x``, ``nn.x`` and ``np.x`` of a page's text; its programs run above."""
    for name in names_in(page, r"(?<![\w./@])((?:symdnn|T|nn|np)(?:\.[A-Za-z_]\w*)+)"):
        first, _, rest = name.partition(".")
        whole = f"{SHORT.get(first, first)}.{rest}"
        if whole not in ABSENT and whole.rpartition(".")[2] not in FILES:
            assert pkgutil.resolve_name(whole) is not None, whole


@by_page
def test_flags_exist(page):
    """Flags with a dot, and all that an example sets by ``SYMDNN_FLAGS``."""
    flags = set(FLAGS)
    groups = "|".join(sorted({f.partition(".")[0] for f in flags if "." in f} - {"warn"}))
    for name in names_in(page, rf"(?<![\w./])((?:{groups})(?:\.[a-z_]\w*)+)(?==)"):
        assert name in flags, f"{page.name} names the flag {name}"
    text = page.read_text(encoding="utf-8")
    for found in re.findall(r"SYMDNN_FLAGS=[\"']?([^\s\"'`]+)", text):
        for part in found.split(","):
            assert part.partition("=")[0] in flags, f"{page.name}: SYMDNN_FLAGS={found}"


@by_page
def test_kernels_named_exist(page):
    for kind in ("cpu", "cuda"):
        load_kernels(Target(kind))
    known = {k.name for kernels in kernel._table.values() for k in kernels}
    for name in names_in(page, r"(?<![\w./@])((?:llvm|numpy|onednn)\.[a-z_]+)(?![\w.(])"):
        other = name in FLAGS or name == "llvm.maximum" or hasattr(np, name[6:])
        assert name in known or other, f"{page.name} names {name}"


def names_in(page, pattern):
    """Matches in the inline code of a page, outside of its blocks."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", prose):
        yield from re.findall(pattern, span)


@by_page
def test_files_named_exist(page):
    """Paths such as ``symdnn/ops/elementwise/math.py``; built files are not in a fresh clone."""
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:symdnn|tests|examples|docs|benchmarks)/[\w./-]+)`", text):
        built = path.startswith(("docs/_build", "docs/_generated"))
        assert built or (ROOT / path).exists(), f"{page.name} names {path}"
    for path in re.findall(r"`((?:cpu|gpu|opt|ops|compile|graph|rewriting)/[\w/]+\.py)`", text):
        assert (ROOT / "symdnn" / path).exists(), f"{page.name} names {path}"


def test_design_names_the_phases():
    from symdnn.opt.phases import PHASES

    text = " ".join((ROOT / "docs" / "design.md").read_text(encoding="utf-8").split())
    assert f"The phases are, in order, {', '.join(f'`{p}`' for p in PHASES)}." in text

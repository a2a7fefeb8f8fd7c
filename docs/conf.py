"""How the documentation is built; the pages under _generated/ are written from the code."""

import builtins
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from docutils import nodes  # noqa: E402
from generate import write_pages  # noqa: E402
from sphinx import addnodes  # noqa: E402

project = "symdnn"
author = "The symdnn authors"
copyright = "2026, The symdnn authors"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode", "myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "symdnn"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_use_type_comments = False  # There are none; to look for them takes every source apart.
# An op's NumPy function, whose own docstring is not meant for this page.
autodoc_default_options = {"exclude-members": "function"}
# Never installed where the pages are built: they need CUDA's headers, or a GPU.
autodoc_mock_imports = ["pycuda", "cuda", "cudnn"]
# A face may offer a name of another module under its own path: both are the same thing.
suppress_warnings = ["ref.python"]

write_pages(HERE / "_generated")


def setup(app):
    """Two steps of our own, each for a search or a copy that Sphinx would do thousands of times."""
    app.connect("doctree-read", unlink_foreign_types)
    app.connect("html-page-context", shorten_tree, priority=400)  # furo's is at 500


def unlink_foreign_types(app, doctree):
    """Show the types of signatures that are not symdnn's, such as ``int``, as text.

    There is no page to link to; Sphinx goes through the names of all objects to find that out.
    """
    for signature in doctree.findall(addnodes.desc_signature):
        for link in list(signature.findall(addnodes.pending_xref)):
            if is_foreign(link["reftarget"]):
                link.replace_self(link.children)


def is_foreign(name):
    """Whether a type is Python's or another package's; one that autodoc could not import is not."""
    package, dot, _ = name.partition(".")
    return package != "symdnn" if dot else hasattr(builtins, name)


def shorten_tree(app, pagename, templatename, context, doctree):
    """Let the tree of all pages, which furo sets beside each, be made of the pages' titles alone.

    It shows no more than these, but is made by copying what lies below them too: every object.
    """
    make, full = context["toctree"], app.env.tocs

    def tree(**options):
        app.env.tocs = {page: title_of(toc) for page, toc in full.items()}
        try:
            return make(**options)
        finally:
            app.env.tocs = full

    context["toctree"] = tree


def title_of(toc):
    """The first entry of a page's table of contents, without those below it."""
    return nodes.bullet_list("", nodes.list_item("", toc[0][0].deepcopy()))

"""How the documentation is built; the pages under _generated/ are written from the code."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate import write_pages  # noqa: E402

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
# An op's NumPy function, whose own docstring is not meant for this page.
autodoc_default_options = {"exclude-members": "function"}
# Never installed where the pages are built: they need CUDA's headers, or a GPU.
autodoc_mock_imports = ["pycuda", "cuda", "cudnn"]
# A face may offer a name of another module under its own path: both are the same thing.
suppress_warnings = ["ref.python"]

write_pages(HERE / "_generated")

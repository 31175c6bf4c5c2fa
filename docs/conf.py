"""Settings of the site that `make docs` builds from the Markdown pages of this folder.

Nothing is fetched when the site is built, and nothing when it is read: equations become
MathML, the search runs in the page, fonts are the reader's own.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

from absent import Absent

import cowclip_merlin
from cowclip_merlin import compat

project = "CowClip-Merlin"
author = "the CowClip-Merlin authors"
release = cowclip_merlin.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "pages",
    "source_pages",
]
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"{project} {release}"
html_math_renderer = "mathml"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["site/site.css"]
html_css_files = ["site.css"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# The reference is made of signatures and docstrings: what the modules import is not needed.
autodoc_mock_imports = [
    "cupy", "dask", "distributed", "fsspec", "llvmlite", "matplotlib", "merlin", "numba", "numpy",
    "nvtabular", "pandas", "psutil", "pyarrow", "scipy", "tensorflow", "tqdm",
]  # fmt: skip
for name in ("tensorflow", "merlin_models", "nvtabular"):
    setattr(compat, name, Absent)
compat.keep_state_in_models = id  # nothing to change in a Keras that is absent
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
napoleon_attr_annotations = False

# Objects of other libraries have no page here; our own must have one.
nitpick_ignore_regex = [("py:.*", r"(?!cowclip_merlin).*")]

linkcheck_ignore = [r"source/"]  # pages of this site

# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the site: ``make docs`` writes it into build/docs, and every warning is an error."""

from __future__ import annotations

import sys
from importlib.metadata import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

_package = metadata("shmaccum")
_links = dict(link.split(", ", 1) for link in _package.get_all("Project-URL") or [])

project = "shmaccum"
author = _package["Author"]
project_copyright = f"{author}. License: Apache-2.0"
release = version = _package["Version"]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "public_names"]
exclude_patterns = ["extensions"]

# A word in single backticks is a name of the code, in docstrings as in pages.
default_role = "code"
nitpicky = True
# Names of other projects and of our inner modules have no page here, and the build asks no other machine for any.
nitpick_ignore_regex = [(r"py:.*", r"(?!shmaccum\.).*"), (r"py:.*", r"shmaccum\.[a-z_].*")]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
pygments_dark_style = "monokai"  # the default style underlines modules, as if they were links
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"shmaccum {release}"
html_baseurl = _links["Documentation"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "source_repository": _links["Repository"],
    "source_branch": "main",
    "source_directory": "docs/",
}

# The build works without a network: linkcheck follows the links inside the site, and no others.
linkcheck_ignore = [r"https?://.*"]

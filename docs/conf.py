"""Sphinx configuration of the manual, for `make docs`. tables.py generates its tables from offtop's own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tables

import offtop

project = "offtop"
version = release = offtop.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["generated"]
nitpicky = True
html_theme = "furo"
html_title = f"offtop {release}"
html_copy_source = False
html_show_sourcelink = False

tables.write(Path(__file__).with_name("generated"))

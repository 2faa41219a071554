"""The documentation site: `make docs` builds it into build/site, with warnings as errors and without network access."""

import importlib
import inspect
import re

import looksam

project = "looksam"
author = "looksam contributors"
project_copyright = "looksam contributors"
release = version = looksam.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest"]
highlight_language = "text"  # of blocks that name no language: shell commands and output

# The pages are plain Markdown that GitHub shows too. Headings have the anchors that GitHub gives them, and the build
# fails where a link names a page, file or anchor that does not exist.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Signatures have names and defaults, without the types, which the docstrings describe in words.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
napoleon_custom_sections = ["Reference"]
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"looksam {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def comments_of_fields(full_name):
    """Returns the comment next to each field of the class that an attribute belongs to."""
    module, cls, _ = full_name.rsplit(".", 2)
    source = inspect.getsource(getattr(importlib.import_module(module), cls))
    return dict(re.findall(r"^    (\w+): .*  # (.+)$", source, re.MULTILINE))


def process_docstring(app, what, name, obj, options, lines):
    """Turn a docstring into reStructuredText: |w| is an absolute value, and comments document a NamedTuple's fields."""
    escaped = lambda found: r"\|" if found[0] == "|" else found[0]
    lines[:] = [re.sub(r"``.*?``|\|", escaped, line) for line in lines]
    if what == "attribute":
        if lines and lines[0].startswith("Alias for field number"):
            lines[:] = [comments_of_fields(name).get(name.rpartition(".")[2], "")]
        lines.insert(0, "")  # or Napoleon would read the first words, up to a colon, as the type


def setup(app):
    app.connect("autodoc-process-docstring", process_docstring, priority=400)

"""Sphinx for both languages; tools/build_site.py starts it with the tag `zh` or `en`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from bigrams import SearchBigrams, SearchBigramsInEnglish  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402
from sphinx.ext.autodoc.mock import mock  # noqa: E402
from sphinx.locale import translators  # noqa: E402

LANGUAGE = "en" if "en" in globals()["tags"] else "zh"

project = "M08"
author = "M08 contributors"
project_copyright = "M08 contributors"
html_title = {"zh": "M08：從量化到 .pte", "en": "M08: quantized to .pte"}[LANGUAGE]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images"]
html_extra_path: list[str] = []
templates_path = ["_templates"]

# --- Notebooks: show what is stored, run nothing

nb_execution_mode = "off"
nb_merge_streams = True
# Only the cell for Colab is folded.
_folded = {
    "zh": "第一格：在 Colab 裝好需要的套件",
    "en": "First cell: it installs what Colab lacks",
}
nb_code_prompt_show = nb_code_prompt_hide = _folded[LANGUAGE]
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []  # none for mathematics: no page has any

# --- The reference. The libraries are large and say nothing here: stand-ins do.

autodoc_mock_imports = ["torch", "torchao", "executorch", "numpy", "matplotlib", "sklearn"]
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = ["Shape"]
default_role = "code"

with mock(autodoc_mock_imports):
    from common import env

# It compares the versions installed; here there are none.
env._installed = lambda name: env.TESTED[name].removeprefix(">=").partition(",")[0]

# --- Looks

html_theme = "furo"
html_theme_options: dict[str, Any] = {
    "announcement": "language",  # the bar at the top; page.html fills it
    "top_of_page_buttons": [],
    "navigation_with_keys": False,
    "light_css_variables": {"font-stack": "var(--m08-fonts)"},
}
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_domain_indices = False
html_context = {"tongue": LANGUAGE}

# What the theme says and Sphinx's catalogue does not know.
IN_CHINESE = {
    "Back to top": "回到最上面",
    "Copyright &#169; %(copyright)s": "版權 &#169; %(copyright)s",
    "Home": "首頁",
    "Made with ": "製作工具：",
    "Next": "下一頁",
    "On this page": "本頁內容",
    "Previous": "上一頁",
    "Skip to content": "跳到內容",
}


def skip_fields(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the descriptors of a NamedTuple: its docstring says what the fields are."""
    return True if type(thing).__name__ == "_tuplegetter" else None


_LONG_SIGNATURE = re.compile(r"<dl>\n((?:<dd>.*?</dd>\n)+)</dl>\n", re.S)
_EMPTY_HEADER = re.compile(r"<th\b([^>]*)>(?:<p></p>)?</th>")


def make_accessible(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Three repairs of HTML that a screen reader cannot follow.

    The captions of the navigation say that they are headings, but not of which level. A signature
    of several lines is a list of definitions without a term. An empty header of a table heads
    nothing.
    """
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(
        'class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'
    )

    def lines(match: re.Match[str]) -> str:
        return match[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")

    body = _LONG_SIGNATURE.sub(lines, context.get("body", ""))
    context["body"] = _EMPTY_HEADER.sub(r"<td\1></td>", body)


def speak_chinese(app: Any) -> None:
    """Add the words of the theme to the catalogue, before a page is made."""
    if LANGUAGE == "zh":
        translators["general", "sphinx"]._catalog.update(IN_CHINESE)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":  # what Sphinx calls the attributes of a class
            field.label = {"zh": "屬性", "en": "Attributes"}[LANGUAGE]
    app.connect("builder-inited", speak_chinese)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("html-page-context", make_accessible, priority=900)  # after the theme
    app.add_search_language(SearchBigrams)
    app.add_search_language(SearchBigramsInEnglish)

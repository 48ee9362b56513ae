"""The pages of the site, as Sphinx is to read them: no command, build_site.py writes them.

The lessons and pages lie in the repository with links that fit there. Here each gets its place
in the site, in both languages under the same name, and its links are turned round: to the page
that shows the same file, else to the repository, and where that has no address yet, to plain
text. Nothing is executed, and nothing here needs Sphinx.
"""

from __future__ import annotations

import ast
import hashlib
import json
import posixpath
import re
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from tools import glossary

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("zh", "en")
UNKNOWN = "OWNER/REPO"
IGNORE_TAG = "nbval-ignore-output"
BOOTSTRAP = "bootstrap"  # id of the cell for Colab

GROUPS = {
    "lessons": {"zh": "課文", "en": "Lessons"},
    "look up": {"zh": "查閱", "en": "Look up"},
    "package": {"zh": "套件與課程", "en": "Package and course"},
}
# How the navigation calls a page whose title is long, or not in its language.
LABELS = {
    "zoo": {"zh": "哪些模型走得完（英文）", "en": "Zoo: which models make it"},
    "runtimes": {"zh": "和其他執行環境比較（英文）", "en": "Beside other runtimes"},
    "project": {"zh": "安裝與執行（英文）", "en": "Install and run"},
}
ENGLISH_ONLY = "這一頁只有英文。\n"

# Those that are named come first, in this order; a page that is new follows them.
_ORDER = ("M08-", "symptoms", "ops", "glossary", "zoo", "runtimes", "api/index", "project")


@dataclass(frozen=True)
class Page:
    """One page of the site, in one language.

    Attributes:
        name: Path in the site, without a suffix; the same in both languages.
        group: Key of `GROUPS`; empty for the overview and for what another page lists.
        source: The file in the repository that it shows, seen from the root; None if generated.
        suffix: `.md` or `.ipynb`.
        text: What Sphinx reads.
    """

    name: str
    group: str
    source: str | None
    suffix: str
    text: str


# --- Which file becomes which page


@cache
def shown(language: str) -> dict[str, str]:
    """{file in the repository: name of its page}, for `zh` or `en`."""
    found = {"README.md": "project"}
    for path in sorted((ROOT / "notebooks").iterdir()):
        if path.suffix in (".md", ".ipynb"):
            name = "index" if path.name == "README.md" else path.stem
            found[f"notebooks/{path.name}"] = found[f"notebooks/en/{path.name}"] = name
    found |= {f"docs/{path.name}": path.stem for path in sorted((ROOT / "docs").glob("*.md"))}
    for module in public_modules():
        found[f"common/{module}.py"] = f"api/{module}"
    return found | {"notebooks": "index", "notebooks/en": "index", "common": "api/index"}


def public_modules() -> list[str]:
    """Modules of `common` that readers import."""
    paths = sorted((ROOT / "common").glob("*.py"))
    return [path.stem for path in paths if not path.stem.startswith("_")]


@cache
def repository() -> str | None:
    """`owner/name` as pyproject.toml has it; None as long as it is not known."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = project["tool"]["m08"]["repository"]
    return None if named == UNKNOWN else named


# --- Links

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(?:.*?^ {0,3}\1[`~]*[ \t]*$|.*\Z)", re.M | re.S)
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_BADGE = re.compile(r"\[!\[([^\]]*)\]\((?:https?:)?//[^)]*\)\]\(([^)\s]+)\)")
_FAR_PICTURE = re.compile(r"!\[([^\]]*)\]\((?:https?:)?//[^)]*\)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_ATTRIBUTE = re.compile(r'\b(src|href)="([^"]+)"')
_HTML_PICTURE = re.compile(r"<p\b[^>]*>\s*<img\b([^>]*)>\s*</p>")
_OTHER_EDITION = re.compile(r"^\[(?:English|繁體中文)\]\([^)]*\)\n+", re.M)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Markdown with `change` applied to what is neither fenced nor inline code."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = change(_CODE.sub(keep, _FENCE.sub(keep, text)))
    while "\0" in text:  # what looks like inline code may hold a fence
        text = re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], text)
    return text


def with_links(text: str, *, source: str, page: str, language: str) -> str:
    """Markdown with the links of a file of the repository made those of its page.

    Args:
        text: Markdown.
        source: The file that holds it, seen from the root.
        page: Name of the page that shows it.
        language: `zh` or `en`.
    """
    folder = posixpath.dirname(source)

    def target(link: str, *, picture: bool = False) -> str | None:
        if re.match(r"[A-Za-z][\w+.-]*:|//|#", link):
            return None if UNKNOWN in link else link
        file, mark, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(folder, unquote(file)))
        up = "../" * page.count("/")
        if picture:
            return f"{up}images/{PurePosixPath(path).name}"
        if name := shown(language).get(path):
            suffix = ".ipynb" if path.endswith(".ipynb") else ".md"
            return f"{up}{name}{suffix}{mark}{anchor}"
        if repository() is None:
            return None
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"https://github.com/{repository()}/{kind}/main/{path}{mark}{anchor}"

    def link(match: re.Match[str]) -> str:
        new = target(match[3], picture=bool(match[1]))
        label = match[2] if match[1] else _LINK.sub(link, match[2])
        return label if new is None else f"{match[1]}[{label}]({new})"

    def attribute(match: re.Match[str]) -> str:
        new = target(match[2], picture=match[1] == "src")
        if new is not None and "://" not in new:  # Sphinx does not look into HTML
            new = re.sub(r"\.(?:md|ipynb)(?=#|$)", ".html", new)
        return f'{match[1]}="{match[2] if new is None else new}"'

    def in_markdown(match: re.Match[str]) -> str:
        """Sphinx copies a picture that Markdown names, not one in HTML."""
        has = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
        return f"![{has.get('alt', '')}]({has['src']})"

    def change(prose: str) -> str:
        prose = _HTML_PICTURE.sub(in_markdown, prose)
        prose = _OTHER_EDITION.sub("", prose)  # every page of the site has a switch
        # A badge is a picture from elsewhere: its words do.
        prose = _BADGE.sub(lambda m: "" if UNKNOWN in m[2] else f"[{m[1]}]({m[2]})", prose)
        prose = _FAR_PICTURE.sub(r"\1", prose)
        return _ATTRIBUTE.sub(attribute, _LINK.sub(link, prose))

    return outside_code(text, change)


def one_title(text: str) -> str:
    """A page with one H1: where it has more, all headings but the first go down one level.

    Sphinx would make an entry of the navigation of each.
    """

    def change(prose: str) -> str:
        headings = list(re.finditer(r"^#{1,6} ", prose, re.M))
        if sum(heading[0] == "# " for heading in headings) < 2:
            return prose
        cut = headings[0].end()
        return prose[:cut] + re.sub(r"^(#{1,5}) ", r"#\1 ", prose[cut:], flags=re.M)

    return outside_code(text, change)


# --- Lessons


def lesson(text: str, *, source: str, page: str, language: str) -> str:
    """A notebook with the links of the site, and with its alt texts where MyST-NB looks for them.

    The cell that installs things in Colab is folded: a reader of the site does not run it.
    A picture's alt text lies in `output.metadata["image/png"]["alt"]`, as for nbconvert. MyST-NB
    takes it from the metadata of the cell.
    """
    nb = json.loads(text)
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            prose = "".join(cell["source"])
            cell["source"] = with_links(prose, source=source, page=page, language=language)
        elif cell.get("id") == BOOTSTRAP:
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        elif alt := [
            output["metadata"]["image/png"]["alt"]
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]:
            if len(alt) > 1:
                raise ValueError(f"{source}: cell {cell['id']!r} has {len(alt)} pictures, not one")
            cell["metadata"]["mystnb"] = {"image": {"alt": alt[0]}}
    return json.dumps(nb, ensure_ascii=False)


# --- What is generated


def toctrees(pages: Sequence[Page], language: str) -> str:
    """The hidden lists from which the navigation is made, one for each group."""
    parts = []
    for group, titles in GROUPS.items():
        labels = {name: f"{label[language]} <{name}>" for name, label in LABELS.items()}
        names = [labels.get(page.name, page.name) for page in pages if page.group == group]
        entries = "\n".join(names)
        caption = titles[language]
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(parts)


GLOSSARY = {
    "zh": "# 詞彙表\n\n「課」是第一次出現的地方：1 是 M08-1，依此類推。\n",
    "en": "# Glossary\n\n“Lesson” is where a term is met first: 1 is M08-1, and so on.\n",
}


def glossary_page(language: str) -> str:
    """The terms of notebooks/glossary.toml."""
    return f"{GLOSSARY[language]}\n{glossary.table(language)}"


API = {
    "zh": "# API：`common`\n\n{note}\n| 模組 | 內容（英文） |\n| --- | --- |\n",
    "en": "# API: `common`\n\n{note}\n| module | what it offers |\n| --- | --- |\n",
}
API_NOTE = {
    "zh": "由各函式的說明（docstring）產生，說明是英文。只列公開的名字。\n",
    "en": "Made from the docstrings. Public names only.\n",
}


def api_index(language: str) -> str:
    """A table of the public modules."""
    rows = []
    for name in public_modules():
        path = ROOT / "common" / f"{name}.py"
        summary = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = summary.partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        rows.append(f"| [`common.{name}`]({name}.md) | {first} |\n")
    names = "\n".join(public_modules())
    head = API[language].format(note=API_NOTE[language])
    return f"{head}{''.join(rows)}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def api_page(module: str) -> str:
    """The reference of one module; Sphinx fills it from the docstrings."""
    return (
        f"# `common.{module}`\n\n```{{eval-rst}}\n.. automodule:: common.{module}\n"
        "   :members:\n   :member-order: bysource\n```\n"
    )


# --- When and with what the outputs were made


@dataclass(frozen=True)
class Stored:
    """What is known of the stored outputs of a lesson.

    Attributes:
        since: Date of the commit that brought them, `YYYY-MM-DD`; empty if no commit holds them.
        environment: The line that `env_summary` printed when they were made.
        cells: Number of code cells.
        with_output: How many of them have an output.
        compared: How many of them the tests compare exactly; nbval passes one that has no
            execution count.
        asserts: How many `assert` statements they hold.
    """

    since: str
    environment: str
    cells: int
    with_output: int
    compared: int
    asserts: int

    def version(self, name: str) -> str:
        """A version out of the line, as `Python` or `torch`; empty if it is not there."""
        found = re.search(rf"(?<!\S){re.escape(name)} (\d[\w.]*)", self.environment)
        return found[1] if found else ""


def _outputs(text: str) -> str:
    cells = json.loads(text)["cells"]
    stored = [cell.get("outputs") for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def since(path: str, root: Path = ROOT) -> str:
    """Date of the commit since which a notebook holds its present outputs; empty if none does."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
        return done.stdout.decode("utf-8") if done.returncode == 0 else ""

    wanted, date = _outputs((root / path).read_text(encoding="utf-8")), ""
    for line in git("log", "--format=%H %cs", "--", path).splitlines():
        commit, day = line.split()
        text = git("show", f"{commit}:{path}")
        if not text or _outputs(text) != wanted:
            break
        date = day
    return date


def stored(path: str, root: Path = ROOT) -> Stored:
    """Read off a notebook what is known of its outputs."""
    nb: Mapping[str, Any] = json.loads((root / path).read_text(encoding="utf-8"))
    code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    texts = ["".join(o.get("text", "")) for cell in code for o in cell.get("outputs", [])]
    compared = [
        IGNORE_TAG not in cell["metadata"].get("tags", []) and bool(cell.get("execution_count"))
        for cell in code
    ]
    sources = ["".join(cell["source"]) for cell in code]
    return Stored(
        since=since(path, root),
        environment=next((t.strip() for t in texts if t.startswith("env: ")), ""),
        cells=len(code),
        with_output=sum(bool(cell.get("outputs")) for cell in code),
        compared=compared.count(True),
        asserts=sum(len(re.findall(r"^\s*assert\b", source, re.M)) for source in sources),
    )


OUTPUTS = {
    "zh": (
        "# 輸出從哪裡來\n\n"
        "課文裡的每一個輸出都存在筆記本裡，建這個網站時沒有執行任何東西。"
        "每次測試都重新執行每一課，在 Linux x86-64 上把輸出和存著的逐字比較；"
        "計時的和印出環境的格子例外，它們只有 `assert`。圖片不比較，旁邊的文字和表格比較。"
        "英文版的程式和輸出從中文版複製，一個位元組都不差。\n",
        ("課", "輸出的日期", "Python", "torch", "torchao", "executorch"),
        ("課", "程式格", "有輸出", "逐字比較", "只檢查 `assert`", "`assert` 的數目"),
        "## 每一課\n",
        "## 比較多少格\n",
        "## 那一台機器\n",
        "還沒有提交",
    ),
    "en": (
        "# Where the outputs come from\n\n"
        "Every output in the lessons is stored in its notebook; nothing was executed to build this "
        "site. Each test run executes each lesson again and, on Linux x86-64, compares the outputs "
        "with the stored ones word for word, except in the cells that time something or print the "
        "environment, which have asserts. Pictures are not compared; the text and the tables "
        "beside them are. The English edition's code and outputs are copied from the Chinese one, "
        "byte for byte.\n",
        ("lesson", "outputs of", "Python", "torch", "torchao", "executorch"),
        ("lesson", "code cells", "with output", "compared", "asserts only", "`assert` statements"),
        "## Each lesson\n",
        "## How many cells are compared\n",
        "## The machine\n",
        "not committed yet",
    ),
}


def outputs_page(language: str) -> str:
    """When and with which versions the outputs of each lesson were made, and what is compared."""
    head, made, compared, first, second, third, never = OUTPUTS[language]
    one: list[list[str]] = []
    two: list[list[str]] = []
    machines: list[str] = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        facts = stored(f"notebooks/{path.name}")
        link = f"[{path.stem.partition('_')[0]}]({path.name})"
        versions = [facts.version(name) for name in made[2:]]
        one.append([link, facts.since or never, *versions])
        left = facts.cells - facts.compared
        counts = (facts.cells, facts.with_output, facts.compared, left, facts.asserts)
        two.append([link, *map(str, counts)])
        machines.append(f"- {link}: `{facts.environment}`\n")
    parts = (head, first, _table(made, one), second, _table(compared, two), third)
    return "\n".join((*parts, "".join(machines)))


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- All of it


def _of_file(source: str, name: str, group: str, language: str) -> Page:
    path = ROOT / source
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = lesson(text, source=source, page=name, language=language)
        return Page(name, group, source, ".ipynb", text)
    text = one_title(with_links(text, source=source, page=name, language=language))
    if language == "zh" and not source.startswith("notebooks/"):
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n```{{note}}\n{ENGLISH_ONLY}```\n{rest}"
    return Page(name, group, source, ".md", text)


def _place(page: Page) -> int:
    places = [i for i, start in enumerate(_ORDER) if page.name.startswith(start)]
    return places[0] if places else len(_ORDER)


def pages(language: str) -> list[Page]:
    """All pages in one language, in the order of the navigation; the overview is the last.

    Args:
        language: `zh` or `en`.

    Raises:
        FileNotFoundError: A lesson or page has no English edition.
    """
    edition = "notebooks" if language == "zh" else "notebooks/en"
    found = [
        Page("glossary", "look up", None, ".md", glossary_page(language)),
        Page("api/index", "package", None, ".md", api_index(language)),
        Page("outputs", "package", None, ".md", outputs_page(language)),
    ]
    found += [Page(f"api/{m}", "", None, ".md", api_page(m)) for m in public_modules()]
    for source, name in shown(language).items():
        if source == "README.md":
            found.append(_of_file(source, name, "package", language))
        elif source.startswith("docs/"):
            found.append(_of_file(source, name, "look up", language))
        elif source.startswith("notebooks/") and "/en" not in source and name != "index":
            group = "lessons" if source.endswith(".ipynb") else "look up"
            file = PurePosixPath(source).name
            found.append(_of_file(f"{edition}/{file}", name, group, language))
    found.sort(key=_place)
    home = _of_file(f"{edition}/README.md", "index", "", language)
    text = f"{home.text}\n{toctrees(found, language)}"
    return [*found, Page("index", "", home.source, ".md", text)]


def write(folder: Path, language: str) -> list[Page]:
    """Write the pages and their pictures into a folder; return them.

    A file whose text is the same is left alone, so that Sphinx need not read it again. One that
    is no page any longer is removed.
    """
    made = pages(language)
    files = {folder / f"{page.name}{page.suffix}": page.text.encode() for page in made}
    for picture in sorted((ROOT / "notebooks/images").iterdir()):
        files[folder / "images" / picture.name] = picture.read_bytes()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()
    return made

"""Build the site from the committed notebooks; nothing is executed, nothing is fetched.

    uv run --only-group site python -m tools.build_site            # into build/site
    uv run --only-group site python -m tools.build_site --serve    # and show it on this machine

Both languages are built at the same time, each by a Sphinx of its own with site/conf.py. A
warning is an error, and so is a page that would load anything from another host. Neither torch
nor ExecuTorch is needed: the reference is made with stand-ins for them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tools import site_pages

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build/site"
MAX_BYTES = 15_000_000
MAX_FIRST_PAGE = 300_000  # without pictures
SPHINX_LANGUAGE = {"zh": "zh_TW", "en": "en"}

# What leads from the root of the site to a language; GitHub Pages shows 404.html by itself.
_DOOR = """\
<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="{base}zh/_static/favicon.svg">
<style>
body {{ background: #fff; color: #000; font: 1.2em sans-serif; margin: 2em; }}
a {{ color: #0a4bff; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #131416; color: #cfd0d0; }}
  a {{ color: #7aa7ff; }}
}}
</style>
{head}</head>
<body>
<main>
<h1>{title}</h1>
<p lang="zh-TW"><a href="{base}zh/index.html" hreflang="zh-TW">繁體中文</a></p>
<p lang="en"><a href="{base}en/index.html" hreflang="en">English</a></p>
</main>
</body>
</html>
"""
_INDEX = _DOOR.format(
    lang="zh-TW",
    title="M08",
    base="",
    head='<meta http-equiv="refresh" content="0; url=zh/index.html">\n',
)
# The address of a page that is not there may have any depth.
_NOT_FOUND = """\
<script>
// The site may lie below a folder: its root is above zh/ or en/, if the address has one of them.
const root = location.pathname.match(/^(.*?\\/)(?:zh|en)\\//);
const base = document.createElement("base");
base.href = root ? root[1] : location.pathname.replace(/[^/]*$/, "");
document.head.prepend(base);
</script>
"""

_ASSET = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc=[\"']?(?:https?:)?//[^\"' >]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|icon|shortcut|preload|prefetch|preconnect))"
    r"[^>]*?\shref=[\"']?(?:https?:)?//[^\"' >]+"
)
_CSS_ASSET = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])(?:https?:)?//[^\"')]+")
_LOADED = re.compile(
    r"<script\b[^>]*?\ssrc=\"([^\"]+)\"|<link\b(?=[^>]*rel=\"stylesheet)[^>]*?\shref=\"([^\"]+)\""
)


def foreign_assets(folder: Path) -> list[str]:
    """What the built pages and style sheets would load from another host."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        pattern = {".html": _ASSET, ".css": _CSS_ASSET}.get(path.suffix)
        if pattern:
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(folder)}: {m[0]}" for m in pattern.finditer(text)]
    return found


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def page_weight(page: Path) -> int:
    """Bytes of a page with its scripts and style sheets, without pictures."""
    text = page.read_text(encoding="utf-8")
    links = {(m[1] or m[2]).partition("?")[0] for m in _LOADED.finditer(text)}
    inlined = sum(len(data) for data in re.findall(r'src="(data:image/[^"]*)"', text))
    return page.stat().st_size - inlined + sum((page.parent / x).stat().st_size for x in links)


def start(language: str, *, build: Path = ROOT / "build") -> subprocess.Popen[str]:
    """Write the pages of a language and start Sphinx on them."""
    sources = build / "site-pages" / language
    site_pages.write(sources, language)
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-E"]
    words += ["-c", str(ROOT / "site"), "-d", str(build / "site-doctrees" / language)]
    words += ["-t", language, "-D", f"language={SPHINX_LANGUAGE[language]}"]
    words += [str(sources), str(build / "site" / language)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def build() -> list[str]:
    """Build both languages into build/site; return what is wrong, nothing if all is well."""
    shutil.rmtree(SITE, ignore_errors=True)
    running = {language: start(language) for language in site_pages.LANGUAGES}
    faults = []
    for language, process in running.items():
        _, errors = process.communicate()
        if process.returncode != 0:
            faults.append(f"Sphinx failed on {language}:\n{errors}")
    if faults:
        return faults
    (SITE / "index.html").write_text(_INDEX, encoding="utf-8")
    not_found = _DOOR.format(lang="en", title="404", base="", head=_NOT_FOUND)
    (SITE / "404.html").write_text(not_found, encoding="utf-8")
    faults = [f"loads from elsewhere: {text}" for text in foreign_assets(SITE)]
    if size(SITE) > MAX_BYTES:
        faults.append(f"the site has {size(SITE):,} bytes, at most {MAX_BYTES:,}")
    for language in site_pages.LANGUAGES:
        weight = page_weight(SITE / language / "index.html")
        if weight > MAX_FIRST_PAGE:
            faults.append(
                f"{language}/index.html loads {weight:,} bytes, at most {MAX_FIRST_PAGE:,}"
            )
    return faults


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def server(folder: Path = SITE, port: int = 0) -> ThreadingHTTPServer:
    """A server on this machine for the built site; port 0 takes a free one."""
    handler = functools.partial(_Quiet, directory=str(folder))
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="show the site when it is built")
    options = parser.parse_args(argv)
    begin = time.perf_counter()
    faults = build()
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    count = len(list(SITE.rglob("*.html")))
    weights = [page_weight(SITE / x / "index.html") / 1000 for x in site_pages.LANGUAGES]
    print(
        f"{SITE.relative_to(ROOT)}: {count} pages, {size(SITE) / 1e6:.1f} MB, "
        f"{time.perf_counter() - begin:.0f} s; first page without pictures: "
        + ", ".join(f"{x} {w:.0f} KB" for x, w in zip(site_pages.LANGUAGES, weights, strict=True))
    )
    if options.serve:
        with server(port=8000) as serving:
            print("http://127.0.0.1:8000/ (Ctrl-C ends it)")
            with contextlib.suppress(KeyboardInterrupt):
                serving.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

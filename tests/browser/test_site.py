"""The built site in a real browser: every page of both languages, as a reader meets it.

    uv run --group site --group browser pytest tests/browser -m browser -n0

It is built anew, then served to a headless Chromium (or Chrome) that is installed on this machine;
M08_CHROMIUM names another one. Nothing is fetched from elsewhere, and these tests see to it.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tools import build_site, site_pages

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, DESKTOP = 390, 1280
WHITE = "rgb(255, 255, 255)"
GRAVE = ("serious", "critical")
# What has the most and the rarest elements: looked at in light and dark, on phone and desktop.
SAMPLE = (
    "zh/index.html",
    "en/M08-1_quantizer.html",
    "zh/M08-4_speed.html",
    "en/api/timing.html",
    "zh/ops.html",
    "zh/search.html?q=" + quote("量化"),
)
# Of a search: how many pages the line above the results promises, and how many stand there.
FOUND = "Number((document.querySelector('.search-summary')?.innerText.match(/\\d+/) || [0])[0])"
SHOWN = "document.querySelectorAll('ul.search > li').length"


class Site(NamedTuple):
    """The site as built and served."""

    base: str
    folder: Path
    cpu_seconds: float

    def pages(self, *, language: str = "*") -> list[str]:
        """Paths of its pages."""
        found = sorted(self.folder.glob(f"{language}/**/*.html"))
        return [path.relative_to(self.folder).as_posix() for path in found]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Build the site and serve it on this machine."""
    import resource  # not on Windows, where these tests are collected and left out

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    faults = build_site.build()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not faults, "\n".join(faults)
    with build_site.server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield Site(f"http://127.0.0.1:{server.server_port}/", build_site.SITE, cpu)
        server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    names = [os.environ.get("M08_CHROMIUM"), *map(shutil.which, BROWSERS)]
    path = next((name for name in names if name), None)
    assert path, "No Chromium here: install one (Debian: apt install chromium) or set M08_CHROMIUM."
    with sync_playwright() as playwright:
        words = ["--no-sandbox", "--disable-gpu"]  # the sandbox does not start as root
        browser = playwright.chromium.launch(executable_path=path, args=words)
        yield browser
        browser.close()


class Tab:
    """One tab, with what went wrong in it."""

    def __init__(self, browser: Any, site: Site, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.site = site
        self.faults: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before its icon had come
            self.faults.append(f"{request.failure}: {request.url[:200]}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.site.base, "data:")):
            self.faults.append(f"leaves the machine: {request.url[:200]}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def open(self, path: str) -> Any:
        """Load a page of the site and wait until it is quiet."""
        self.page.goto(self.site.base + path)
        self.page.wait_for_load_state("networkidle")
        return self.page


@pytest.fixture
def tab(chromium: Any, site: Site) -> Iterator[Any]:
    """Open tabs with `tab(width, scheme)`; they are closed after the test."""
    opened: list[Tab] = []

    def make(width: int = DESKTOP, scheme: str = "light") -> Tab:
        opened.append(Tab(chromium, site, width, scheme))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()


def grave_faults(page: Any) -> list[str]:
    """What axe calls serious or critical on the page that is open."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{page.url}: {violation['id']} ({violation['impact']}): {node['html'][:120]}"
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


# --- building


def test_both_languages_have_the_same_pages(site: Site) -> None:
    chinese, english = (
        [path.partition("/")[2] for path in site.pages(language=x)] for x in site_pages.LANGUAGES
    )
    assert chinese == english
    assert {f"{page.name}.html" for page in site_pages.pages("zh")} <= set(chinese)


def test_it_is_small_and_quick_to_build(site: Site) -> None:
    """60 s on two cores, told by processor time: other work on the machine does not count."""
    assert build_site.size(site.folder) < build_site.MAX_BYTES
    assert site.cpu_seconds < 2 * 60
    for language in site_pages.LANGUAGES:
        page = site.folder / language / "index.html"
        assert 20_000 < build_site.page_weight(page) < build_site.MAX_FIRST_PAGE


# --- every page


@pytest.mark.parametrize("language", site_pages.LANGUAGES)
def test_every_page_loads_and_is_whole(site: Site, tab: Any, language: str) -> None:
    """No request leaves, no error, every picture is there and has words, the switch leads on."""
    one = tab(DESKTOP)
    found: list[str] = []
    other = next(x for x in site_pages.LANGUAGES if x != language)
    pictures = 0
    for path in site.pages(language=language):
        page = one.open(path)
        for image in page.locator("img").all():
            pictures += 1
            alt = (image.get_attribute("alt") or "").strip()
            if len(alt) < 5 or re.search(r"\.(png|svg)$|^Figure", alt):
                found.append(f"{path}: a picture with the alt text {alt!r}")
            if not image.evaluate("image => image.complete && image.naturalWidth > 0"):
                found.append(f"{path}: a picture that does not show: {alt}")
        target = page.locator(".languages a").evaluate("link => link.href").partition("?")[0]
        expected = path.replace(f"{language}/", f"{other}/", 1)
        if target != site.base + expected or not (site.folder / expected).is_file():
            found.append(f"{path}: the switch leads to {target}")
        if page.locator("html").get_attribute("lang") != {"zh": "zh-TW", "en": "en"}[language]:
            found.append(f"{path}: the page does not say its language")
    assert not found + one.faults
    assert pictures >= 15, "the lessons have more pictures than that"


@pytest.mark.parametrize("language", site_pages.LANGUAGES)
def test_every_page_fits_a_phone_in_the_dark(site: Site, tab: Any, language: str) -> None:
    """No page is wider than the screen; pictures lie on a light card, the rest is dark."""
    one = tab(PHONE, "dark")
    found: list[str] = []
    for path in site.pages(language=language):
        page = one.open(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE:
            found.append(f"{path}: {width} pixels wide")
        light = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
            ".reduce((sum, x) => sum + Number(x), 0)"
        )
        if light > 3 * 64:
            found.append(f"{path}: the page is not dark")
        grounds = page.evaluate(
            "[...document.querySelectorAll('img')].map(x => getComputedStyle(x).backgroundColor)"
        )
        if set(grounds) - {WHITE}:
            found.append(f"{path}: pictures on {set(grounds) - {WHITE}}")
    assert not found + one.faults


# --- from page to page


def test_the_switch_lands_on_the_same_lesson(site: Site, tab: Any) -> None:
    for width in (PHONE, DESKTOP):
        one = tab(width)
        for path in (p for p in site.pages(language="zh") if "/M08-" in p):
            page = one.open(path)
            number = page.locator("h1").inner_text()[:5]
            page.get_by_role("link", name="English", exact=True).first.click()
            page.wait_for_url(f"**/en/{path.partition('/')[2]}")
            title = page.locator("h1").inner_text()
            assert title.startswith(number)
            assert not re.search("[\u4e00-\u9fff]", title)
            page.get_by_role("link", name="繁體中文", exact=True).first.click()
            page.wait_for_url(f"**/{path}")
        assert not one.faults


def test_the_root_leads_to_chinese_and_offers_english(site: Site, tab: Any) -> None:
    one = tab()
    page = one.open("")
    page.wait_for_url("**/zh/index.html")
    assert page.get_by_role("link", name="English", exact=True).first.is_visible()
    root = (site.folder / "index.html").read_text(encoding="utf-8")
    assert 'href="en/index.html"' in root
    one.open("404.html").get_by_role("link", name="English").click()
    page.wait_for_url("**/en/index.html")
    assert not one.faults


def test_every_link_within_the_site_leads_somewhere(site: Site, tab: Any) -> None:
    """The browser says where each link leads; files and anchors are looked up."""
    page = tab().page
    ids: dict[str, set[str]] = {}
    links: set[tuple[str, str]] = set()
    for path in site.pages():
        page.goto(site.base + path, wait_until="domcontentloaded")
        ids[path] = set(page.evaluate("[...document.querySelectorAll('[id]')].map(x => x.id)"))
        hrefs = page.evaluate("[...document.querySelectorAll('article a[href]')].map(x => x.href)")
        hrefs = [href for href in hrefs if href.startswith(site.base)]
        links |= {(path, href.removeprefix(site.base)) for href in hrefs}
    missing = []
    for path, href in sorted(links):
        file, _, anchor = page.evaluate("decodeURIComponent", href).partition("#")
        if file not in ids or (anchor and anchor not in ids[file]):
            missing.append(f"{path}: {href}")
    assert len(links) > 200
    assert not missing


@pytest.mark.parametrize(
    ("language", "question", "expected"),
    [
        ("zh", "量化", "M08-1_quantizer.html"),
        ("zh", "執行環境", "index.html"),
        ("zh", "中間變回", "M08-3_partition.html"),  # no word, but it stands there
        ("zh", "delegate", "M08-3_partition.html"),
        ("en", "delegate", "M08-3_partition.html"),
        ("en", "observers", "M08-1_quantizer.html"),  # stemmed
        ("en", "lower_to_xnnpack", "api/executorch_utils.html"),
        ("en", "量化", "glossary.html"),
    ],
)
def test_search_finds(tab: Any, language: str, question: str, expected: str) -> None:
    """The question is typed into the field that stands on each page."""
    one = tab()
    page = one.open(f"{language}/symptoms.html")
    page.locator("input[name=q]").first.fill(question)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    page.wait_for_function(f"{FOUND} > 0 && {SHOWN} === {FOUND}")
    links = page.locator("ul.search > li > a").evaluate_all("all => all.map(a => a.href)")
    assert any(re.search(rf"/{language}/{expected}(?=$|[?#])", link) for link in links), links
    assert not one.faults


@pytest.mark.parametrize(("language", "question"), [("zh", "貓熊竹子"), ("en", "giraffe")])
def test_search_does_not_find_what_is_not_there(tab: Any, language: str, question: str) -> None:
    page = tab().open(f"{language}/search.html?q={quote(question)}")
    page.wait_for_function("document.querySelector('.search-summary')?.innerText")
    assert page.evaluate(SHOWN) == 0


# --- for everyone


def test_axe_sees_a_fault(tab: Any) -> None:
    page = tab().open("en/index.html")
    page.evaluate("document.querySelector('article img').removeAttribute('alt')")
    page.evaluate("document.querySelector('article p').style.color = '#bbb'")
    found = "\n".join(grave_faults(page))
    assert "image-alt" in found
    assert "color-contrast" in found


@pytest.mark.parametrize("language", site_pages.LANGUAGES)
def test_axe_finds_no_serious_fault_on_any_page(site: Site, tab: Any, language: str) -> None:
    """The reference is large and the same in both languages: once is enough."""
    one = tab(DESKTOP, {"zh": "light", "en": "dark"}[language])
    paths = [p for p in site.pages(language=language) if not p.startswith("en/api/")]
    assert not [fault for path in paths for fault in grave_faults(one.open(path))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_axe_finds_no_serious_fault_anywhere_in(tab: Any, width: int, scheme: str) -> None:
    one = tab(width, scheme)
    assert not [fault for path in SAMPLE for fault in grave_faults(one.open(path))]


def test_what_scrolls_sideways_is_reached_by_keyboard(tab: Any) -> None:
    page = tab(PHONE).open("zh/M08-1_quantizer.html")
    wide = page.evaluate(
        "[...document.querySelectorAll('article pre')].filter(x => x.scrollWidth > x.clientWidth)"
        ".map(x => x.tabIndex)"
    )
    assert wide
    assert set(wide) == {0}

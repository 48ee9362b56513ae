"""The built site in a real browser: every page of both languages, as a reader meets it.

    uv run --group site --group browser pytest tests/browser -m browser -n0

It is built anew, then served to a headless Chromium (or Chrome) that is installed on this machine;
M08_CHROMIUM names another one. Nothing is fetched from elsewhere, and these tests see to it. One
look at each page, wide and then as narrow as a phone, notes what most of the tests judge.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest

from tools import build_site, site_pages

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, DESKTOP = 390, 1280
WHITE = "rgb(255, 255, 255)"
# What has the most and the rarest elements: the checker looks at it on a phone as well.
SAMPLE = ("index", "M08-1_quantizer", "zoo", "ops", "api/timing", "search")
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
        """Load a page of the site, pictures and scripts included."""
        self.page.goto(self.site.base + path)
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


def axe_faults(page: Any, *, code: bool = True) -> list[str]:
    """What axe finds on the page that is open, be it serious or minor; in its code if asked."""
    from axe_playwright_python.sync_playwright import Axe

    context = None if code else {"exclude": [[".highlight pre > span"]]}
    options = {"resultTypes": ["violations"]}
    found = Axe().run(page, context=context, options=options).response["violations"]
    return [
        f"{page.url}: {violation['id']} ({violation['impact']}): {node['html'][:120]}"
        for violation in found
        for node in violation["nodes"]
    ]


class Look(NamedTuple):
    """What one page showed.

    Attributes:
        path: The page, seen from the root of the site.
        lang: The language that it says it has.
        switch: Where the switch of the language leads.
        pictures: The alt text of each picture, and whether the picture shows.
        ids: What a link can lead to.
        links: Where the links of the article lead.
        width: What the page takes of a phone, in pixels.
        light: Sum of red, green and blue of its ground in the dark.
        grounds: On what its pictures lie then.
        axe: What the accessibility checker finds.
        faults: What the browser complained of.
    """

    path: str
    lang: str
    switch: str
    pictures: list[tuple[str, bool]]
    ids: list[str]
    links: list[str]
    width: int
    light: int
    grounds: list[str]
    axe: list[str]
    faults: list[str]


# What is asked of a page at each of the two widths.
WIDE = """() => ({
    lang: document.documentElement.lang,
    switch: document.querySelector(".languages a").href.split("?")[0],
    pictures: [...document.images].map(x => [x.alt.trim(), x.complete && x.naturalWidth > 0]),
    ids: [...document.querySelectorAll("[id]")].map(x => x.id),
    links: [...document.querySelectorAll("article a[href]")].map(x => x.href),
})"""
NARROW = r"""() => new Promise(requestAnimationFrame).then(() => ({
    width: document.documentElement.scrollWidth,
    light: getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3)
        .reduce((sum, x) => sum + Number(x), 0),
    grounds: [...document.images].map(x => getComputedStyle(x).backgroundColor),
}))"""


def look(one: Tab, path: str, language: str) -> Look:
    """Open a page once, and look at it wide and narrow, light and dark.

    The checker sees all Chinese pages wide and light, all English ones wide and dark, and some of
    them narrow, the other way round. The reference is the same in both languages: once is enough.
    The colours of code are those of some pages everywhere, and take it most of its time.
    """
    first, second = {"zh": ("light", "dark"), "en": ("dark", "light")}[language]
    name = path.partition("/")[2].removesuffix(".html")
    one.faults.clear()
    one.page.set_viewport_size({"width": DESKTOP, "height": 900})
    one.page.emulate_media(color_scheme=first)
    page = one.open(path)
    seen = page.evaluate(WIDE)
    axe = [] if path.startswith("en/api/") else axe_faults(page, code=name in SAMPLE)
    page.set_viewport_size({"width": PHONE, "height": 900})
    page.emulate_media(color_scheme="dark")
    seen |= page.evaluate(NARROW)
    if name in SAMPLE:
        page.emulate_media(color_scheme=second)
        axe += axe_faults(page)
    return Look(path=path, axe=axe, faults=list(one.faults), **seen)


@pytest.fixture(scope="module")
def looks(chromium: Any, site: Site) -> dict[str, list[Look]]:
    """One look at each page, by language."""
    one = Tab(chromium, site, DESKTOP, "light")
    found = {x: [look(one, p, x) for p in site.pages(language=x)] for x in site_pages.LANGUAGES}
    one.context.close()
    return found


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
def test_every_page_loads_and_is_whole(
    site: Site, looks: dict[str, list[Look]], language: str
) -> None:
    """No request leaves, no error, every picture is there and has words, the switch leads on."""
    found: list[str] = []
    other = next(x for x in site_pages.LANGUAGES if x != language)
    for one in looks[language]:
        found += [f"{one.path}: {fault}" for fault in one.faults]
        for alt, shows in one.pictures:
            if len(alt) < 5 or re.search(r"\.(png|svg)$|^Figure", alt):
                found.append(f"{one.path}: a picture with the alt text {alt!r}")
            if not shows:
                found.append(f"{one.path}: a picture that does not show: {alt}")
        expected = one.path.replace(f"{language}/", f"{other}/", 1)
        if one.switch != site.base + expected or not (site.folder / expected).is_file():
            found.append(f"{one.path}: the switch leads to {one.switch}")
        if one.lang != {"zh": "zh-TW", "en": "en"}[language]:
            found.append(f"{one.path}: the page says that its language is {one.lang!r}")
    assert not found
    pictures = sum(len(one.pictures) for one in looks[language])
    assert pictures >= 15, "the lessons have more pictures than that"


@pytest.mark.parametrize("language", site_pages.LANGUAGES)
def test_every_page_fits_a_phone_in_the_dark(looks: dict[str, list[Look]], language: str) -> None:
    """No page is wider than the screen; pictures lie on a light card, the rest is dark."""
    found: list[str] = []
    for one in looks[language]:
        if one.width > PHONE:
            found.append(f"{one.path}: {one.width} pixels wide")
        if one.light > 3 * 64:
            found.append(f"{one.path}: the page is not dark")
        if others := {*one.grounds} - {WHITE}:
            found.append(f"{one.path}: pictures on {others}")
    assert not found


def test_every_link_within_the_site_leads_somewhere(
    site: Site, looks: dict[str, list[Look]]
) -> None:
    """The browser says where each link leads; files and anchors are looked up."""
    pages = [one for language in site_pages.LANGUAGES for one in looks[language]]
    ids = {one.path: set(one.ids) for one in pages}
    links = {
        (one.path, unquote(href.removeprefix(site.base)))
        for one in pages
        for href in one.links
        if href.startswith(site.base)
    }
    missing = []
    for path, href in sorted(links):
        file, _, anchor = href.partition("#")
        if file not in ids or (anchor and anchor not in ids[file]):
            missing.append(f"{path}: {href}")
    assert len(links) > 200
    assert not missing


# --- from page to page


def test_the_switch_lands_on_the_same_lesson(site: Site, tab: Any) -> None:
    for width in (PHONE, DESKTOP):
        one = tab(width)
        for path in (p for p in site.pages(language="zh") if "/M08-" in p):
            page = one.open(path)
            number = re.match(r"M08(-\d)?", page.locator("h1").inner_text())
            assert number
            page.get_by_role("link", name="English", exact=True).first.click()
            page.wait_for_url(f"**/en/{path.partition('/')[2]}")
            title = page.locator("h1").inner_text()
            assert title.startswith(number[0])
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
    page = tab().open("en/glossary.html")
    page.evaluate("document.querySelector('article td').innerHTML = '<img src=x.png>'")
    page.evaluate("document.querySelector('article p').style.color = '#bbb'")
    found = "\n".join(axe_faults(page))
    assert "image-alt" in found
    assert "color-contrast" in found


@pytest.mark.parametrize("language", site_pages.LANGUAGES)
def test_axe_finds_no_fault_on_any_page(looks: dict[str, list[Look]], language: str) -> None:
    found = [fault for one in looks[language] for fault in one.axe]
    assert not found, "\n".join(found)


def test_axe_finds_no_fault_where_a_search_has_found(tab: Any) -> None:
    page = tab(PHONE, "dark").open(f"zh/search.html?q={quote('量化')}")
    page.wait_for_function(f"{FOUND} > 0 && {SHOWN} === {FOUND}")
    assert not axe_faults(page)


def test_what_scrolls_sideways_is_reached_by_keyboard(tab: Any) -> None:
    page = tab(PHONE).open("zh/M08-1_quantizer.html")
    wide = page.evaluate(
        "[...document.querySelectorAll('article pre')].filter(x => x.scrollWidth > x.clientWidth)"
        ".map(x => x.tabIndex)"
    )
    assert wide
    assert set(wide) == {0}

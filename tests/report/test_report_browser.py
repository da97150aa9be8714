"""The page in a real browser, at desk and at phone width, in light and in dark."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, find_chromium, running
from test_report_page import SECTIONS, failed_everything, hostile_events

from kernelwright.insights.two_runs import compare_runs
from kernelwright.report.html.two_runs import write_comparison
from kernelwright.report.page import write_report
from kernelwright.store.event import Evaluated
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events, write_sample_run

pytestmark = pytest.mark.browser

OVERFLOWING = """[...document.querySelectorAll('body *')]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, nav, pre'))
    .map((e) => `${e.tagName}.${e.getAttribute('class')}`).slice(0, 5)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        missing = "no Chromium is installed: chromium, chromium-browser or google-chrome"
        (pytest.fail if os.environ.get("KERNELWRIGHT_REQUIRE_BROWSER") else pytest.skip)(missing)
    with running(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "usual": sample_events(evaluations=300, workloads=3),
        "one": sample_events(evaluations=1),
        "failed": failed_everything(),
        "hostile": hostile_events(),
        "started": sample_events(evaluations=5)[:1],
    }
    return {name: write_report(RunView.of(events), folder / f"{name}.html") for name, events in runs.items()}


@pytest.mark.few(10)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["usual", "one", "failed", "hostile", "started"])
def test_the_page_opens_without_complaint_and_fits(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    page = browser.open(pages[name], width=width, dark=dark)
    assert page.errors == []
    assert [url for url in page.urls if not url.startswith(("file:", "data:"))] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    missing = f"{list(SECTIONS)}.filter((id) => !document.getElementById(id)?.getBoundingClientRect().height)"
    assert browser.evaluate(missing) == []


def test_charts_for_one_width_are_shown_at_a_time(browser: Browser, pages: dict[str, Path]) -> None:
    count = "[...document.querySelectorAll('#convergence svg')].filter((e) => e.checkVisibility()).length"
    for width in (390, 1440):
        browser.open(pages["usual"], width=width)
        assert browser.evaluate(count) == 2
        size = browser.evaluate(
            "parseFloat(getComputedStyle(document.querySelector('#convergence .tick')).fontSize) * "
            "Math.max(...[...document.querySelectorAll('#convergence svg')]"
            ".map((e) => e.getBoundingClientRect().width / e.viewBox.baseVal.width))"
        )
        assert 9 < size < 18, "labels must be readable"


def test_dark_and_light_differ(browser: Browser, pages: dict[str, Path]) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.open(pages["usual"], width=1440)
    light = browser.evaluate(colour)
    browser.open(pages["usual"], width=1440, dark=True)
    assert browser.evaluate(colour) != light


ROWS = "document.querySelectorAll('table.all tbody tr').length"


def test_the_table_sorts_filters_and_grows(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"], width=1440)
    assert browser.evaluate(ROWS) == 25
    browser.evaluate("document.getElementById('more').click()")
    assert browser.evaluate(ROWS) == 125
    browser.evaluate("document.querySelector('th[data-key=index] button').click()")
    first = "document.querySelector('table.all tbody td').textContent"
    assert browser.evaluate(first) == "0"
    browser.evaluate("document.querySelector('th[data-key=index] button').click()")
    assert browser.evaluate(first) == "299"
    browser.evaluate(
        "{ const f = document.getElementById('filter'); f.value = 'block=128 order=row';"
        "  f.dispatchEvent(new Event('input')); }"
    )
    kept = browser.evaluate(
        "[...document.querySelectorAll('table.all tbody tr')].every((r) => /128.*row/.test(r.textContent))"
    )
    assert kept
    assert 0 < browser.evaluate(ROWS) < 125
    browser.evaluate(
        "{ const s = document.getElementById('status'); s.value = 'failed'; s.dispatchEvent(new Event('change')); }"
    )
    assert browser.evaluate(
        "[...document.querySelectorAll('table.all tbody tr')].every((r) => r.querySelector('.fail'))"
    )
    assert browser.complaints().errors == []


SAVED = """(async () => {
    const made = [];
    const keep = URL.createObjectURL;
    URL.createObjectURL = (blob) => { made.push(blob); return keep(blob); };
    HTMLAnchorElement.prototype.click = function () { made.push(this.download); };
    document.getElementById('save').click();
    URL.createObjectURL = keep;
    return [await made[0].text(), made[1]];
})()"""


def test_what_is_filtered_is_saved_as_csv_in_the_order_shown(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"], width=1440)
    text, name = browser.evaluate(SAVED)
    assert name == "scale.csv"
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 300, "all of them, however few the page shows"
    assert {"index", "id", "status", "failure", "speedup", "BLOCK", "ORDER", "cost (s)"} <= rows[0].keys()
    speeds = [float(row["speedup"]) for row in rows if row["speedup"]]
    assert speeds == sorted(speeds, reverse=True)
    browser.evaluate(
        "{ const f = document.getElementById('filter'); f.value = 'block=128 passed';"
        "  f.dispatchEvent(new Event('input')); }"
    )
    kept = list(csv.DictReader(io.StringIO(browser.evaluate(SAVED)[0])))
    assert 0 < len(kept) < 300
    assert {(row["BLOCK"], row["status"]) for row in kept} == {("128", "passed")}


def test_hostile_text_is_no_formula_and_no_further_cell_of_the_csv(browser: Browser, tmp_path: Path) -> None:
    rude = ('=HYPERLINK("http://evil.example","x")', "@SUM(A1)", 'a,b\n"c"')
    events = [
        dataclasses.replace(each, config={**each.config, "ORDER": rude[each.index % 3]})
        if isinstance(each, Evaluated)
        else each
        for each in sample_events(evaluations=9)
    ]
    browser.open(write_report(RunView.of(events), tmp_path / "rude.html"), width=1440)
    rows = list(csv.DictReader(io.StringIO(browser.evaluate(SAVED)[0])))
    assert len(rows) == 9
    assert {row["ORDER"] for row in rows} == {f"'{rude[0]}", f"'{rude[1]}", rude[2]}


def test_thousands_of_configurations_are_drawn_a_page_at_a_time(browser: Browser, tmp_path: Path) -> None:
    events = sample_events(evaluations=300)
    found = [each for each in events if isinstance(each, Evaluated)]
    many = [dataclasses.replace(found[place % 300], index=place) for place in range(5000)]
    others = [each for each in events if not isinstance(each, Evaluated)]
    page = browser.open(write_report(RunView.of([*others[:3], *many]), tmp_path / "many.html"), width=1440)
    assert page.errors == []
    assert browser.evaluate(ROWS) == 25
    assert browser.evaluate("document.getElementById('count').value") == "25 of 5000 shown"
    assert browser.evaluate("document.querySelectorAll('*').length") < 20_000, "the page does not grow with the run"
    assert len(browser.evaluate(SAVED)[0].splitlines()) == 5001


def test_the_arrow_keys_go_from_point_to_point_of_a_chart(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"], width=1440)
    press = """(key) => {
        const svg = document.querySelector('#convergence .wide svg');
        svg.focus();
        svg.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        const tip = document.getElementById('tip');
        return tip.hidden ? '' : tip.textContent;
    }"""
    first = browser.evaluate(f"({press})('ArrowRight')")
    assert first.startswith("#")
    assert "BLOCK = " in first
    assert browser.evaluate(f"({press})('ArrowRight')") != first
    assert browser.evaluate(f"({press})('Home')") == first
    assert browser.evaluate(f"({press})('Escape')") == ""


@pytest.mark.parametrize("width", [390, 1440])
def test_a_page_of_two_runs_opens_without_complaint_and_fits(browser: Browser, tmp_path: Path, width: int) -> None:
    runs = [write_sample_run(tmp_path / name, evaluations=60, seed=seed) for seed, name in enumerate(("a", "b"))]
    out = write_comparison(compare_runs(*runs), tmp_path / "two.html")
    page = browser.open(out, width=width)
    assert page.errors == []
    assert [url for url in page.urls if not url.startswith(("file:", "data:"))] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    order = "[...document.querySelectorAll('{}')].map((e) => e.{})"
    places = browser.evaluate(order.format("nav a", "hash.slice(1)"))
    assert places == browser.evaluate(order.format("main > section", "id"))


def test_a_point_tells_its_configuration(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"], width=1440)
    at = browser.evaluate(
        """(() => {
            const svg = document.querySelector('#convergence .wide svg');
            svg.scrollIntoView({ block: 'center', behavior: 'instant' });
            const first = svg.querySelector('.dots.passed').getAttribute('d').slice(1).split('h')[0];
            const [x, y] = first.split(' ').map(Number);
            const point = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
            return [point.x, point.y];
        })()"""
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    tip = browser.evaluate("document.getElementById('tip').textContent")
    assert "BLOCK = " in tip
    assert "the baseline's speed" in tip


def test_what_could_not_be_shown_by_script_is_in_the_file(pages: dict[str, Path]) -> None:
    text = pages["usual"].read_text(encoding="utf-8")
    body = text.split('<table class="all">')[1].split("</tbody>")[0]
    assert body.count("<tr>") == 26  # the head and the 25 fastest


RECORDED = Path(__file__).parent.parent / "agent" / "recordings" / "softmax"


@pytest.fixture(scope="module")
def tree_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(RECORDED, tmp_path_factory.mktemp("tree") / "tree.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_page_with_a_tree_opens_without_complaint_and_fits(
    browser: Browser, tree_page: Path, width: int, dark: bool
) -> None:
    page = browser.open(tree_page, width=width, dark=dark)
    assert page.errors == []
    assert [url for url in page.urls if not url.startswith(("file:", "data:"))] == []
    browser.evaluate("document.querySelector('#tree-tools [data-show=all]').click()")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []


def test_a_click_on_the_tree_opens_what_is_known_of_that_node(browser: Browser, tree_page: Path) -> None:
    browser.open(tree_page, width=1440)
    is_open = "document.querySelector('#node-{} > details').open"
    assert browser.evaluate(is_open.format(6)) is False
    box = "document.querySelector('.tree-chart [data-node=\"6\"]')"
    browser.evaluate(f"{box}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    browser.evaluate("new Promise((done) => setTimeout(() => done(1), 1500))")  # it scrolls smoothly
    assert browser.evaluate(is_open.format(6)) is True
    assert browser.evaluate("document.querySelector('#node-6').classList.contains('chosen')") is True
    top = browser.evaluate("document.querySelector('#node-6').getBoundingClientRect().top")
    assert 0 <= top < 900


def test_buttons_show_a_part_of_the_tree(browser: Browser, tree_page: Path) -> None:
    browser.open(tree_page, width=1440)
    opened = "[...document.querySelectorAll('li.node > details[open]')].map((each) => each.parentElement.id)"
    for which, expected in (("none", []), ("failed", ["node-7"])):
        browser.evaluate(f"document.querySelector('#tree-tools [data-show={which}]').click()")
        assert browser.evaluate(opened) == expected
    browser.evaluate("document.querySelector('#tree-tools [data-show=path]').click()")
    assert browser.evaluate(opened) == [f"node-{index}" for index in range(6)]


UNSIGNED = """[...document.querySelectorAll('.scroll')]
    .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .filter((e) => !e.classList.contains('cut') || e.previousElementSibling.hidden)
    .map((e) => e.closest('section').id)"""


@pytest.mark.parametrize("width", [390, 1440])
def test_what_is_wider_than_the_page_says_so(
    browser: Browser, tree_page: Path, pages: dict[str, Path], width: int
) -> None:
    for page in (tree_page, pages["usual"]):
        browser.open(page, width=width)
        assert browser.evaluate(UNSIGNED) == []
        browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        browser.evaluate("new Promise((done) => setTimeout(() => done(1), 300))")  # they say so a little later
        assert browser.evaluate(UNSIGNED) == []
    signs = "[...document.querySelectorAll('.sideways')].filter((e) => !e.hidden).length"
    assert width == 1440 or browser.evaluate(signs) > 0


def test_figures_of_a_step_are_read_without_scrolling_on_a_phone(browser: Browser, tree_page: Path) -> None:
    browser.open(tree_page, width=390)
    outside = """[...document.querySelectorAll('.stacked td')]
        .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)"""
    assert browser.evaluate(f"{outside}.length") == 0
    text = "document.querySelector('#tree .stacked th[scope=row]').getBoundingClientRect().width"
    assert browser.evaluate(text) > 300, "the words of a step have the width of the card"


def test_the_places_of_the_page_are_one_line(browser: Browser, tree_page: Path) -> None:
    browser.open(tree_page, width=1440)
    tops = "new Set([...document.querySelectorAll('nav a')].map((e) => e.getBoundingClientRect().top)).size"
    assert browser.evaluate(tops) == 1


def test_paragraphs_and_lists_end_at_one_measure(browser: Browser, tree_page: Path) -> None:
    browser.open(tree_page, width=1440)
    widest = """(() => {
        const right = (e) => e.getBoundingClientRect().right;
        const of = (what) => Math.max(...[...document.querySelectorAll(what)].map(right));
        return [of('#story > p'), of('#story > ul')];
    })()"""
    paragraphs, lists = browser.evaluate(widest)
    assert paragraphs == pytest.approx(lists, abs=2)

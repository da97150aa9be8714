"""The live page in a real browser: it grows without being loaded again, and keeps what a person has opened."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, find_chromium, running

from kernelwright.store.run_folder import RunFolder
from kernelwright.testing.sample_runs import FILES, sample_events
from kernelwright.watching.server import WatchServer

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

EVENTS = sample_events(evaluations=120, workloads=2)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        missing = "no Chromium is installed: chromium, chromium-browser or google-chrome"
        (pytest.fail if os.environ.get("KERNELWRIGHT_REQUIRE_BROWSER") else pytest.skip)(missing)
    with running(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "runs" / "one", files=FILES) as folder:
        folder.append(EVENTS[:40])
        yield folder


@pytest.fixture
def served(tmp_path: Path, run: RunFolder) -> Iterator[WatchServer]:
    with WatchServer(tmp_path / "runs") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(120)


def becomes(browser: Browser, expression: str, wanted: Any) -> bool:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        if browser.evaluate(expression) == wanted:
            return True
        time.sleep(0.1)
    return False


COUNT = "document.getElementById('count').value.split(' ')[2]"


def test_the_page_grows_and_keeps_what_was_opened(browser: Browser, served: WatchServer, run: RunFolder) -> None:
    page = browser.open(f"{served.url}0/", width=1440)
    assert page.errors == []
    own = served.url.rsplit("/", 2)[0]
    assert [url for url in page.urls if not url.startswith((own, "data:"))] == []
    assert becomes(browser, "document.getElementById('live-state').textContent", "under way")
    assert becomes(browser, COUNT, "37")
    browser.evaluate("window.mark = 'not loaded again'")
    browser.evaluate("document.querySelector('#failures details, #all details, details').open = true")
    browser.evaluate(
        "{ const f = document.getElementById('filter'); f.value = 'block=128'; f.dispatchEvent(new Event('input')); }"
    )
    kept = int(browser.evaluate(COUNT))
    run.append(EVENTS[40:])
    assert becomes(browser, "document.querySelectorAll('#evaluations').length", 1)
    assert becomes(browser, "JSON.parse(document.getElementById('evaluations').textContent).rows.length", 120)
    assert browser.evaluate("window.mark") == "not loaded again"
    assert browser.evaluate("document.getElementById('filter').value") == "block=128"
    assert int(browser.evaluate(COUNT)) > kept
    assert browser.evaluate("[...document.querySelectorAll('details')].filter((each) => each.open).length") >= 1
    assert browser.evaluate("document.querySelectorAll('main').length") == 1
    assert becomes(browser, "document.getElementById('live-state').textContent.slice(0, 5)", "over:")
    assert "over: budget" in browser.evaluate("document.getElementById('live-log').textContent")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1440
    assert browser.complaints().errors == []
    browser.call("Page.navigate", url="about:blank")  # else it asks on


def test_the_list_of_runs_grows_too(browser: Browser, served: WatchServer, run: RunFolder) -> None:
    assert browser.open(served.url, width=390).errors == []
    cell = "document.querySelector('#runs tbody tr td.num').textContent"
    assert browser.evaluate(cell) == "37"
    run.append(EVENTS[40:60])
    assert becomes(browser, f"Number({cell}) > 37", True)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.complaints().errors == []

"""The page in a real browser: drawn, without complaints, and answering to mouse and keyboard."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dovetail.cli import main
from dovetail.cluster.words import WORDS as CLUSTER
from dovetail.core.events import Arrived, Complete, Finished, Reject, Rows, Start
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.results.charts import Chart, Series, as_fact
from dovetail.core.results.confidence import Mean
from dovetail.report.data.collect import collect
from dovetail.report.html import page
from dovetail.report.look import number
from dovetail.report.sweep_page import sweep_page
from dovetail.workflow.words import WORDS as WORKFLOW
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"
DRAWN = "canvas[data-drawn]:not([data-drawn='0'])"
_FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def _unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        _unavailable("no Chromium on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("the Python package playwright is not installed")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=_FLAGS, timeout=1000 * PATIENCE_S)
        yield running
        running.close()


def expect(what: Locator) -> Any:
    """What is to come about, however long a busy machine takes."""
    from playwright.sync_api import expect as wait_for

    wait_for.set_options(timeout=1000 * PATIENCE_S)
    return wait_for(what)


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """One that waits as long as a busy machine takes."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE_S)
    return context


def journal(path: Path, policy: str, kinds: int = 5, works: int = 60, type_: str = "a100") -> Path:
    """Back-to-back work on four GPUs; the first part of all is 20 s long on GPU 0, after 5 s of loading."""
    rng = random.Random(policy)
    pool = Pool(tuple(Device(i, type_, 0) for i in range(4)), {type_: DeviceType(type_)})
    begin = [Arrived("w0", "t"), Start("w0", "first", EVIL, (0,), 0.0, 20.0, "the only one", 5.0)]
    steps: list[tuple[float, list[Any]]] = [(0.0, begin), (25.0, [Finished("w0", "first"), Complete("w0")])]
    free = [25.0, 0.0, 0.0, 0.0]
    for i in range(1, works):
        device = min(range(4), key=free.__getitem__)
        t, run = free[device], rng.uniform(1.0, 6.0)
        start = Start(f"w{i}", "p", f"model-{i % kinds}", (device,), max(t - 3.0, 0.0), run, "it is its turn", 0.5, "x")
        steps.append((t, [Arrived(f"w{i}", "t"), start]))
        steps.append((t + 0.5 + run, [Finished(f"w{i}", "p"), Complete(f"w{i}")]))
        free[device] = t + 0.5 + run
    steps.append((max(free), [Arrived(EVIL, "t"), Reject(EVIL, EVIL)]))
    with Writer(path, Header(level="workflow", policy=policy, pool=pool, words=WORKFLOW)) as writer:
        for n, (t, events) in enumerate(sorted(steps, key=lambda step: step[0]), start=1):
            writer.step(n, t, events)
        writer.end(len(steps) + 1, max(free), {"bound_makespan_s": 0.8 * max(free), "bound_mean_s": 3.0})
    return path


class Opened:
    """A page, with all it complained about and all it asked the network for."""

    def __init__(self, tab: Page, file: Path) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(file.as_uri())
        self.canvas = tab.locator("canvas:visible").first
        tab.locator(f"{DRAWN} >> visible=true").first.wait_for()

    def view(self) -> tuple[float, float]:
        self.tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        low, high = (self.canvas.get_attribute("data-view") or "").split(",")
        return float(low), float(high)

    def at(self, x: float, y: float) -> None:
        """Move the mouse to a place on the canvas: `x` as a share of its width, `y` in pixels."""
        box = self.canvas.bounding_box()
        assert box
        self.tab.mouse.move(box["x"] + x * box["width"], box["y"] + y)

    def at_time(self, t: float, y: float) -> None:
        """Move the mouse to an instant that is in view."""
        low, high = self.view()
        left, width = map(float, (self.canvas.get_attribute("data-plot") or "").split(","))
        box = self.canvas.bounding_box()
        assert box
        self.at((left + (t - low) / (high - low) * width) / box["width"], y)

    def colours(self) -> dict[str, int]:
        """How many pixels of the canvas have which colour."""
        counts: dict[str, int] = self.canvas.evaluate(
            """canvas => {
                const copy = document.createElement("canvas"), counts = {};
                copy.width = canvas.width;
                copy.height = canvas.height;
                const pen = copy.getContext("2d", {willReadFrequently: true});
                pen.drawImage(canvas, 0, 0);
                const pixels = pen.getImageData(0, 0, copy.width, copy.height).data;
                for (let i = 0; i < pixels.length; i += 4) {
                    const hex = "#" + [0, 1, 2].map(j => pixels[i + j].toString(16).padStart(2, "0")).join("");
                    if (pixels[i + 3] === 255) counts[hex] = (counts[hex] || 0) + 1;
                }
                return counts;
            }"""
        )
        return counts


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    policies, options = getattr(request, "param", (["fifo"], {}))
    file = tmp_path / "page.html"
    file.write_text(page([collect(journal(tmp_path / f"{name}.jsonl", name)) for name in policies]), encoding="utf-8")
    context = new_context(browser, **{"viewport": {"width": 1280, "height": 900}, **options})
    seen = Opened(context.new_page(), file)
    yield seen
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("file:")] == []
    assert seen.tab.evaluate("window.evil") is None
    context.close()


def test_every_kind_is_drawn_in_its_colour(opened: Opened) -> None:
    assert opened.canvas.get_attribute("data-drawn") == "60"
    kinds = opened.tab.evaluate("JSON.parse(document.getElementById('data').textContent).kinds")
    assert len(kinds) == 6
    counts = opened.colours()
    assert all(counts.get(colour, 0) > 200 for _, colour, _ in kinds)


def test_hovering_a_bar_tells_what_it_is(opened: Opened) -> None:
    tip = opened.tab.locator("#tip")
    assert tip.is_hidden()
    opened.at(0.2, 48)  # GPU 0, while its first and longest part runs
    text = tip.inner_text()
    assert "w0 / first" in text
    assert EVIL in text  # its kind, as text
    assert "the only one" in text
    assert re.search(r"switch\s+5 s, nothing was there before", text)
    assert re.search(r"waited\s+not at all", text)
    opened.at(0.2, 2000)
    assert tip.is_hidden()


def test_instants_have_no_more_digits_than_are_true(opened: Opened, tmp_path: Path) -> None:
    (bar,) = [bar for bar in collect(tmp_path / "fifo.jsonl").bars if bar.job == "w17"]
    middle, y = (bar.start_s + bar.end_s) / 2, 48 + 36 * bar.devices[0]
    for _ in range(20):
        opened.at_time(middle, y)
        opened.tab.mouse.wheel(0, -240)
        opened.view()
    opened.at_time(middle, y)
    low, high = opened.view()
    assert high - low < 0.01
    expect(opened.tab.locator("#tip")).to_contain_text("w17 / p")
    found = re.search(
        r"time\s+([\d.]+) s to ([\d.]+) s[^@]*ready at ([\d.]+) s", opened.tab.locator("#tip").inner_text()
    )
    assert found
    for told, true in zip(found.groups(), (bar.start_s, bar.end_s, bar.start_s - bar.wait_s), strict=True):
        last_digit = 10.0 ** -len(told.partition(".")[2])
        assert 1e-7 < last_digit < 0.01
        assert float(told) == pytest.approx(true, abs=1.01 * last_digit)


def test_the_wheel_zooms_around_the_mouse_and_dragging_moves(opened: Opened) -> None:
    whole = opened.view()
    opened.at(0.5, 60)
    opened.tab.mouse.wheel(0, -300)
    low, high = opened.view()
    assert whole[0] < low < high < whole[1]
    opened.tab.mouse.down()
    opened.at(0.4, 60)
    opened.tab.mouse.up()
    moved = opened.view()
    assert moved[0] > low
    assert moved[1] - moved[0] == pytest.approx(high - low)
    opened.tab.get_by_role("button", name="Whole run").click()
    assert opened.view() == whole


def test_a_stretch_drawn_with_shift_fills_the_view(opened: Opened) -> None:
    whole = opened.view()
    opened.tab.keyboard.down("Shift")
    opened.at(0.4, 60)
    opened.tab.mouse.down()
    opened.at(0.6, 60)
    opened.tab.mouse.up()
    opened.tab.keyboard.up("Shift")
    low, high = opened.view()
    share = (high - low) / (whole[1] - whole[0])
    assert 0.15 < share < 0.3


def test_the_keyboard_moves_too(opened: Opened) -> None:
    whole = opened.view()
    opened.canvas.focus()
    opened.tab.keyboard.press("+")
    zoomed = opened.view()
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    opened.tab.keyboard.press("ArrowRight")
    assert opened.view()[0] > zoomed[0]
    opened.tab.keyboard.press("0")
    assert opened.view() == whole


def test_a_click_follows_a_request_and_the_search_finds_one(opened: Opened) -> None:
    status = opened.tab.locator(".status")
    opened.at(0.2, 48)
    opened.tab.mouse.down()
    opened.tab.mouse.up()
    expect(status).to_contain_text("w0: 1 bar")
    opened.tab.get_by_role("searchbox").fill("w17")
    expect(status).to_contain_text("w17: 1 bar")
    low, high = opened.view()
    assert high - low < 20
    opened.tab.get_by_role("searchbox").fill("nobody")
    expect(status).to_contain_text("no request here is called “nobody”")


@pytest.mark.parametrize("finest", [False, True], ids=["all drawn", "in pieces"])
def test_near_enough_every_bar_of_many_is_there_with_its_reason(browser: Browser, tmp_path: Path, finest: bool) -> None:
    """Ten thousand requests: the search has their true figures, and one that is near tells why it went where it did;
    also where what is drawn from afar is merged, and the rest is read from inside the page."""
    file = tmp_path / "page.html"
    limits = {"max_bars": 300} if finest else {}
    story = collect(journal(tmp_path / "many.jsonl", "many", works=10_000), **limits)
    assert bool(story.finest) == finest
    file.write_text(page([story]), encoding="utf-8")
    every = collect(tmp_path / "many.jsonl").bars
    context = new_context(browser, viewport={"width": 1280, "height": 900})
    seen = Opened(context.new_page(), file)
    assert int(seen.canvas.get_attribute("data-drawn") or 0) <= (10_000 if not finest else 300)
    for job in ("w7001", "w2"):  # in another piece
        seen.tab.get_by_role("searchbox").fill(job)
        (wanted,) = [bar for bar in every if bar.job == job]
        took_s = wanted.end_s - wanted.start_s + wanted.wait_s
        expect(seen.tab.locator(".status")).to_contain_text(f"{job}: 1 bar, {number(took_s)} s from first ready")
        low, high = seen.view()
        assert high - low < 20
        if finest:
            seen.tab.locator("canvas[data-near='all']").wait_for()
        middle = (wanted.start_s + wanted.setup_s + wanted.end_s) / 2
        seen.at_time(middle, 30 + 36 * wanted.devices[0] + 18)
        expect(seen.tab.locator("#tip")).to_contain_text(f"{job} / p")
        expect(seen.tab.locator("#tip")).to_contain_text("it is its turn")
        expect(seen.tab.locator("#tip")).to_contain_text(number(wanted.run_s))
    seen.tab.get_by_role("button", name="Whole run").click()
    if finest:
        seen.tab.locator("canvas[data-near='']").wait_for()
    assert seen.complaints == []
    context.close()


def test_more_pieces_than_are_kept_are_drawn_once_and_stay(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bar is a piece of its own here, and all are of one request: to follow it reads every piece."""
    monkeypatch.setattr("dovetail.report.data.pieces.ROWS", 1)
    rng = random.Random(0)
    pool = Pool((Device(0, "a100", 0),), {"a100": DeviceType("a100")})
    run, t = tmp_path / "run.jsonl", 0.0
    with Writer(run, Header(level="workflow", policy="fifo", pool=pool, words=WORKFLOW)) as writer:
        writer.step(1, t, [Arrived("w", "t"), Start("w", "p0", "llm", (0,), t, 1.0, "its turn")])
        for i in range(1, 1001):
            t += rng.uniform(0.5, 1.5)
            after = Complete("w") if i == 1000 else Start("w", f"p{i}", "llm", (0,), t, 1.0, "its turn")
            writer.step(i + 1, t, [Finished("w", f"p{i - 1}"), after])
        writer.end(1002, t, {})
    file = tmp_path / "page.html"
    file.write_text(page([collect(run, max_bars=300)]), encoding="utf-8")
    context = new_context(browser, viewport={"width": 1280, "height": 900})
    context.add_init_script(
        """window.read = 0;
        const Stream = DecompressionStream;
        window.DecompressionStream = function(format) { window.read++; return new Stream(format); };"""
    )
    seen = Opened(context.new_page(), file)
    while not seen.canvas.get_attribute("data-near"):
        seen.tab.locator("[data-do='+']").click()
        low, high = seen.view()
    seen.tab.locator("canvas[data-near='all']").wait_for()
    shown = [bar for bar in collect(run).bars if low <= bar.end_s and bar.start_s <= high]
    assert len(shown) > 64
    read = seen.tab.evaluate("window.read")
    for _ in range(9):
        seen.view()
    assert seen.tab.evaluate("window.read") == read
    assert seen.canvas.get_attribute("data-drawn") == str(len(shown))
    for bar in shown[40], shown[20]:
        seen.at_time((bar.start_s + bar.end_s) / 2, 48)
        expect(seen.tab.locator("#tip")).to_contain_text(f"w / {bar.task}")
        if bar is shown[40]:
            seen.tab.mouse.down()
            seen.tab.mouse.up()
            expect(seen.tab.locator(".status")).to_contain_text("w: 1000 bars")
    assert seen.complaints == []
    context.close()


def test_a_browser_that_cannot_read_the_bars_says_so(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page([collect(journal(tmp_path / "run.jsonl", "fifo"))]), encoding="utf-8")
    context = new_context(browser)
    context.add_init_script("delete window.DecompressionStream")
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(file.as_uri())
    for _ in range(2):
        expect(tab.locator(".status")).to_contain_text("cannot be read in this browser: DecompressionStream")
        tab.get_by_role("searchbox").fill("w17")
    assert complaints == []
    context.close()


def test_the_legend_singles_out_a_kind(opened: Opened) -> None:
    kinds = opened.tab.evaluate("JSON.parse(document.getElementById('data').textContent).kinds")
    colour = {name: colour for name, colour, _ in kinds}
    before = opened.colours()
    opened.tab.get_by_role("button", name="model-2").click()
    opened.view()
    after = opened.colours()
    assert after.get(colour["model-2"], 0) > 0.9 * before[colour["model-2"]]
    assert after.get(colour["model-3"], 0) < 0.1 * before[colour["model-3"]]


@pytest.mark.parametrize(
    "opened", [(["fifo"], {"color_scheme": scheme}) for scheme in ("light", "dark")], indirect=True
)
def test_the_page_follows_light_and_dark(opened: Opened, request: pytest.FixtureRequest) -> None:
    ground = opened.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)))
    dark = request.node.callspec.params["opened"][1]["color_scheme"] == "dark"
    assert brightness < 150 if dark else brightness > 600


@pytest.mark.parametrize("opened", [(["fifo", "affinity", "greedy"], {})], indirect=True)
def test_tabs_show_one_run_at_a_time(opened: Opened) -> None:
    runs = opened.tab.locator("article.run")
    data = "JSON.parse(document.getElementById('data').textContent).runs.map(run => run.end)"
    assert len({*opened.tab.evaluate(data)}) == 3
    shown = [runs.nth(i).is_visible() for i in range(3)]
    chosen = [tab.get_attribute("aria-selected") == "true" for tab in opened.tab.get_by_role("tab").all()]
    assert shown == chosen
    assert sum(shown) == 1
    opened.tab.get_by_role("tab", name="affinity").click()
    assert [runs.nth(i).is_visible() for i in range(3)] == [False, True, False]
    opened.tab.locator(f"{DRAWN} >> visible=true").first.wait_for()
    whole = opened.view()
    opened.tab.locator("article.run:visible [data-do='+']").click()
    near = opened.view()
    assert near[1] - near[0] < 0.7 * (whole[1] - whole[0])
    opened.tab.get_by_role("tab", name="fifo").click()
    assert opened.view() == near  # what is chosen in one is shown in all
    opened.tab.locator("a[href='#run-2'] text").first.click()
    assert [runs.nth(i).is_visible() for i in range(3)] == [False, False, True]
    opened.tab.get_by_role("tab", name="affinity").click()
    opened.tab.keyboard.press("ArrowRight")
    assert [runs.nth(i).is_visible() for i in range(3)] == [False, False, True]


def test_pools_stand_apart_and_whatever_names_a_run_leads_to_it(browser: Browser, tmp_path: Path) -> None:
    """Of five policies on two kinds of GPU: each kind has its ranking, and dashes and marks tell curves apart."""
    names = [(policy, type_) for type_ in ("a100", "l4") for policy in "abcde"]
    stories = [collect(journal(tmp_path / f"{p}-{t}.jsonl", p, type_=t)) for p, t in names]
    file = tmp_path / "page.html"
    file.write_text(page(stories), encoding="utf-8")
    context = new_context(browser, viewport={"width": 1280, "height": 900})
    seen = Opened(context.new_page(), file)
    tab, runs = seen.tab, seen.tab.locator("article.run")
    comparison = tab.locator("section.comparison")
    assert comparison.locator("h3").all_inner_texts() == ["4 x a100", "4 x l4"]
    assert comparison.locator("table").count() == 2
    assert comparison.locator("rect.best").count() >= 6  # the best of three figures in both
    assert [each.inner_text() for each in tab.get_by_role("tab").all()] == [f"{p}, 4 x {t}" for p, t in names]
    curves = comparison.locator("svg").filter(has=tab.locator("polyline"))
    for i in range(2):
        drawn = (
            curves.nth(i)
            .locator("a:has(polyline)")
            .evaluate_all(
                "links => links.map(link => [link.querySelector('polyline').style.strokeDasharray, "
                "link.querySelectorAll('circle, path').length > 0])"
            )
        )
        assert len({tuple(each) for each in drawn}) == len(drawn) == 5
    ways = ("a[href='#run-7'] rect.bar", "a[href='#run-7'] text", "td a[href='#run-7']", "a[href='#run-7'] .target")
    for way in ways:
        tab.get_by_role("tab").first.click()
        assert runs.nth(0).is_visible()
        tab.locator(way).first.dispatch_event("click")
        expect(runs.nth(7)).to_be_visible()
    assert seen.complaints == []
    context.close()


@pytest.mark.parametrize(
    "opened",
    [(names, {"viewport": {"width": 380, "height": 800}}) for names in (["fifo"], [*"abcdefgh"])],
    indirect=True,
)
def test_a_narrow_screen_needs_no_sideways_scrolling(opened: Opened) -> None:
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 380
    opened.tab.get_by_role("searchbox").locator("visible=true").fill("w17")
    expect(opened.tab.locator(".status >> visible=true")).to_contain_text("w17: 1 bar")


def sweep(path: Path) -> Path:
    loads = [(line, load) for line in ("fifo", "a policy with a long name, as some have", "las") for load in (1.0, 2.0)]
    means = {key: Mean(load, 0.1) for key in ("avg_jct_s", "p95_jct_s", "utilization") for _, load in loads}
    points = [
        SimpleNamespace(
            cluster="8:8:8",
            line=line,
            load=load,
            static=False,
            seeds=[0, 1],
            status="unstable",
            reason="the queue grew by 5 accelerators",
            means=means,
            quantiles_s=[1.0, 2.0, 3.0 * load],
        )
        for line, load in loads
    ]
    path.write_text(sweep_page(points, "A sweep of three policies"), encoding="utf-8")
    return path


# What cannot be seen without moving it sideways; a schedule's names and labels are cut by the script.
_HIDDEN = """() => [document.documentElement, ...document.querySelectorAll(".scroll, .card, .figure")]
    .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map(each => each.innerText.slice(0, 80))"""
_SMALLEST = """() => Math.min(...[...document.querySelectorAll("svg.chart text")]
    .filter(each => each.getClientRects().length)
    .map(each => parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a))"""
_CHARTS = '() => [...document.querySelectorAll("svg.chart")].filter(each => each.getClientRects().length).length'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_of_page_fits_a_narrow_screen(browser: Browser, tmp_path: Path, scheme: str) -> None:
    """A run of each level, two of them compared, a sweep, a summary of rounds and the demonstration: nothing is cut
    off, nothing has to be moved sideways, and no chart is so small that its words cannot be read."""
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    pages = [tmp_path / "demo/demo.html", sweep(tmp_path / "sweep.html")]
    for level in ("dispatch", "pipeline", "workflow", "cluster", "host"):
        rule, ours = (collect(tmp_path / f"demo/{level}{of}_journal.jsonl") for of in ("_rule", ""))
        for name, stories in ((level, [ours]), (f"{level}s", [rule, ours])):
            pages.append(tmp_path / f"{name}.html")
            pages[-1].write_text(page(stories), encoding="utf-8")
    pages.append(tmp_path / "summary.html")
    pages[-1].write_text(page([collect(rounds(tmp_path / "summary.jsonl", 8, leases=False))]), encoding="utf-8")
    context = new_context(browser, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    for file in pages:
        tab = context.new_page()
        tab.goto(file.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400, file.name
        assert tab.evaluate(_HIDDEN) == [], file.name
        assert tab.evaluate(_SMALLEST) >= 9, file.name
        assert tab.evaluate(_CHARTS) >= (6 if file in pages[:2] else 0), file.name  # without any, none is too small
        tab.close()
    context.close()


def test_without_javascript_figures_and_tables_are_all_there(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    stories = [collect(journal(tmp_path / f"{name}.jsonl", name)) for name in ("fifo", "affinity")]
    file.write_text(page(stories), encoding="utf-8")
    context = new_context(browser, java_script_enabled=False)
    tab = context.new_page()
    tab.goto(file.as_uri())
    assert tab.get_by_text("drawn with JavaScript, which is off here").is_visible()
    assert tab.locator("canvas:visible").count() == 0
    assert tab.locator("table:visible").count() == tab.locator("table").count() == 9
    context.close()


def rounds(path: Path, devices: int, leases: bool = True, begin_s: float = 0.0) -> Path:
    """Jobs 0 and 1 share accelerator 0 for 100 s; each of the others, the last first, has one of its own."""
    types = {name: DeviceType(name) for name in ("fast", "slow")}
    pool = Pool(tuple(Device(i, "fast" if i < 2 else "slow", i // 4) for i in range(devices)), types)
    ids = list(range(devices + 1))
    held = [[0], [0], *([device] for device in range(devices - 1, 0, -1))]
    beside = [1, 0, *[-1] * (devices - 1)]
    facts = {"kinds": [["A", 1], ["B", 1]], "why": ["its turn"], "restart_s": 5.0, "from_first_arrival": begin_s > 0}
    arrived = Rows("arrived", {"id": ids, "kind": [job % 2 for job in ids], "at_s": [begin_s] * len(ids)})
    started = Rows("started", {"id": ids, "devices": held, "why": [0] * len(ids), "beside": beside})
    steps: list[tuple[float, list[Any]]] = [(begin_s, [arrived, started] if leases else [arrived])]
    for i, part in enumerate((ids[2::3], ids[3::3], ids[4::3] + ids[:2])):
        ends = [Rows("stopped", {"id": part})] if leases else []
        steps.append((begin_s + 40 + 30 * i, [*ends, Rows("completed", {"id": part})]))
    with Writer(path, Header(level="cluster", policy="fair", pool=pool, facts=facts, words=CLUSTER)) as writer:
        for n, (t, events) in enumerate(steps, start=1):
            writer.step(n, t, events)
        points = [(begin_s, 1.0), (begin_s + 50, 2.0), (begin_s + 100, 1.0)]
        few = Chart("Few points", "time, s", "jobs", [Series("jobs", points)])
        writer.end(len(steps) + 1, begin_s + 100, {"rho_mean": 0.8, **as_fact([few])})
    return path


@pytest.mark.parametrize("devices", [4, 3000])
def test_jobs_that_share_an_accelerator_lie_below_each_other(browser: Browser, tmp_path: Path, devices: int) -> None:
    file = tmp_path / "page.html"
    file.write_text(page([collect(rounds(tmp_path / "run.jsonl", devices))]), encoding="utf-8")
    tab = new_context(browser, viewport={"width": 1280, "height": 900}).new_page()
    seen = Opened(tab, file)
    assert seen.canvas.get_attribute("data-drawn") == str(devices + 1)
    box = seen.canvas.bounding_box()
    assert box
    assert box["height"] < 2000  # lanes become thin where they are many
    tip = tab.locator("#tip")
    if devices == 4:
        seen.at(0.5, 38)  # accelerator 0 from 30 to 66 px: one half each
        assert "job 0 / lease 1" in tip.inner_text()
        assert "its turn; it shares with job 1" in tip.inner_text()
        seen.at(0.5, 58)
        assert "job 1 / lease 1" in tip.inner_text()
    tab.get_by_role("searchbox").fill("3")
    expect(tab.locator(".status")).to_contain_text("job 3: 1 bar")
    assert seen.complaints == []


def test_a_chosen_stretch_holds_for_the_curves_too(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page([collect(rounds(tmp_path / "run.jsonl", 8))]), encoding="utf-8")
    tab = new_context(browser, viewport={"width": 1280, "height": 900}).new_page()
    seen = Opened(tab, file)
    chart = tab.locator("svg[data-time]").first

    def marks() -> list[float]:
        return [float(text) for text in chart.locator(".marks text").all_text_contents()]

    def drawn() -> str | None:
        return chart.locator("polyline").first.get_attribute("points")

    def points() -> int:
        inside = tab.locator("svg[data-time]").last.locator("svg")
        return inside.locator("circle, path, polygon").filter(visible=True).count()

    whole, all_marks, all_points = drawn(), marks(), points()
    assert all_points == 3
    assert all_marks[0] <= 20
    assert all_marks[-1] >= 80
    tab.locator("[data-do='+']").click()
    low, high = seen.view()
    assert whole != drawn()
    assert all(low <= mark <= high for mark in marks())
    assert len(marks()) > 2
    assert points() == 0  # they would tell values where they are not
    tab.get_by_role("button", name="Whole run").click()
    assert (drawn(), marks(), points()) == (whole, all_marks, all_points)
    assert seen.complaints == []


@pytest.mark.parametrize("width", [1240, 700])
def test_labels_of_epoch_seconds_do_not_run_into_each_other(browser: Browser, tmp_path: Path, width: int) -> None:
    file, begin_s = tmp_path / "page.html", 1_700_000_000.0
    file.write_text(page([collect(rounds(tmp_path / "run.jsonl", 8, begin_s=begin_s))]), encoding="utf-8")
    tab = new_context(browser, viewport={"width": width, "height": 900}).new_page()
    tab.add_init_script(
        """window.ruler = [];
        const pen = CanvasRenderingContext2D.prototype, fill = pen.fillText;
        pen.fillText = function (text, x, y) {
            const half = this.measureText(text).width / 2;
            if (/^1,7.* s$/.test(text)) ruler.push([text, x - half, x + half]);
            fill.call(this, text, x, y);
        };"""
    )
    seen = Opened(tab, file)
    for _ in range(4):
        tab.evaluate("ruler.length = 0")
        tab.locator("[data-do='+']").click()
        low, high = seen.view()
        labels = tab.evaluate("ruler")
        last = max(i for i, (_, left, _) in enumerate(labels) if left == min(each[1] for each in labels))
        labels = labels[last:]  # of what was painted last
        assert all(left >= right + 4 for (_, _, right), (_, left, _) in pairwise(labels))
        assert len({text for text, _, _ in labels}) == len(labels) > 0
        for mark in tab.locator("svg[data-time] .marks text").all_text_contents():
            assert low <= float(mark.replace(",", "")) <= high
    assert seen.complaints == []


def test_a_summary_is_a_page_without_a_canvas(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page([collect(rounds(tmp_path / "run.jsonl", 8, leases=False))]), encoding="utf-8")
    tab = new_context(browser).new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(file.as_uri())
    assert tab.get_by_role("heading", name="Active jobs over time").is_visible()
    assert tab.get_by_text("there is no schedule to draw").is_visible()
    assert tab.locator("canvas").count() == 0
    assert complaints == []

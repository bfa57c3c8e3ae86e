"""The page of a run with a million bars, in a real browser: its size, when it is first painted, how fluently it pans.

    python -m bench.report                   a million bars on 24 GPUs, with lengths and waits that hardly compress
    python -m bench.report --bars 200000

The limits are the project's own: 15 MB; 2 s until the first paint, and until the schedule is drawn. A pan near enough
that each bar is drawn is held against the 60 frames/s of a screen. Needs Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench import show
from dovetail.core.events import Arrived, Complete, Finished, Start
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.workflow.words import WORDS

_DEVICES, _MODELS, _TASKS, _SEED = 24, 12, 3, 7
_FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
_NOTE_WHEN_DRAWN = """
const look = () => {
    const canvases = [...document.querySelectorAll("canvas")];
    if (canvases.some(canvas => canvas.dataset.drawn > 0)) window.drawnAt = performance.now();
    else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
_COUNT_FRAMES = """() => {
    window.stamps = [];
    const frame = stamp => { window.stamps.push(stamp); window.counting && requestAnimationFrame(frame); };
    window.counting = true;
    requestAnimationFrame(frame);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", type=int, default=1_000_000)
    arguments = parser.parse_args()
    from dovetail.report.data.collect import collect
    from dovetail.report.html import page

    with tempfile.TemporaryDirectory() as folder:
        journal, file = Path(folder, "run.jsonl"), Path(folder, "page.html")
        write(journal, arguments.bars)
        story = collect(journal)
        file.write_text(page([story]), encoding="utf-8")
        megabytes = file.stat().st_size / 1e6
        found = {"bars": story.bars_seen, "page_mb": round(megabytes, 2)}
        found["bytes_per_bar"] = round(1e6 * megabytes / story.bars_seen, 2)
        show(found | browse(file, f"req_{arguments.bars // _TASKS // 2:07d}"))


def write(path: Path, bars: int) -> None:
    """Requests of three tasks each, each on whatever GPU is free first."""
    rng = random.Random(_SEED)
    pool = Pool(tuple(Device(i, "a100", i // 8) for i in range(_DEVICES)), {"a100": DeviceType("a100")})
    free = [0.0] * _DEVICES
    steps: list[tuple[float, int, Any]] = []
    for i in range(bars // _TASKS):
        job = f"req_{i:07d}"
        ends: list[tuple[float, int, Any]] = []
        for part in range(_TASKS):
            device = min(range(_DEVICES), key=free.__getitem__)
            t, setup_s = free[device], 4.0 * (rng.random() < 0.1)
            run_s, wait_s = rng.lognormvariate(1.5, 0.5), min(rng.expovariate(0.05), t)
            free[device] = t + setup_s + run_s
            kind, why = f"model-{rng.randrange(_MODELS)}", "worth the load" if setup_s else "warm"
            start = Start(job, f"part-{part}", kind, (device,), t - wait_s, run_s, why, setup_s)
            steps.append((t, 1, [start] if part else [Arrived(job, "three parts"), start]))
            ends.append((free[device], 0, [Finished(job, f"part-{part}")]))
        max(ends, key=lambda end: end[0])[2].append(Complete(job))
        steps += ends
    steps.sort(key=lambda step: step[:2])
    with Writer(path, Header(level="workflow", policy="made-up", pool=pool, words=WORDS)) as writer:
        for n, (t, _, events) in enumerate(steps, start=1):
            writer.step(n, t, events)
        writer.end(len(steps) + 1, steps[-1][0], {})


def browse(file: Path, job: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.set_default_timeout(60_000)
        tab.add_init_script(_NOTE_WHEN_DRAWN)
        tab.goto(file.as_uri())
        tab.locator("canvas[data-drawn]:not([data-drawn='0'])").first.wait_for()
        painted = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        drawn = tab.evaluate("window.drawnAt")
        found = {"first_paint_ms": round(painted), "schedule_drawn_ms": round(drawn)}
        tab.get_by_role("searchbox").fill(job)
        tab.locator(".status", has_text=job).wait_for()
        tab.locator("canvas[data-near='all']").wait_for()
        for _ in range(4):
            tab.locator("[data-do='-']").first.click()
        tab.locator("canvas[data-near='all']").wait_for()
        found["drawn_near"] = int(tab.locator("canvas").first.get_attribute("data-drawn") or 0)
        found |= pan(tab)
        browser.close()
    return found


def pan(tab: Any) -> dict[str, Any]:
    """Ten screens to the right, the mouse held down; frame times as the browser sees them."""
    box = tab.locator("canvas").first.bounding_box()
    y = box["y"] + 60
    tab.evaluate(_COUNT_FRAMES)
    for _ in range(10):
        tab.mouse.move(box["x"] + 0.95 * box["width"], y)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 0.15 * box["width"], y, steps=40)
        tab.mouse.up()
    stamps = tab.evaluate("window.counting = false, window.stamps")
    frames = sorted(b - a for a, b in pairwise(stamps))
    return {
        "frames": len(frames),
        "frame_median_ms": round(median(frames), 1),
        "frame_p95_ms": round(frames[int(0.95 * (len(frames) - 1))], 1),
        "frames_over_60": round(median(frames) / (1000 / 60), 2),
    }


if __name__ == "__main__":
    main()

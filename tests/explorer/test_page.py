"""The page of `tilewright explore` in Chromium, used as a person uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.explorer.network import Network
from tests.web.site import AXE, NO_BROWSER, chromium, serious
from tilewright.explorer.page import collect, page_text, write_page
from tilewright.explorer.recorder import Recorder

pytestmark = pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in web/")
PHONE, DESKTOP = (390, 844), (1280, 800)
VIEWS = ("graph", "kernels", "code", "time", "memory", "passes", "compare", "metadata")
X = np.zeros((8, 64), np.float32)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose call was timed, beside itself without fusion of its last passes."""
    dims = {"x": {0: "batch<=16"}}
    with Recorder() as recorder:
        library = tw.compile(Network().eval(), (X,), dims=dims)
    other = tw.compile(Network().eval(), (X,), dims=dims, opt="O0")
    trial = {"stage": "race", "choices": {"tile": 4}, "date": "2026-01-01", "used": False}
    first = collect(library, [X], "network", recorder)
    kernel = next(k for k in first["kernels"] if k["name"] == "matmul_gelu")
    kernel["trials"] = [
        {**trial, "speedup": 1.25, "lower": 1.2, "upper": 1.3},
        {**trial, "failure": "crash"},
        {**trial, "stage": "chosen", "speedup": 1.25, "used": True},
    ]
    documents = [first, collect(other, [X], "network, O0")]
    return write_page(documents, tmp_path_factory.mktemp("explorer") / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def visit(browser: Any, file: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Any:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, bypass_csp=True, color_scheme=scheme
    )
    page = context.new_page()
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda m: page.troubles.append(m.text) if m.type == "error" else None)
    inside = ("file:", "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(inside) else page.troubles.append(r.url))
    page.goto(file.resolve().as_uri())
    page.wait_for_function("document.body.dataset.ready")
    return page


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    found = visit(browser, page_file)
    yield found
    assert not found.troubles
    found.context.close()


def test_a_layer_is_followed_to_assembly_and_back(page: Any) -> None:
    page.fill("input[type=search]", "gelu blocks.1")
    page.click(".results button")
    panel = page.inner_text(".panel")
    assert "gelu" in panel and "network.py:" in panel and "the line of UP" in panel
    page.click(".panel h3:has-text('Kernel') + p button")
    assert page.get_attribute("#tab-code", "aria-selected") == "true"
    code = page.locator(".pane .cm-content")
    assert "class Block" in code.nth(0).inner_text()
    assert "kernel_matmul_gelu" in code.nth(1).inner_text()
    page.select_option("select[aria-label='Right level']", "tensor")
    assert "tensor.group" in page.locator(".pane .cm-content").nth(1).inner_text()
    page.click("#view .buttons button:has-text('gelu · blocks.0')")
    assert page.get_attribute("#tab-graph", "aria-selected") == "true"
    page.wait_for_selector(".panel dd:has-text('blocks.0')")


def test_the_slowest_kernel_is_first(page: Any) -> None:
    page.click("#tab-kernels")
    rows = page.locator("#view tbody tr")
    shares = [float(rows.nth(k).locator("td").nth(4).inner_text().rstrip(" %")) for k in range(rows.count())]
    assert shares == sorted(shares, reverse=True) and len(shares) >= 3
    page.click("th button:has-text('bytes')")
    assert page.get_attribute("th:has-text('bytes')", "aria-sort") == "descending"


def test_the_peak_of_memory_has_its_buffers(page: Any) -> None:
    page.click("#tab-memory")
    text = page.inner_text("#view .summary")
    assert "are in use at one time" in text
    assert page.locator("#view tbody tr").count() >= 1
    page.evaluate(
        "for (const range of document.querySelectorAll('input[type=range]'))"
        "{ range.value = range.min; range.dispatchEvent(new Event('input')); }"
    )
    assert page.inner_text("#view .summary") != text


def test_an_edge_and_a_kernel_say_why_they_were_not_fused(page: Any) -> None:
    page.fill("input[type=search]", "gelu blocks.1")
    page.click(".results button")
    assert "factors are read as they lie in memory" in page.inner_text(".panel .reasons >> nth=0")
    canvas = page.locator("canvas").bounding_box()
    middle = canvas["x"] + canvas["width"] / 2, canvas["y"] + canvas["height"] / 2
    for below in range(24, 80, 4):  # the chosen operator is in the middle, its edge to the next one below
        page.mouse.click(middle[0], middle[1] + below)
        if "→" in page.inner_text(".panel h2"):
            break
    assert "gelu → matmul" in page.inner_text(".panel h2")
    assert "the reader is a contraction" in page.inner_text(".panel .reasons")
    page.click("#tab-code")
    page.select_option("select[aria-label=Kernel]", "layer_norm")
    assert "factors are read as they lie" in page.inner_text("#view > section:last-child")


def test_passes_show_changed_lines(page: Any) -> None:
    page.click("#tab-passes")
    page.click(".passes button:has-text('fuse-elementwise')")
    assert page.locator(".diff .added").count() and page.locator(".diff .removed").count()


def test_a_kernel_shows_its_trials(page: Any) -> None:
    page.click("#tab-code")
    page.select_option("select[aria-label=Kernel]", "matmul_gelu")
    text = page.inner_text("#view > section:last-child")
    assert "2 trials, 1 failed. The kernel uses tile = 4, 1.250× as fast as by default." in text
    page.select_option("select[aria-label=Kernel]", "layer_norm")
    assert "trials" not in page.inner_text("#view")


def test_launches_have_a_lane_for_each_thread(page: Any) -> None:
    page.click("#tab-time")
    assert "a lane for each thread" in page.get_attribute("#view svg >> nth=0", "aria-label")
    assert "thread 0" in page.locator("#view svg").first.text_content()
    assert page.locator("#view svg").first.locator("rect").count() >= 3


def test_two_models_are_compared(page: Any) -> None:
    page.click("#tab-compare")
    assert "times the" in page.inner_text("#view .summary")
    assert page.locator("#view table").nth(1).locator("tbody tr").count() >= 3


def test_the_graph_is_used_by_keyboard(page: Any) -> None:
    page.focus("canvas")
    page.keyboard.press("ArrowDown")
    first = page.inner_text("#announcement")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#announcement") != first
    page.keyboard.press("+")
    page.focus("#tab-graph")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-kernels", "aria-selected") == "true"


def test_the_page_of_a_profile_opens_at_the_times(browser: Any, tmp_path: Path) -> None:
    library = tw.compile(Network().eval(), (X,))
    (tmp_path / "page.html").write_text(page_text([{**collect(library, [X]), "opens": "time"}]))
    page = visit(browser, tmp_path / "page.html", DESKTOP)
    assert page.get_attribute("#tab-time", "aria-selected") == "true"
    assert not page.troubles
    page.context.close()


def test_open_all_and_close_all(page: Any) -> None:
    page.click("button:has-text('Close all')")
    page.focus("canvas")
    page.keyboard.press("ArrowUp")
    assert "Module" in page.inner_text("#announcement")
    page.keyboard.press("Enter")
    page.click("button:has-text('Open all')")
    page.focus("canvas")
    page.keyboard.press("ArrowUp")
    assert "Module" not in page.inner_text("#announcement")


@needs_axe
def test_a_phone_shows_the_changes_of_a_pass(browser: Any, page_file: Path) -> None:
    page = visit(browser, page_file, PHONE)
    page.click("#tab-passes")
    page.click("ol.passes button:has-text('fuse-elementwise')")
    heading = page.locator(".changes h2").bounding_box()
    at = [heading["x"] + 5, heading["y"] + 5]
    # The heading itself is seen there: nothing covers it or cuts it off.
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y)?.textContent", at) == "fuse-elementwise"
    page.context.close()


def test_a_phone_shows_both_levels_of_the_code(browser: Any, page_file: Path) -> None:
    page = visit(browser, page_file, PHONE)
    page.click("#tab-code")
    panes = [page.locator(".pane").nth(k).bounding_box() for k in range(2)]
    assert panes[0]["y"] + panes[0]["height"] <= panes[1]["y"]
    for k, pane in enumerate(panes):
        code = page.locator(".pane .code").nth(k).bounding_box()
        assert code["y"] + code["height"] <= pane["y"] + pane["height"] + 1
    page.context.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, page_file: Path, size: tuple[int, int], scheme: str) -> None:
    page = visit(browser, page_file, size, scheme)
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.wait_for_timeout(50)
        assert serious(page) == [], view
    assert not page.troubles
    page.context.close()

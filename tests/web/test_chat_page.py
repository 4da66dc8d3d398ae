"""The chat page of `tilewright llm chat-page`, used in Chromium as a person uses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.web.chat_site import Site, Visitor, until
from tests.web.site import AXE, NO_BROWSER, WEBGPU, chromium
from tests.web.test_language_models import checkpoint, compiled
from tilewright.cli.llm import command

pytestmark = pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in web/")

PHONE, DESKTOP = (390, 844), (1280, 800)
Visit = Callable[..., Visitor]

__all__ = ["checkpoint"]


def paged(folder: Path) -> Path:
    done = CliRunner().invoke(command, ["chat-page", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged(compiled(checkpoint, tmp_path_factory.mktemp("site") / "model", "wasm32"))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(driver: Any) -> Iterator[Any]:
    with chromium(driver=driver) as found:
        yield found


@pytest.fixture
def site(folder: Path, tmp_path: Path) -> Iterator[Site]:
    """A server of a copy, which the test may change."""
    shutil.copytree(folder, tmp_path / "site")
    found = Site(tmp_path / "site")
    yield found
    found.close()


@pytest.fixture
def visit(browser: Any, site: Site) -> Iterator[Visit]:
    """A function that opens the page in a new window."""
    visitors: list[Visitor] = []

    def open_window(**options: Any) -> Visitor:
        visitors.append(Visitor(browser, site.url, **options))
        return visitors[-1]

    yield open_window
    for visitor in visitors:
        visitor.close()


def change_info(site: Site, **changes: Any) -> None:
    path = site.folder / "web-model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@needs_axe
def test_a_conversation_is_kept_and_goes_on_without_a_network(site: Site, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.until_ready()
    assert page.evaluate("crossOriginIsolated")
    assert visitor.ask("Say *this*")
    assert "tokens/s" in visitor.text(".note") and "first after" in visitor.text(".note")
    assert page.locator(".user").inner_text() == "Say *this*"
    assert page.locator("#conversations .open").all_inner_texts() == ["Say *this*"]
    assert visitor.serious() == []
    visitor.until("document.getElementById('state').textContent === 'Works offline'")
    first = visitor.reply()

    visitor.context.set_offline(True)
    site.requests.clear()
    page.reload()
    visitor.until_ready()
    assert visitor.reply() == first
    assert visitor.ask("And more")
    assert page.locator(".user").all_inner_texts() == ["Say *this*", "And more"]
    assert site.requests == []

    visitor.context.set_offline(False)
    page.locator("#new").click()
    assert page.locator("#log > *").count() == 0
    page.locator("#conversations .open").click()
    assert page.locator(".assistant").count() == 2


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_the_page_is_accessible_in_every_state(
    site: Site, visit: Visit, size: tuple[int, int], scheme: str
) -> None:
    change_info(site, download=2_000_000_000)  # so that the page asks
    visitor = visit(size=size, color_scheme=scheme)
    page = visitor.page
    page.locator("#load").wait_for()
    assert "2.0 GB" in visitor.text("#needs")
    assert visitor.serious() == []
    page.locator("#load").click()
    visitor.until_ready()
    visitor.ask("one")
    visitor.ask("two")
    assert visitor.serious() == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    page.locator("#open-settings").click()
    assert visitor.serious() == []
    page.keyboard.press("Escape")
    if size == PHONE:
        assert not page.locator("#new").is_visible()
        page.locator("#menu").click()
        page.wait_for_timeout(300)  # for the movement
        assert visitor.serious() == []
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "menu"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


@pytest.mark.slow
def test_everything_by_keyboard(visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.until_ready()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    page.locator(".assistant").wait_for()
    visitor.until_answered()
    assert page.locator(".user").inner_text() == "first line\nsecond line"
    assert page.evaluate("document.activeElement.id") == "text"

    def tab_to(label: str) -> None:
        for _ in range(40):
            name = page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")
            if name == label:
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"no way to {label}")

    tab_to("Rename first line")
    page.keyboard.press("Enter")
    page.keyboard.type("My chat")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="My chat", exact=True).wait_for()
    page.reload()
    visitor.until_ready()
    assert page.locator("#conversations .open").all_inner_texts() == ["My chat"]
    tab_to("Regenerate")
    page.keyboard.press("Enter")
    visitor.until("document.activeElement.id === 'text'")
    visitor.until_answered()
    assert page.locator(".assistant").count() == 1
    tab_to("Delete My chat")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Escape")
    assert page.locator("#conversations .open").count() == 1
    tab_to("Delete My chat")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    visitor.until("!document.querySelector('#conversations .open')")
    page.reload()
    visitor.until_ready()
    assert page.locator("#conversations .open").count() == 0


@pytest.mark.slow
def test_stop_and_a_new_chat_during_a_reply(visit: Visit) -> None:
    """The text that has arrived is kept."""
    visitor = visit(most=0)
    page = visitor.page
    visitor.until_ready()
    page.evaluate(
        """() => {
          window.act = null;
          new MutationObserver(() => {
            const begun = document.querySelector(".assistant[aria-busy] .content:not(.waiting)");
            if (!begun || !window.act) return;
            document.getElementById(window.act).click();
            window.act = null;
          }).observe(document.getElementById("log"), { childList: true, subtree: true, attributes: true });
        }"""
    )
    page.locator("#open-settings").click()
    page.locator("#temperature").fill("2")
    page.locator("#close-settings").click()
    page.evaluate("window.act = 'send'")
    stopped = visitor.ask("Go on for long")
    assert stopped and visitor.text(".note").endswith("stopped")
    page.evaluate("window.act = 'new'")
    page.locator("#text").fill("Another one")
    page.keyboard.press("Enter")
    visitor.until("window.act === null")
    assert visitor.ask("In the new chat")
    titles = page.locator("#conversations .open").all_inner_texts()
    assert titles == ["In the new chat", "Go on for long"]
    assert page.locator(".user").count() == 1
    page.get_by_role("button", name="Go on for long", exact=True).click()
    assert page.locator(".user").all_inner_texts() == ["Go on for long", "Another one"]
    assert page.locator(".assistant").count() == 2


@pytest.mark.slow
def test_a_cancelled_and_a_broken_download_leave_nothing(site: Site, visit: Visit) -> None:
    change_info(site, download=2_000_000_000)
    site.slow.add("model.weights")
    visitor = visit()
    page = visitor.page
    page.locator("#load").click()
    until(lambda: "model.weights" in site.requests)
    page.locator("#cancel").click()
    visitor.until("document.getElementById('loading-title').textContent.includes('cancelled')")
    assert not any("weights" in path for path in visitor.stored())
    site.slow.clear()
    site.broken.add("model.weights")
    page.locator("#load").click()
    visitor.until("document.getElementById('loading-title').textContent.includes('cannot be loaded')")
    assert "connection broke" in visitor.text("#loading-text") or "received" in visitor.text("#loading-text")
    assert not any("weights" in path for path in visitor.stored())
    site.broken.clear()
    page.locator("#load").click()
    visitor.until_ready()
    assert visitor.ask("Well?")


@pytest.mark.slow
def test_damaged_weights_are_refused_and_not_kept(site: Site, visit: Visit) -> None:
    weights = site.folder / "model.weights"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    visitor = visit()
    visitor.until("document.getElementById('loading-title').textContent.includes('cannot be loaded')")
    assert "damaged or belongs to another model" in visitor.text("#loading-text")
    assert not any("weights" in path for path in visitor.stored())
    weights.write_bytes(whole)
    visitor.page.locator("#load").click()
    visitor.until_ready()
    assert "/model.weights" in visitor.stored()


@pytest.mark.slow
def test_what_cannot_run_is_told_before_the_download(site: Site, visit: Visit) -> None:
    change_info(site, target="webgpu")
    visitor = visit()
    visitor.until("document.getElementById('loading-title').textContent === 'The GPU cannot run the model'")
    assert "wasm32" in visitor.text("#loading-text")
    change_info(site, format=99)
    visitor = visit()
    visitor.until("document.getElementById('loading-title').textContent.includes('cannot be loaded')")
    assert "format is 99" in visitor.text("#loading-text")
    (site.folder / "web-model.json").unlink()
    visitor = visit()
    visitor.until("document.getElementById('loading-text').textContent.includes('404')")
    assert "model.weights" not in site.requests


@pytest.mark.slow
def test_missing_memory_is_told(site: Site, visit: Visit) -> None:
    site.prefixes["page/llm-worker.js"] = (
        "const instantiate = WebAssembly.instantiate;\n"
        "WebAssembly.instantiate = async (module, ...given) => {\n"
        "  if (WebAssembly.Module.exports(module).some(({ name }) => name === 'tw_create'))\n"
        "    throw new RangeError('could not allocate memory');\n"
        "  return instantiate(module, ...given);\n};\n"
    )
    visitor = visit()
    visitor.until("document.getElementById('loading-title').textContent.includes('not enough memory')")
    assert "Close other tabs" in visitor.text("#loading-text")


@pytest.mark.slow
def test_the_offline_copy_is_of_one_version(site: Site, visit: Visit) -> None:
    """A page whose model has changed since is not kept; a new version is offered, and takes the place of the
    old one as a whole.
    """
    visitor = visit()
    visitor.until("document.getElementById('state').textContent === 'Works offline'")
    before = visitor.stored()
    library = site.folder / "model.wasm"
    old = library.read_bytes()
    middle = len(old) // 2
    library.write_bytes(old[:middle] + bytes([old[middle] ^ 1]) + old[middle + 1 :])
    visitor.page.reload()
    visitor.until_ready()  # with the files of the version that was kept
    other = visit()
    other.until("document.getElementById('loading-title').textContent.includes('cannot be loaded')")
    other.page.evaluate("navigator.serviceWorker.getRegistration().then((found) => found?.installing)")
    until(lambda: not any(path.endswith("chat.js") for path in other.stored()))
    library.write_bytes(old)
    change_info(site, name="renamed")
    paged(site.folder)
    visitor.page.reload()
    visitor.page.locator("#take-update").click()
    visitor.until("document.title === 'renamed'")
    visitor.until_ready()
    visitor.until("document.getElementById('state').textContent === 'Works offline'")
    assert visitor.stored() == before


@pytest.mark.slow
def test_threads_come_from_the_service_worker_where_the_server_sends_no_headers(
    site: Site, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.llm.chat_page import FileHandler

    monkeypatch.delattr(FileHandler, "end_headers")
    visitor = visit()
    assert not visitor.page.evaluate("crossOriginIsolated")
    visitor.until("document.getElementById('state').textContent === 'Works offline'")
    visitor.page.reload()
    assert visitor.page.evaluate("crossOriginIsolated")
    visitor.until_ready()
    assert visitor.ask("Well?")


@pytest.mark.slow
def test_a_lost_gpu_is_told_and_the_model_is_loaded_again(
    driver: Any, checkpoint: Path, tmp_path: Path
) -> None:
    folder = paged(compiled(checkpoint, tmp_path / "model", "webgpu"))
    site = Site(folder)
    site.prefixes["page/llm-worker.js"] = (
        "const request = GPUAdapter.prototype.requestDevice;\n"
        "GPUAdapter.prototype.requestDevice = async function (...given) {\n"
        "  return (globalThis.device = await request.apply(this, given));\n};\n"
    )
    with chromium(*WEBGPU, driver=driver) as browser:
        visitor = Visitor(browser, site.url)
        visitor.page.set_default_timeout(120_000)
        visitor.until_ready()
        assert visitor.ask("Well?")
        visitor.page.workers[0].evaluate("device.destroy()")
        visitor.page.locator("#text").fill("Once more")
        visitor.page.keyboard.press("Enter")
        visitor.page.locator("#log .error").wait_for()
        assert "The GPU cannot run the model" in visitor.text("#log .error")
        assert visitor.page.locator("#text").input_value() == "Once more"
        visitor.page.get_by_role("button", name="Load the model again").click()
        visitor.until("!document.querySelector('#log .error')")
        visitor.until_ready()
        assert visitor.ask("Once more")
        visitor.close()
    site.close()

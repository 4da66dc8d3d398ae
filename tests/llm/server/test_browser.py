"""The chat page and pages of other sites, in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .browser import Browser, executable
from .conftest import Running
from .test_http import Slow, until
from .test_images import seeing_server

pytestmark = pytest.mark.skipif(
    executable() is None, reason="chromium runs the page (apt: chromium-headless-shell)"
)

ANSWERED = "document.getElementById('send').textContent === 'Send'"


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    server = Running(runner=Slow(context=512))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("chromium"), "MAP evil.example 127.0.0.1")
    yield found
    found.close()


class Page:
    """The chat page, and the requests that it has sent."""

    def __init__(self, browser: Browser, server: Running) -> None:
        self.browser, self.server = browser, server
        browser.open(server.url + "/health")
        browser.run("sessionStorage.clear()")  # so that the page begins with a new chat
        browser.open(server.url + "/")
        browser.until("document.title === 'echo'")
        browser.run(
            "window.$ = (id) => document.getElementById(id); window.sent = []; (real => "
            "{ window.fetch = (url, how) => { sent.push(how.body); return real(url, how); }; })(fetch)"
        )

    def send(self, text: str) -> None:
        self.browser.run(f"$('text').value = {json.dumps(text)}; $('form').requestSubmit()")

    def ask(self, text: str) -> None:
        """Send a message, and wait for the whole answer."""
        self.send(text)
        self.browser.until(ANSWERED)

    def until_said(self, text: str) -> None:
        replies = "[...document.querySelectorAll('.assistant .content')]"
        self.browser.until(f"{replies}.at(-1)?.textContent.includes({json.dumps(text)})")

    @property
    def boxes(self) -> list[tuple[str, str]]:
        """Return the chat as the page shows it, as (kind, text), without figures."""
        found = self.browser.run(
            "[...document.querySelectorAll('#log > *')].map((box) => [box.className, "
            "(box.querySelector('.content') ?? box).textContent])"
        )
        return [(kind.split()[-1], text) for kind, text in found]

    @property
    def sent(self) -> list[list[tuple[str, str]]]:
        """Return the messages of each request."""
        bodies = [json.loads(body) for body in self.browser.run("sent")]
        return [[(m["role"], m["content"]) for m in body["messages"]] for body in bodies]


@pytest.fixture
def page(browser: Browser, slow: Running) -> Page:
    return Page(browser, slow)


def test_chat(page: Page) -> None:
    page.ask("one *two*")
    page.ask("three")
    assert page.boxes == [
        ("user", "one *two*"),
        ("assistant", "one two"),
        ("user", "three"),
        ("assistant", "three"),
    ]
    assert page.sent[1] == [("user", "one *two*"), ("assistant", "one *two*"), ("user", "three")]


@pytest.mark.parametrize("at_once", [True, False])
def test_new_chat_during_a_reply(page: Page, at_once: bool) -> None:
    """A reply that has begun belongs to the old chat, even if the new chat begins before the reply ends."""
    page.send("old " * 60)
    page.until_said("old old")
    if at_once:
        page.browser.run("$('new').click(); $('text').value = 'new'; $('form').requestSubmit()")
        page.browser.until(ANSWERED)
    else:
        page.browser.run("$('new').click()")
        until(lambda: page.server.engine.stats().running == 0)
        assert page.boxes == []
        page.ask("new")
    assert page.boxes == [("user", "new"), ("assistant", "new")]
    page.ask("next")
    assert page.sent[1:] == [[("user", "new")], [("user", "new"), ("assistant", "new"), ("user", "next")]]


FILE = """(async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 20, height: 15 });
  const blob = await new Promise((done) => canvas.toBlob(done));
  const chosen = new DataTransfer();
  chosen.items.add(new File([blob], "a.png", { type: "image/png" }));
  $("image").files = chosen.files;
  $("image").dispatchEvent(new Event("change"));
})()"""


def test_an_image(browser: Browser, page: Page) -> None:
    """The button for images is there if the model takes them; an image is sent, shown and can be removed."""
    assert browser.run("$('attach').hidden") is True
    server = seeing_server()
    try:
        seeing = Page(browser, server)
        browser.until("!$('attach').hidden")
        browser.run("$('settings').hidden; $('max_tokens').value = 3")
        for count in (1, 2):
            browser.run(FILE)
            browser.until(f"$('attached').children.length === {count}")
        browser.run("$('attached').querySelector('button').click()")
        assert browser.run("$('attached').children.length") == 1
        seeing.ask("What is this?")
        assert browser.run("document.querySelectorAll('.user img').length") == 1
        assert browser.run("$('attached').hidden") is True
        (((role, (image, text)),),) = seeing.sent
        assert role == "user" and text == {"type": "text", "text": "What is this?"}
        assert image["type"] == "image_url" and image["image_url"]["url"].startswith("data:image/png;base64,")
        runner: Any = server.engine.runner
        assert sum(len(given.rows) for given in runner.given) == 9
        assert [kind for kind, _ in seeing.boxes] == ["user", "assistant"]
    finally:
        browser.run("$('max_tokens').value = ''")
        server.close()


def test_a_message_that_is_too_long(page: Page) -> None:
    page.ask("first")
    page.ask("x" * 700)
    assert [kind for kind, _ in page.boxes] == ["user", "assistant", "user", "error"]
    assert "context is 512 tokens" in page.boxes[-1][1] and "new chat" in page.boxes[-1][1]
    assert page.browser.run("$('text').value") == "x" * 700, (
        "the message stays in its field, to be shortened and sent again"
    )
    page.ask("later")
    assert page.boxes[-2:] == [("user", "later"), ("assistant", "later")]
    assert page.sent[-1] == [("user", "first"), ("assistant", "first"), ("user", "later")]


def test_stop(page: Page) -> None:
    """The text received before a stop stays in the chat."""
    page.send("word " * 60)
    page.until_said("word word")
    page.browser.run("$('form').requestSubmit()")
    page.browser.until(ANSWERED)
    page.ask("more")
    (_, asked), (role, said), last = page.sent[1]
    assert role == "assistant" and asked.startswith(said) and "word word" in said and last == ("user", "more")


def test_a_server_that_goes_away(browser: Browser) -> None:
    server = Running(runner=Slow(), drain=0)
    page = Page(browser, server)
    page.send("gone " * 100)
    page.until_said("gone gone")
    server.close()
    browser.until(ANSWERED)
    kind, text = page.boxes[-1]
    assert kind == "error" and text
    page.ask("still there?")
    assert [kind for kind, _ in page.boxes] == ["user", "assistant", "error", "user", "error"]


def test_pages_of_others(browser: Browser, slow: Running) -> None:
    """The server refuses a page whose name points to this machine (DNS rebinding), and a page of another
    site.
    """
    asked = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hi"}]})
    how: dict[str, Any] = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": asked}
    evil = f"http://evil.example:{slow.port}"
    browser.open(evil + "/health")  # Stands for a page of the attacker's.
    fetch = f"fetch(%s, {json.dumps(how)}).then((a) => a.status, (e) => e.name)"
    path = "/v1/chat/completions"
    before = slow.engine.stats().requests
    assert browser.run(fetch % json.dumps(evil + path)) == 421
    assert browser.run(fetch % json.dumps(slow.url + path)) == "TypeError", (
        "the browser blocks the other site"
    )
    how |= {"mode": "no-cors", "headers": {"Content-Type": "text/plain"}}
    browser.run(f"fetch({json.dumps(slow.url + path)}, {json.dumps(how)}).then(() => null)")
    assert slow.engine.stats().requests == before

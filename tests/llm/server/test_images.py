"""Images in requests reach the model, or are refused by the field's name."""

from __future__ import annotations

import base64
import importlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import byte_level
from tilewright.llm.config import Config
from tilewright.llm.models.llava import LlavaVision
from tilewright.llm.tokenizer import Tokenizer
from tilewright.llm.vision.given import GivenRows, View
from tilewright.llm.vision.pixels import open_image
from tilewright.llm.vision.reader import ImageReader

from .conftest import Running

pillow: Any = importlib.import_module("PIL.Image")

CONFIG = {
    "model_type": "llava",
    "image_token_index": 2,
    "text_config": {"model_type": "llama", "hidden_size": 8},
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 4, "image_size": 12},
}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
)
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


class Seeing(FakeRunner):
    """A runner that notes what it is given for images."""

    def __init__(self) -> None:
        super().__init__(vocabulary=400)
        self.sight, self.given, self.hidden = self, [], 1

    def see(self, view: View) -> Any:
        return np.full((view.vectors, 1), view.arrays[0].mean(), np.float32)

    def shift(self, slot: int, offset: int) -> None:
        pass

    def prefill(self, tokens: Any, start: int, pages: Any, slot: int, given: GivenRows | None = None) -> Any:
        self.given.append(given)
        return super().prefill(tokens, start, pages, slot)


def seeing_server() -> Running:
    """Return a server whose model takes images, and answers at random."""
    words = Tokenizer(byte_level(400, ("<s>", "</s>", "<image>")), chat_templates={"default": TEMPLATE})
    running = Running(runner=Seeing(), words=words)
    running.service.images = ImageReader(LlavaVision, Config(CONFIG), {}, words, 40, 400)
    return running


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    running = seeing_server()
    yield running
    running.close()


def png(color: int = 0, size: tuple[int, int] = (20, 15)) -> str:
    out = io.BytesIO()
    pillow.new("RGB", size, (color, color, color)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def asked(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": role, "content": list(content)}], "max_tokens": 2}


def test_images_of_both_apis(seeing: Running) -> None:
    runner: Any = seeing.engine.runner
    text = {"type": "text", "text": "What is this?"}
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(color)}}
        for color in (0, 255)
    ]
    url = {"type": "url", "url": f"data:image/png;base64,{png(255)}"}
    for path, body in (
        (
            CHAT,
            asked(part(f"data:image/png;base64,{png()}"), text, part(f"data:image/png;base64,{png(255)}")),
        ),
        (MESSAGES, asked(blocks[0], text, blocks[1])),
        (MESSAGES, asked(blocks[0], text, {"type": "image", "source": url})),
    ):
        runner.given.clear()
        seeing.engine._scheduler.cache.clear()
        answer = seeing.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        rows = np.concatenate([given.rows for given in runner.given])
        assert rows.shape == (18, 1) and (rows[:9] == rows[0]).all() and rows[0] < -1.4 < 1.9 < rows[17]
    body = {name: value for name, value in asked(blocks[0], text).items() if name != "max_tokens"}
    counted = seeing.http.post("/v1/messages/count_tokens", json=body)
    assert counted.json()["input_tokens"] > 9
    assert seeing.http.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image"]


def test_images_of_responses(seeing: Running) -> None:
    """An image stays in a chat that `previous_response_id` continues."""
    runner: Any = seeing.engine.runner
    runner.given.clear()
    seeing.engine._scheduler.cache.clear()
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{png(255)}", "detail": "auto"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, image]}
    body = {"model": "echo", "input": [message], "max_output_tokens": 2}
    first = seeing.http.post("/v1/responses", json=body)
    assert first.status_code == 200, first.text
    more = {
        "model": "echo",
        "input": "And now?",
        "max_output_tokens": 2,
        "previous_response_id": first.json()["id"],
    }
    second = seeing.http.post("/v1/responses", json=more)
    assert second.status_code == 200, second.text
    assert second.json()["usage"]["input_tokens"] > first.json()["usage"]["input_tokens"]
    shown = [given.rows for given in runner.given if given is not None and (given.rows != 0).any()]
    assert len(shown) >= 1 and all(rows.shape == (9, 1) and (rows > 1.9).all() for rows in shown)
    for wrong, message_of in (
        ([image | {"image_url": "https://example.com/a.png"}], "the server fetches no images"),
        ([image | {"file_id": "file-1"}], "file_id"),
    ):
        answer = seeing.http.post(
            "/v1/responses", json=body | {"input": [{"role": "user", "content": wrong}]}
        )
        assert answer.status_code == 400 and message_of in answer.text
    answer = seeing.http.post(
        "/v1/responses", json=body | {"input": [{"role": "system", "content": [image]}]}
    )
    assert answer.status_code == 400 and "only a user's message has images" in answer.text


def test_text_alone(seeing: Running) -> None:
    """Texts keep their places in templates that expect lists."""
    runner: Any = seeing.engine.runner
    runner.given.clear()
    tokens = seeing.http.post(
        "/tokenize", json={"messages": [{"role": "user", "content": "one two"}]}
    ).json()["tokens"]
    assert seeing.service.tokenizer.decode(tokens) == "user: one two"
    assert seeing.http.post(CHAT, json=asked({"type": "text", "text": "three"})).status_code == 200
    assert runner.given == [None]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (
            asked(part("https://example.com/a.png")),
            "image_url.url",
            "the server fetches no images, here",
        ),
        (asked(part("file:///etc/passwd")), "image_url.url", "the server fetches no images"),
        (asked(part("data:image/png,abc")), "image_url.url", "the URL is not 'data:image/png;base64,...'"),
        (asked(part("data:image/png;base64,a!")), "image_url.url", "the image's data is not base64"),
        (
            asked(part("data:image/png;base64,aaaa")),
            "image_url.url",
            "the data is no image of a known",
        ),
        (asked(part(f"data:;base64,{png(0, (6000, 6000))}")), "image_url.url", "6000 x 6000 pixels; at most"),
        (asked(part(f"data:;base64,{png()}"), role="system"), "messages.0.content", "only a user's message"),
        (
            asked(*[part(f"data:;base64,{png()}")] * 17),
            "messages",
            "the prompt has 17 images; at most 16 are read",
        ),
        (
            asked({"type": "text", "text": "<image>"}, part(f"data:;base64,{png()}")),
            "messages",
            "2 places for images ('<image>' in its text) and 1 images",
        ),
    ],
)
def test_refusals(seeing: Running, body: Any, param: str, message: str) -> None:
    answer = seeing.http.post(CHAT, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and message in error["message"]
    assert error["param"] in (param, f"messages.0.content.0.{param}")


def test_small_files_of_many_pixels(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many images are refused before one is decoded, and their pixels are bounded together."""
    opened: list[int] = []

    def noted(data: bytes) -> Any:
        opened.append(len(data))
        return open_image(data)

    monkeypatch.setattr("tilewright.llm.server.images.open_image", noted)
    monkeypatch.setattr("tilewright.llm.server.images.MOST_PIXELS", 700)
    image = part(f"data:;base64,{png()}")
    answer = seeing.http.post(CHAT, json=asked(*[image] * 17))
    assert "the prompt has 17 images; at most 16" in answer.json()["error"]["message"] and not opened
    answer = seeing.http.post(CHAT, json=asked(*[image] * 5))
    assert answer.status_code == 400 and len(opened) == 3
    assert answer.json()["error"]["param"] == "messages.0.content.2.image_url.url"
    assert "more than 700 pixels together" in answer.json()["error"]["message"]


def test_a_template_without_images(seeing: Running) -> None:
    templates = seeing.service.tokenizer.chat_templates
    seeing.service.tokenizer.chat_templates = {"default": "{{ messages[0]['content'] }}"}
    try:
        answer = seeing.http.post(CHAT, json=asked(part(f"data:;base64,{png()}")))
        assert "the chat template of the model takes text only" in answer.json()["error"]["message"]
        assert seeing.http.post(CHAT, json=asked({"type": "text", "text": "a"})).status_code == 200
    finally:
        seeing.service.tokenizer.chat_templates = templates

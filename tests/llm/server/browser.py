"""A headless Chromium, controlled by its debugging protocol over a pipe."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SECONDS = 60


def executable() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a Chromium that has its own profile. `hosts` maps names to addresses, as a DNS server
    would.
    """

    def __init__(self, profile: Path, hosts: str = "") -> None:
        commands, answers = os.pipe(), os.pipe()
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        more = [f"--user-data-dir={profile}", f"--host-resolver-rules={hosts}", "about:blank"]
        # Chromium reads the protocol from descriptor 3 and writes it to descriptor 4.
        shell = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", str(executable()), *arguments, *more],
            pass_fds=(commands[0], answers[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(answers[1])
        self._write, self._read = commands[1], answers[0]
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }

    def open(self, url: str) -> None:
        """Open a page and wait until it is complete."""
        assert "errorText" not in self._call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        found = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript condition is true."""
        end = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _message(self) -> Any:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], SECONDS)[0], "Chromium does not answer"
            part = os.read(self._read, 65536)
            assert part, "Chromium has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

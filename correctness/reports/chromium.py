"""Chromium without a window, driven over its debugging pipe: messages are JSON, each ended by a zero byte."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from typing import Any

LIMIT_S = 240.0


def find() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Chromium:
    """One page. Everything is bounded in time; leaving the `with` ends the browser."""

    def __init__(self, program: str, profile: pathlib.Path) -> None:
        self.deadline = time.monotonic() + LIMIT_S
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        self._process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'exec "$@" 3<&{commands} 4>&{answers}',
                "sh",
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._session = ""
        pages = [target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        page = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError(f"Chromium did not finish within {LIMIT_S:g} s")
            read = os.read(self._from, 1 << 20)
            if not read:
                raise RuntimeError("Chromium ended")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str([argument.get("value") for argument in parameters["args"]]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        self._events.append(event)

    def open(self, url: str) -> None:
        """Loads the page again, even if only the part after `#` differs."""
        for address in ("about:blank", url):
            self._events.clear()
            self.call("Page.navigate", url=address)
            while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
                self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def screen(self, dark: bool, width: int = 1400, height: int = 1800) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )

    def screenshot(self) -> bytes:
        # Compressed fast, because no one keeps it.
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)["data"])

"""A real Chromium, driven through the pipe of its DevTools protocol."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

SECONDS = 120
"""Longest wait for the browser, on a busy machine."""

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page of a headless Chromium.

    Attributes:
        problems: uncaught errors, console errors and blocked requests, as texts.
    """

    def __init__(self, program, profile):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        words = [program, *flags, f"--user-data-dir={profile}"]
        # The protocol reads from file 3 and writes to file 4.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._rest, self.problems = itertools.count(1), b"", []
        self._at_open = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The answer of the page to a command."""
        if method != "Runtime.evaluate":
            self._fresh = None
        return self._ask(method, self._session, **params)

    def run(self, expression):
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path, width=1400, height=1000, dark=False, changed=True):
        """Open a file and wait until all its tasks are drawn.

        A page that the tests before have not `changed` since it was opened like this is kept, as
        drawing one takes a second, with the problems that it had then.
        """
        opened = path, width, height, dark
        if opened == self._fresh:
            self.problems += self._at_open
        else:
            self._draw(*opened)
            self._at_open = [*self.problems]
        self._fresh = None if changed else opened

    def _draw(self, path, width, height, dark):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete' && !!document.querySelector('footer')")
        for i in range(self.run("document.querySelectorAll('section.task').length")):
            section = f"document.querySelectorAll('section.task')[{i}]"
            self.run(f"{section}.scrollIntoView()")
            self.until(f"{section}.dataset.drawn === 'yes'")
        self.run("scrollTo(0, 0)")

    def until(self, expression):
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(expression):
            assert time.monotonic() < end, f"{expression} stays false; {self.problems}"
            time.sleep(0.05)

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _ask(self, method, session=None, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **(session or {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], SECONDS)
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        name, params = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.problems.append(f"asks the network for {url}")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no {' or '.join(NAMES)} here; on Debian: apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    chromium.problems.clear()
    return chromium

"""The page as people see it, on a wide screen, in dark mode, on a phone and printed: what a browser paints is compared with
the pictures of pictures/, which were looked at.

Usage: pictures_test.py [--write]. --write takes the pictures again; look at them before they are committed.
"""

import copy
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import numpy as np
import sample
from chromium import Chromium, find
from PIL import Image

PICTURES = pathlib.Path(__file__).resolve().parent / "pictures"
FONT = "DejaVu Sans"  # what the pictures were taken with; another one breaks lines elsewhere
HEIGHT = 1600
# Width in pixels, dark mode, media. 718 pixels are what A4 has between its margins.
VIEWS: dict[str, tuple[int, bool, str]] = {
    "wide": (1400, False, ""),
    "dark": (1400, True, ""),
    "phone": (390, False, ""),
    "print": (718, False, "print"),
}
SHRUNK = 4  # pictures are kept at a quarter of their size
BLOCK = 2  # side in pixels of a kept picture: 8 x 8 pixels of the screen are compared by their mean
# Browsers smooth letters differently, which changes a block's mean by a few of 255 levels. A line of text that moves
# changes it by about 30, in a tenth of all blocks and more.
FAINT = 16.0
MOST_CHANGED = 0.02


def cells() -> list[dict[str, Any]]:
    """Cells of every look: expected, failed, skipped."""
    failed, skipped = sample.cell("my-own", fix=None, device="cpu"), sample.cell("on-a-gpu", device="cuda")
    failed["gates"][0] |= {"pass": False, "text": "after memory.retained_bytes equals 0", "observed": 7, "limit": 0}
    failed |= {"verdict": "fail", "reason": "after memory.retained_bytes equals 0: 7 B"}
    skipped |= {"verdict": "skipped", "reason": "no NVIDIA GPU in sight", "arms": {}, "gates": []}
    return [copy.deepcopy(cell) for cell in (*sample.cells(), failed, skipped)]


def shrunk(picture: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    return image.resize((image.width // SHRUNK, image.height // SHRUNK), Image.Resampling.BOX)


def changed(one: Image.Image, other: Image.Image) -> float:
    """The share of blocks whose colour differs; 1 for pictures of different sizes."""
    if one.size != other.size:
        return 1.0
    means = [
        np.asarray(image.resize((image.width // BLOCK, image.height // BLOCK), Image.Resampling.BOX), dtype=np.float64)
        for image in (one, other)
    ]
    return float((np.abs(means[0] - means[1]).max(axis=2) > FAINT).mean())


class Pictures(unittest.TestCase):
    plains: dict[str, Image.Image] = {}

    @classmethod
    def setUpClass(cls) -> None:
        program = find()
        if program is None:
            raise RuntimeError("no Chromium; install the Debian package chromium (ci/setup test does)")
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(temporary.cleanup)
        directory = pathlib.Path(temporary.name)
        sample.write_set(directory / "results", cells(), complete=False, findings=[sample.finding(sample.cell())])
        command = [sys.executable, "-B", str(sample.ROOT / "reports"), str(directory / "results"), "-o", str(directory / "r")]
        subprocess.run(command, capture_output=True, timeout=300, check=True)
        cls.browser = cls.enterClassContext(Chromium(program, directory / "profile"))
        cls.url = (directory / "r" / "report.html").as_uri()

    def show(self, name: str, style: str = "") -> None:
        """Opens a view, with further rules of style."""
        width, dark, media = VIEWS[name]
        self.browser.screen(dark, width, HEIGHT)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.browser.open(self.url)
        self.browser.evaluate("document.fp8labDrawAll().then(() => true)")
        self.browser.evaluate(
            f"document.head.appendChild(Object.assign(document.createElement('style'), {{textContent: {style!r}}})) && true"
        )

    def see(self, name: str, style: str = "") -> Image.Image:
        self.show(name, style)
        return shrunk(self.browser.screenshot())

    def plain(self, name: str) -> Image.Image:
        """A view as the page has it. It is the same every time."""
        if name not in self.plains:
            self.plains[name] = self.see(name)
        return self.plains[name]

    def font(self) -> str:
        for domain in ("DOM", "CSS"):
            self.browser.call(f"{domain}.enable")
        root = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        node = self.browser.call("DOM.querySelector", nodeId=root, selector="h1")["nodeId"]
        return self.browser.call("CSS.getPlatformFontsForNode", nodeId=node)["fonts"][0]["familyName"]

    def kept(self, name: str) -> Image.Image:
        return Image.open(PICTURES / f"{name}.png").convert("RGB")

    def test_every_view_is_as_its_picture(self) -> None:
        self.plain("wide")
        if (font := self.font()) != FONT:
            self.skipTest(f"this machine's browser writes in {font}, the pictures are in {FONT}")
        for name in VIEWS:
            with self.subTest(name):
                seen = self.plain(name)
                share = changed(seen, self.kept(name))
                if share > MOST_CHANGED:
                    place = pathlib.Path(tempfile.gettempdir(), f"fp8lab-{name}.png")
                    seen.save(place)
                    self.fail(f"{share:.1%} of {name}.png changed; look at {place}, and if it is good run {__file__} --write")

    def test_a_change_of_style_is_seen(self) -> None:
        for name, style in (
            ("wide", "section { margin: 3rem 0; }"),
            ("wide", ".answer { background: var(--bad); }"),
            ("dark", ":root { --page: #fefefd !important; }"),
            ("phone", "td.prose { min-width: 30rem; } .scroll { overflow: visible; }"),
            ("print", "table { font-size: 1rem; }"),
        ):
            with self.subTest(name, style=style):
                self.assertGreater(changed(self.see(name, style), self.plain(name)), MOST_CHANGED)

    def test_nothing_is_cut_off_at_the_right(self) -> None:
        for name, (width, _, media) in VIEWS.items():
            self.show(name)
            # On a screen a wide table scrolls within its frame; paper has no scroll bar.
            what = "table, figure, p, h1, h2, h3" if media == "print" else ".scroll, figure, p, h1, h2, h3"
            far = self.browser.evaluate(
                f"[...document.querySelectorAll('main > section')].flatMap(s => [...s.querySelectorAll({what!r})])"
                f".filter(e => e.getBoundingClientRect().right > {width}).map(e => e.textContent.slice(0, 40))"
            )
            self.assertEqual(far, [], name)
            self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width, name)

    def test_the_table_of_findings_fits_the_screen_of_a_laptop(self) -> None:
        for width in (1280, 1366):
            self.browser.screen(False, width, HEIGHT)
            self.browser.open(self.url)
            over = self.browser.evaluate(
                "(frame => frame.scrollWidth - frame.clientWidth)(document.querySelector('#table-findings').parentElement)"
            )
            self.assertLessEqual(over, 0, f"{width} pixels")

    def write(self) -> None:
        PICTURES.mkdir(exist_ok=True)
        for name in VIEWS:
            self.see(name).quantize(64).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        unittest.TextTestRunner().run(unittest.TestSuite([Pictures("write")]))
    else:
        unittest.main()

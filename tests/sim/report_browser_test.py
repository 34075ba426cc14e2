#!/usr/bin/env python3
"""report_browser_test.py TPCE [FOLDER]: opens a report of quick studies in headless Chromium as wide as a desktop and as
a phone: no message on the console, nothing wider than the page, every picture drawn. Keeps screenshots in FOLDER where it is
given. Exits with 77, which CTest shows as skipped, where there is no Chromium, or none that opens an empty page."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
STUDIES = ("invariance", "threshold", "memory")
WIDTHS = (1280, 390)

# An inner frame of the width asked for, since Chromium's own window is never narrower than 500 pixels.
FRAME = """<!DOCTYPE html><body style="margin:0"><iframe id="f" src="report.html" style="border:0;width:{width}px;height:{height}px">
</iframe><script>
document.getElementById('f').onload = () => {{
  const page = document.getElementById('f').contentDocument, root = page.documentElement;
  const drawn = [...page.images].filter(i => i.complete && i.naturalWidth > 0).length;
  document.title = `width=${{root.scrollWidth}} height=${{root.scrollHeight}} images=${{page.images.length}} drawn=${{drawn}}`;
}};
</script></body>"""


def run(command: list) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=True)


def browse(browser: str, folder: Path, arguments: list) -> subprocess.CompletedProcess:
    # As root, and in containers, Chromium's sandbox cannot start; the page is our own file.
    return run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--allow-file-access-from-files",
                "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000",
                *arguments])  # fmt: skip


def main() -> int:
    tpce = Path(sys.argv[1]).resolve()
    keep = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("chromium: not found, so the report is not opened")
        return SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            browse(browser, folder, ["--dump-dom", "about:blank"])
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{browser}: does not open an empty page here, so the report is not opened: {error}")
            return SKIPPED
        for study in STUDIES:
            run([tpce, "study", study, "--quick", "--out", folder / study])
        run([tpce, "report", folder])
        for width in WIDTHS:
            page = folder / f"frame{width}.html"
            page.write_text(FRAME.format(width=width, height=2000))
            shown = browse(browser, folder, ["--window-size=1400,2000", "--dump-dom", page.as_uri()])
            console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
            assert not console, f"{width} wide: messages on the console: {console}"
            found = re.search(r"<title>width=(\d+) height=(\d+) images=(\d+) drawn=(\d+)", shown.stdout)
            assert found, f"{width} wide: the page did not load: {shown.stdout[-500:]}"
            scroll, _, images, drawn = map(int, found.groups())
            assert scroll <= width, f"the page is {scroll} pixels wide in a window of {width}"
            assert images >= 3 and drawn == images, f"{drawn} of {images} pictures are drawn"
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                shot = keep / f"report{width}.png"
                browse(browser, folder, [f"--window-size={max(width, 500)},2000", f"--screenshot={shot}", page.as_uri()])
        print(f"opened at {WIDTHS}: no message, {images} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A real browser that tells what a page looks like in it."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# a page in a frame tells what it looks like, and the page around it shows that as its only words; windows themselves
# cannot be as narrow as a telephone
AROUND = """<script>addEventListener("message", event => { document.body.textContent = "told: " + event.data + ":end" })
</script><body><iframe src="ADDRESS" style="width: WIDTHpx; height: 900px; border: 0"></iframe></body>"""


@pytest.fixture
def seen(tmp_path):
    """seen(name, text, width): what a page or a picture tells of itself in the browser."""
    if BROWSER is None:
        pytest.skip("no Chromium here")

    def look(name, text, width):
        (tmp_path / name).write_text(text)
        (tmp_path / "around.html").write_text(AROUND.replace("ADDRESS", name).replace("WIDTH", str(width)))
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
        flags += ["--virtual-time-budget=20000", "--hide-scrollbars"]
        command = [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "around.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        return json.loads(unescape(re.search(r">told: (.*):end<", done.stdout, re.DOTALL)[1]))

    return look

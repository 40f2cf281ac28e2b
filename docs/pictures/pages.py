"""What the front page, the site and the report look like: python docs/pictures/pages.py [REPORT.html]

Needs chromium (`apt-get install chromium`) and a built site (`mkdocs build`). The front page is drawn as a code host
would: the README's Markdown in a column, and nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SITE, HERE = ROOT / "build" / "site", Path(__file__).parent
COLOURS = 200  # of a picture: text on a ground needs few
STYLE = """
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1f2328; max-width: 980px; margin: auto }
body { padding: 32px }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: .3em }
a { color: #0969da; text-decoration: none }
pre, code { background: #f6f8fa; border-radius: 6px; font: 85% "DejaVu Sans Mono", monospace }
pre { padding: 16px }
table { border-collapse: collapse; display: block; overflow: auto }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
img { max-width: 100% }
"""


def shoot(page: str, target: Path, width: int, height: int, scale: float = 1.0) -> Path:
    """Draws a page of this many CSS pixels."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=4000"]
    command += [f"--window-size={width},{height}", f"--force-device-scale-factor={scale}", f"--screenshot={target}"]
    subprocess.run([*command, page], check=True, capture_output=True, timeout=120)
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e3:.0f} KB")
    return target


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        body = MarkdownIt("commonmark").enable("table").render(text)
        front = Path(scratch, "front.html")
        front.write_text(
            f"<meta charset=utf-8><base href='{ROOT.as_uri()}/'><style>{STYLE}</style><body>{body}", encoding="utf-8"
        )
        shoot(front.as_uri(), HERE / "front-page.png", 1044, 2300, 0.7)
        site = (SITE / "task2" / "index.html").as_uri()
        shoot(site, HERE / "site-desktop.png", 1280, 800)
        phone = Path(scratch, "phone.html")
        frame = "<iframe src='{}' style='width:390px;height:844px;border:1px solid #888;margin:4px'></iframe>"
        pages = (SITE / "index.html", SITE / "task2" / "index.html", SITE / "common" / "simulator" / "index.html")
        phone.write_text("<body style='margin:0;display:flex'>" + "".join(frame.format(one.as_uri()) for one in pages))
        shoot(phone.as_uri(), HERE / "site-phone.png", 1210, 856, 0.8)
    for arguments in sys.argv[1:]:
        shoot(Path(arguments).resolve().as_uri(), HERE / "report.png", 1200, 1150, 0.8)


if __name__ == "__main__":
    main()

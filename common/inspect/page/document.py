"""The page template: one HTML file with embedded style, scripts and data.

text = document("Replay of softmax: 7 x 31", ("dom.js", "replay.js"), data, blob)
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

# Nothing may be fetched, whatever a source file contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"
ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"  # otherwise browsers request /favicon.ico


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def document(
    title: str, scripts: Sequence[str], styles: Sequence[str], data: Mapping[str, object], blob: bytes = b""
) -> str:
    """The whole page.

    Args:
        title: title of the window.
        scripts, styles: names of files in assets/, in order.
        data: the data that the scripts show, as JSON.
        blob: additional binary data; it is compressed.
    """
    # an escaped "<" cannot end the script element or begin a comment
    told = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    packed = base64.b64encode(zlib.compress(blob, 9)).decode() if blob else ""
    head = "\n".join(
        [
            "<meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f'<link rel="icon" href="{ICON}">',
            f"<title>{html.escape(title)}</title>",
            *(f"<style>\n{asset(name)}</style>" for name in styles),
        ]
    )
    body = "\n".join(
        [
            "<noscript><p>This page is drawn by JavaScript, which is switched off here.</p></noscript>",
            "<main id='page'></main>",
            f"<script id='data' type='application/json'>{told}</script>",
            f"<script id='blob' type='text/plain'>{packed}</script>",
            *(f"<script>\n{asset(name)}</script>" for name in scripts),
        ]
    )
    return f"<!doctype html>\n<html lang='en'>\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n"

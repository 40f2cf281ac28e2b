"""mkdocs hook: builds the site from the READMEs where they are, so that no text is duplicated.

mkdocs reads pages from one folder, which can't be the checkout. So the configured folder is docs/, and this hook
replaces its list of files: every page by its path in the checkout, and every file that a page links to, such as a
picture or a .cu. Broken links are kept, so that `mkdocs build --strict` fails.

The pages are CommonMark, where the content of a list item is indented by two or three columns, and Markdown works
inside <details>. mkdocs' dialect needs four columns, and an attribute: on_page_markdown adds both.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "common/**/*.md", "task*/**/*.md", "tests/**/*.md")
_FENCE = re.compile(r"(```+|~~~+)")
_ITEM = re.compile(r"([-*]|\d+\.) +(?=\S)")
_FLAG = re.compile(r"(?<![-\w])--?\w[-\w]*")
_LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)|<img[^>]*\ssrc=\"([^\":]+)\"")


def pages() -> list[str]:
    """The paths of all pages, relative to the checkout's root."""
    found = {file for pattern in PAGES for file in ROOT.glob(pattern)}
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def linked(page: str) -> set[str]:
    """The files, other than pages, that a page links to or shows."""
    file = ROOT / page
    targets = {(file.parent / (link or image)).resolve() for link, image in _LINK.findall(file.read_text("utf-8"))}
    inside = {target for target in targets if target.is_file() and target.is_relative_to(ROOT)}
    return {target.relative_to(ROOT).as_posix() for target in inside if target.suffix != ".md"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The files that mkdocs builds."""
    looks = {*config.extra_css, *map(str, config.extra_javascript)}
    theirs = [f for f in files if f.src_uri in looks or not Path(f.abs_src_path or "").is_relative_to(ROOT / "docs")]
    every = [*pages(), *sorted({target for page in pages() for target in linked(page)})]
    ours = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in every]
    return Files([*theirs, *ours])


def with_wide_lists(text: str) -> str:
    """CommonMark text with list content indented by four columns per nesting level.

    Inserts an empty line before a list item that directly follows a line of text.
    """
    lines: list[str] = []
    items: list[int] = []  # the column where each open item's text begins
    loose = False  # the item above contains an empty line
    fence = ""  # the fence of the open code block
    for line in text.split("\n"):
        code = line.lstrip(" ")
        indent = len(line) - len(code)
        depth = len(items)
        while code and items and indent < items[-1] and not fence:
            items.pop()
        inside = indent - (items[-1] if items else 0)  # four or more: a code block
        marker = _ITEM.match(code) if inside < 4 and not fence else None
        if fenced := _FENCE.match(code):
            fence = "" if fence == fenced[1] else fence or fenced[1]
        if marker and lines and lines[-1].strip():
            begins = len(items) == depth
            if begins and marker[1] not in ("-", "*", "1."):
                marker = None  # a sentence wrapped so that a line begins with a number
            elif begins or loose:
                lines.append("")
        lines.append(" " * (4 * len(items) + (0 if marker else inside)) + code if code else line)
        loose = not code or (loose and not marker)
        if marker:
            items.append(indent + marker.end())
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Converts a page's text to mkdocs' Markdown."""
    wide = with_wide_lists(markdown).replace("<details", '<details markdown="1"')
    return re.sub(r"```console\n(?! *\$)", "```bash\n", wide)  # "console" without prompts: all gray, as output


def on_page_content(html: str, **_: object) -> str:
    """A page's HTML with command-line flags kept from wrapping after their hyphens."""
    whole = r'<span style="white-space: nowrap">\g<0></span>'
    return re.sub(r"<code>[^<]+</code>", lambda code: _FLAG.sub(whole, code[0]), html)

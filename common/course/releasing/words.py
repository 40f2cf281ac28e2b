"""Adapts a document to the student edition: removes mentions of what the edition does not contain.

for_students(text) removes text about solutions, the project's own tests and instructors: sentences of a paragraph, rows
of a table, lines of a listing. So new sentences in a handout need no change here.
"""

from __future__ import annotations

import re
import textwrap

# What the student edition does not have. `common.skeleton` has a replacement there.
ABSENT = re.compile(
    r"--solution|`solution`|(?<![\w/])solution/|taskN/solution/|\bpytest\b|(?<![\w/])tests/|variant solution|"
    r"common/README|course/README|common\.course (?:grade|attack|rehearse|release|autograder)|"
    r"common\.nvcc_check|from the solutions"
)
INSTEAD = {  # text of the whole course -> text of the student edition
    "common.skeleton": "common.course reset",
    "; its README is the map": "",
    "compiles the reference kernels": "compiles the fast kernels",
    "cases/  solution/   what students read; what they are tested with; the reference": "cases/"
    "              what students read; what they are tested with",
}
_ASIDE = re.compile(r"(?:,(?:\s+and)?|\s+and)\s+`--solution`\s+\([^()]*\)")
_BLOCK = re.compile(r"(?ms)(?:^ *```\w*$.*?^ *```$|^(?! *```)[^\n]+(?:\n(?! *```)[^\n]+)*)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\[*])")
WIDTH = 120


def for_students(text: str) -> str:
    """The text for the student edition."""
    text = re.sub(r"^((?:pip|python) .*task7\.inference) --solution", r"\1 --tuned", text, flags=re.MULTILINE)
    for said, instead in INSTEAD.items():
        text = text.replace(said, instead)
    blocks, kept = _BLOCK.findall(text), []
    for block in blocks:
        if not ABSENT.search(block):
            kept.append(block)
            continue
        left = _without(block)
        if left is not None:
            kept.append(left)
        elif kept and kept[-1].rstrip().endswith(":") and not _is_listing(kept[-1]):
            kept[-1] = _without_last_sentence(kept[-1])
    return "\n\n".join(block for block in kept if block is not None) + text[len(text.rstrip("\n")) :]


def _is_listing(block: str) -> bool:
    return block.lstrip().startswith("```")


def _without(block: str) -> str | None:
    """A block without mentions of what is absent; None if nothing is left."""
    lines = block.splitlines()
    if _is_listing(block) or any(line.startswith(("|", "<!--")) for line in lines):
        left = [line for line in lines if not ABSENT.search(line)]
        return "\n".join(left) if any("```" not in line for line in left) else None
    if any(re.match(r"\s*(?:[-*]|\d+\.) ", line) for line in lines):
        items = re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block)
        left = [one for one in (_prose(item) for item in items) if one]
        return "\n".join(left) or None
    return _prose(block)


def _prose(paragraph: str) -> str | None:
    """A paragraph or list item without the sentences that mention what is absent, rewrapped."""
    if not ABSENT.search(paragraph):
        return paragraph
    start = re.match(r"\s*(?:[-*] |\d+\. )?", paragraph)[0]
    whole = _ASIDE.sub("", " ".join(paragraph[len(start) :].split()))
    sentences = [one for one in _SENTENCE.split(whole) if not ABSENT.search(one)]
    if not sentences:
        return None
    return textwrap.fill(
        " ".join(sentences),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _without_last_sentence(paragraph: str) -> str | None:
    """A paragraph without its last sentence, which introduced a removed listing; None if nothing is left."""
    whole = " ".join(paragraph.split())
    sentences = _SENTENCE.split(whole)[:-1]
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False) if sentences else None

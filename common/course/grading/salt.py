"""A class's secret: inputs and hidden cases are derived from it, so that recorded answers are worthless.

salt = salt_in(folder)          created once, kept in a file that only its owner can read
seed_of(salt, "task2: 7 x 31")  a number that reveals nothing about the salt
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path


def salt_in(folder: Path) -> bytes:
    """The salt kept in a folder; a new one is created if there is none."""
    file = folder / "salt"
    if not file.exists():
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(secrets.token_hex(32) + "\n")
    text = file.read_text().strip()
    if len(text) < 32:
        raise ValueError(f"{file} holds {len(text)} characters; a salt has at least 32")
    return text.encode()


def seed_of(salt: bytes, what: str) -> int:
    """A 63-bit seed for each purpose."""
    return int.from_bytes(hmac.new(salt, what.encode(), hashlib.sha256).digest()[:8], "big") >> 1


def mark_of(salt: bytes) -> str:
    """A short fingerprint of the salt."""
    return hmac.new(salt, b"mark", hashlib.sha256).hexdigest()[:12]

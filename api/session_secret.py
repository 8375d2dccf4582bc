"""The secret that signs page sessions."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def session_secret(path: Path) -> bytes:
    """The secret kept at `path`; made on first use, readable by its owner alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        partial.replace(path)
    return path.read_bytes()

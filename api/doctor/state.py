"""Checks of what the gateway keeps: its model, its database, its signing key."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from api import migrate
from api.doctor.findings import Finding, fail, ok, warn
from engine.config import EngineConfig
from engine.dfm.catalogue import resolve
from engine.dfm.container import ModelFile
from engine.dfm.header import Header, read_header
from engine.errors import EngineError, ModelNotFound


def model(home: Path, name: str) -> tuple[Header | None, Finding]:
    """Read the model's header and hash its tensors; no header when the file can't be used."""
    try:
        path = resolve(home, name)
        header = read_header(path)
        ModelFile.open(path).verify()
    except ModelNotFound as error:
        return None, warn("model", str(error), f"dflash pull {name}")
    except EngineError as error:
        return None, fail("model", str(error), f"delete the file and run `dflash pull {name}`")
    return header, ok("model", f"{path}, {header.checksum[:23]}... matches")


def context_length(config: EngineConfig, header: Header | None) -> Finding:
    """Whether `longest_token_length` covers the model's context, where it is set at all."""
    check = "longest_token_length"
    longest = config.longest_token_length
    if longest is None:
        return ok(check, "not set: the model's own context applies")
    if header is None:
        return warn(check, f"{longest}, with no model to compare it to", "check again with a model")
    context = header.model.architecture.context_length
    enough = max(context, 1)
    advice = f"set DFLASH_ENGINE__LONGEST_TOKEN_LENGTH={1 << (enough - 1).bit_length()}"
    if longest < context:
        return fail(check, f"{longest}, below the model's context of {context}", advice)
    if longest & (longest - 1):
        return warn(check, f"{longest} is enough, but no power of two", advice)
    return ok(check, f"{longest} covers the model's context of {context}")


def database(url: str) -> Finding:
    """Whether the database answers and has this release's schema."""
    is_file = url.startswith("sqlite")
    try:
        state = migrate.check(url)
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        within = "let this user write the file and its folder" if is_file else "the server is up"
        return fail("database", reason, f"check that DFLASH_DATABASE_URL is right, and {within}")
    if state.is_current:
        return ok("database", f"reachable, schema as this release wants it ({state.head})")
    if state.current is None:
        return warn("database", "no schema yet", "dflash migrate")
    found = f"schema {state.current}, where this release needs {state.head}"
    if not state.is_known:
        return fail("database", found, "install the newer release that has migrated it")
    return fail("database", found, "dflash migrate")


def signing_key(path: Path) -> Finding:
    """Whether the key that signs receipts is readable by its owner alone."""
    if not path.exists():
        return ok("signing key", "none yet: the first start makes one")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return fail("signing key", f"{path} has mode {mode:o}", f"chmod 600 {path}")
    return ok("signing key", f"{path}, owner only")

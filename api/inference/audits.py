"""A tenant's audit of its own receipt: the work is done again, in a process of its own.

Neither the serving engine nor its meter notices, so an audit is in nobody's joules or bill.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import structlog

from api.errors import AuditBusy, AuditFailed, NotFound
from api.settings import Settings
from billing.errors import CannotAudit
from billing.receipt_audit import Audit

log = structlog.get_logger(__name__)

TIMEOUT_S = 300.0
TURN_S = 30.0  # that a tenant waits for the audits of others
_NICE = 10


class _NotAudited(msgspec.Struct):
    """What the command says of a receipt that it could not audit."""

    request_id: str
    code: str
    reason: str


class AuditDesk:
    """Runs one audit at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()

    async def audit(self, tenant_id: str, request_id: str) -> Audit:
        """Generate the request's answer again and compare it with its receipt.

        The request must be the tenant's and auditable: check both before. Raises AuditBusy while
        others run for longer than one waits, NotFound and CannotAudit where the process finds that
        it can't be done after all, AuditFailed where it ends without a word.
        """
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            raise AuditBusy("other audits are running; try again in a while") from None
        try:
            return await self._run(tenant_id, request_id)
        finally:
            self._turn.release()

    async def _run(self, tenant_id: str, request_id: str) -> Audit:
        settings = self._settings
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dflash", "--home", str(settings.home)),
            *("receipt", "audit", request_id, "--tenant", tenant_id),
            "--json",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**settings.environment(), "DFLASH_MODEL": settings.model},
        )
        os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, err = await child.communicate()
        except TimeoutError:
            raise AuditFailed(f"the audit took more than {TIMEOUT_S:.0f} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        try:
            return msgspec.json.decode(out, type=Audit)
        except msgspec.DecodeError:
            _refuse(out)
            reason = err.decode(errors="replace")[-2000:]
            log.error("audit.failed", request_id=request_id, status=child.returncode, stderr=reason)
            raise AuditFailed("the audit's process ended without a result") from None


def _refuse(out: bytes) -> None:
    """Raise what the process said of the receipt, if it said why it was not audited."""
    try:
        said = msgspec.json.decode(out, type=_NotAudited)
    except msgspec.DecodeError:
        return
    match said.code:
        case "not_found":
            raise NotFound(said.reason)
        case "cannot_audit":
            raise CannotAudit(said.reason)
        case "model_not_found":  # its own reason names folders
            raise CannotAudit("the model that the receipt names is not here any more")

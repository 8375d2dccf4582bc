"""Making the call: signed by every secret in force, to the address that was checked, no further."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

import httpx
from sqlalchemy import Engine as Database
from standardwebhooks import Webhook

from api.webhooks import deliveries
from api.webhooks.addresses import ForbiddenAddress, Target, resolve
from api.webhooks.deliveries import Due
from metering import clock
from metering.database import transaction

TIMEOUT_S = 15.0
BATCH = 20


class Sender:
    """Sends what is due. One instance, one thread; the connection is new for every call."""

    def __init__(self, database: Database, *, allow_private: bool = False) -> None:
        self._database = database
        self._allow_private = allow_private
        self._trust = ssl.create_default_context()

    def round(self) -> int:
        """Plan, claim and send one batch; how many calls were made."""
        with transaction(self._database) as connection:
            deliveries.plan(connection)
            due = deliveries.claim(connection, BATCH)
        for each in due:
            status, error = self._call(each)
            with transaction(self._database) as connection:
                deliveries.record(connection, each, status, error)
        return len(due)

    def _call(self, due: Due) -> tuple[int | None, str | None]:
        try:
            target = resolve(due.endpoint.url, allow_private=self._allow_private)
        except ForbiddenAddress as refusal:
            return None, str(refusal)
        now = datetime.fromtimestamp(clock.now_us() // 10**6, UTC)
        signatures = [
            Webhook(secret).sign(due.notice_id, now, due.body) for secret in due.endpoint.secrets
        ]
        headers = {
            "host": target.host,
            "content-type": "application/json",
            "user-agent": "dflash-webhooks/1",
            "webhook-id": due.notice_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        try:
            status = asyncio.run(self._status(target, due.body, headers))
        except TimeoutError:
            return None, f"it took longer than {TIMEOUT_S:g} s"
        except httpx.HTTPError as failure:
            return None, f"{type(failure).__name__}: {failure}"
        return status, None if 200 <= status < 300 else f"it answered {status}"

    async def _status(self, target: Target, body: str, headers: dict[str, str]) -> int:
        """How it answered, within the time for all of it: whoever drips keeps nobody waiting.

        What it answered with is not read, however much it is.
        """
        async with asyncio.timeout(TIMEOUT_S):
            # No proxy of the environment's and no redirect: the call goes where it was checked.
            client = httpx.AsyncClient(
                verify=self._trust, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
            )
            extensions = {"sni_hostname": target.server_name}
            async with (
                client,
                client.stream(
                    "POST", target.url, content=body, headers=headers, extensions=extensions
                ) as answer,
            ):
                return answer.status_code

"""Making the calls: signed by every secret in force, to the address that was checked, no further.

An endpoint is called once at a time, and the one whose turn was longest ago comes first. So one
that is slow takes one of the places, those of one tenant a few, and no other waits for more than
one call of each of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime

import httpx
import structlog
from sqlalchemy import Engine as Database
from standardwebhooks import Webhook

from api.webhooks import deliveries
from api.webhooks.addresses import ForbiddenAddress, Target, resolve
from api.webhooks.deliveries import Due, Head
from metering import clock
from metering.database import snapshot, transaction

log = structlog.get_logger(__name__)

TIMEOUT_S = 15.0
PLACES = 20  # calls at a time
PLACES_OF_TENANT = 4
LOOK_AGAIN_S = 2.0


class Sender:
    """Sends what is due. One instance, one thread; the connection is new for every call."""

    def __init__(self, database: Database, *, allow_private: bool = False) -> None:
        self._database = database
        self._allow_private = allow_private
        self._trust = ssl.create_default_context()
        self._pool = ThreadPoolExecutor(PLACES, thread_name_prefix="webhook")
        self._calls: dict[Future[None], Due] = {}
        self._turns: dict[str, int] = {}  # of each endpoint, the number of its last call
        self._turn = 0

    def round(self) -> int:
        """Plan, begin what there is a place for, and wait until a call ends or some seconds are
        over; how many calls were going on.
        """
        with snapshot(self._database) as connection:
            is_news = deliveries.is_unplanned(connection)
        if is_news:
            with transaction(self._database) as connection:
                deliveries.plan(connection)
        with snapshot(self._database) as connection:
            chosen = self._chosen(deliveries.heads(connection))
        if chosen:
            with transaction(self._database) as connection:
                begun = deliveries.claim(connection, chosen)
            for due in begun:
                self._calls[self._pool.submit(self._attempt, due)] = due
        going_on = len(self._calls)
        for ended in wait(self._calls, LOOK_AGAIN_S, FIRST_COMPLETED).done:
            due = self._calls.pop(ended)
            if (failure := ended.exception()) is not None:  # due again when its lease is over
                log.error("webhook.unrecorded", endpoint_id=due.endpoint.id, exc_info=failure)
        return going_on

    def close(self) -> None:
        """End after the calls in hand."""
        self._pool.shutdown()

    def _chosen(self, heads: Sequence[Head]) -> list[int]:
        """Those for which there is a place, of endpoints that were called longest ago."""
        called = [each.endpoint for each in self._calls.values()]
        busy = {endpoint.id for endpoint in called}
        taken = Counter(endpoint.tenant_id for endpoint in called)
        chosen: list[int] = []
        for head in sorted(heads, key=self._order):
            if len(called) + len(chosen) == PLACES:
                break
            if head.endpoint_id not in busy and taken[head.tenant_id] < PLACES_OF_TENANT:
                taken[head.tenant_id] += 1
                self._turn += 1
                self._turns[head.endpoint_id] = self._turn
                chosen.append(head.seq)
        return chosen

    def _order(self, head: Head) -> tuple[int, int]:
        return self._turns.get(head.endpoint_id, 0), head.seq

    def _attempt(self, due: Due) -> None:
        try:
            status, error = self._call(due)
        except Exception as failure:  # an attempt as any other: what is never noted never ends
            log.exception("webhook.failed", endpoint_id=due.endpoint.id)
            status, error = None, f"it could not be called: {type(failure).__name__}"
        with transaction(self._database) as connection:
            deliveries.record(connection, due, status, error)

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

"""Receipts audited one after the other on one loaded model. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from sqlalchemy import Connection

from api.errors import NotFound
from api.settings import Settings
from billing import catalogue, receipt_audit, signing
from billing.errors import CannotAudit
from billing.receipt_audit import Audit
from billing.request_evidence import of_request
from engine.dfm.catalogue import resolve
from engine.dfm.header import read_header
from engine.errors import EngineError, InvalidConfig, UnsupportedModel
from metering.calibration import Calibration, calibration
from metering.requests import from_row

if TYPE_CHECKING:
    from engine.replay import Replayer

log = structlog.get_logger(__name__)


class Auditor:
    """Loads the model when the first receipt needs it, on the receipt's own backend.

    Where this machine does not have that, on the one that it has: within a tolerance then.
    """

    def __init__(self, connection: Connection, home: Path, model: str | None = None) -> None:
        """`model` is a name or a path; if null, the configured one where it is the receipt's."""
        self.keys = signing.public_keys(connection)
        self._connection = connection
        self._home = home
        self._model = model
        self._replayer: Replayer | None = None
        self._set_up: tuple[Any, ...] = ()

    def audit(self, request_id: str, tenant_id: str | None = None) -> Audit:
        """Generate a request's answer again and compare. A null tenant may see everyone's.

        Raises NotFound, CannotAudit, and what loading a model raises.
        """
        try:
            evidence = of_request(self._connection, request_id)
            if evidence is None or tenant_id not in {None, evidence.request.tenant_id}:
                raise NotFound(f"no generation {request_id}")
            document = receipt_audit.stated(evidence)
            admitted = from_row(evidence.request._mapping)
            replayer = self._open(document)
            prompt_ids = replayer.prompt_ids(admitted.prompt)
            request = receipt_audit.generation_request(admitted, prompt_ids)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise CannotAudit(f"what is stored of {request_id} can't be read: {error}") from error
        assert evidence.summary is not None, "what was stated has one"
        return receipt_audit.audit(
            evidence,
            admitted,
            lambda version: catalogue.version(self._connection, version),
            self.keys,
            engine=replayer.info,
            prompt_ids=prompt_ids,
            steps=replayer.replay(request, evidence.summary.output_tokens),
            calibration=self._calibration(evidence.summary.calibration),
        )

    def _calibration(self, version: str | None) -> Calibration | None:
        return None if version is None else calibration(self._connection, version)

    def _own(self, stated: dict[str, Any]) -> str:
        """The configured model if it is the one that a receipt names, else that one's name."""
        configured = Settings.read(home=self._home).model
        try:
            header = read_header(resolve(self._home, configured))
        except EngineError:
            return str(stated["name"])
        is_own = stated["name"] == header.model.name or stated["checksum"] == header.checksum
        return configured if is_own else str(stated["name"])

    def _open(self, document: dict[str, Any]) -> Replayer:
        from engine.replay import Replayer  # noqa: PLC0415 -- brings torch

        engine = document["engine"] or {"backend": None, "thread_count": None}
        name = self._model or self._own(document["model"])
        scaling = float(engine.get("rope_scaling_factor", 1))
        set_up = (name, engine["backend"], engine["thread_count"], scaling)
        if self._replayer is None or set_up != self._set_up:
            config = msgspec.structs.replace(
                Settings.read(home=self._home).engine_config(), rope_scaling_factor=scaling
            )
            own = config
            if (backend := engine["backend"]) is not None:
                portable = backend in receipt_audit.PORTABLE_BACKENDS
                threads = 1 if portable else engine["thread_count"]
                own = msgspec.structs.replace(config, backend=backend, threads=threads)
            path = resolve(self._home, name)
            try:
                self._replayer = Replayer.open(path, own)
            except (UnsupportedModel, InvalidConfig) as error:
                log.warning("audit.other_arithmetic", backend=backend, reason=str(error))
                self._replayer = Replayer.open(path, config)
            self._set_up = set_up
        return self._replayer

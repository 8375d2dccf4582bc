"""`/admin/tariffs`, and which of them a tenant is on."""

from __future__ import annotations

from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit, tenants
from api.admin.schemas import (
    AssignmentRequest,
    AssignmentView,
    OverrideRequest,
    TariffPage,
    TariffRequest,
    TariffVersionView,
)
from api.auth import Principal, Scope, requires
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import PathId, to_time, to_us_or_null
from billing import catalogue, overrides, tariffs
from billing.errors import InvalidTariff, NoTariff, TariffConflict
from metering.database import snapshot, transaction


@get(
    "/tariffs",
    guards=[requires(Scope.ADMINISTER)],
    summary="List tariff versions",
    responses=documented(Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def list_tariffs(database: NamedDependency[Database]) -> TariffPage:
    """Every published version, with its whole document."""
    with snapshot(database) as connection:
        return TariffPage([TariffVersionView.of(found) for found in catalogue.versions(connection)])


@post(
    "/tariffs",
    guards=[requires(Scope.ADMINISTER)],
    summary="Publish a tariff version",
    responses=documented(
        InvalidParameter, InvalidTariff, TariffConflict, Unauthenticated, Forbidden
    ),
    sync_to_thread=True,
)
def publish_tariff(
    data: JSONBody[TariffRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> TariffVersionView:
    """Publish the next version of the tariff that the document names. The latest one again
    changes nothing.
    """
    tariff = tariffs.parse(data.document)
    starts_us = to_us_or_null(data.effective_from, "effective_from")
    with transaction(database) as connection:
        published = catalogue.publish(connection, tariff, starts_us)
        audit.write(
            connection,
            actor=principal.key_id,
            action="tariff.published",
            subject=published.id,
            document_sha256=published.document_sha256,
            effective_from_us=published.effective_from_us,
        )
    return TariffVersionView.of(published)


@put(
    "/tenants/{tenant_id:str}/tariff",
    guards=[requires(Scope.ADMINISTER)],
    summary="Put a tenant on a tariff",
    responses=documented(
        InvalidParameter, NoTariff, TariffConflict, Unauthenticated, Forbidden, NotFound
    ),
    sync_to_thread=True,
)
def assign_tariff(
    data: JSONBody[AssignmentRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> AssignmentView:
    """From now, or from the given moment. What was admitted before keeps its tariff version."""
    starts_us = to_us_or_null(data.effective_from, "effective_from")
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        if starts_us is None:
            starts_us = catalogue.from_now(connection, tenant_id)
        catalogue.assign(connection, tenant_id, data.tariff, starts_us)
        audit.write(
            connection,
            actor=principal.key_id,
            action="tariff.assigned",
            subject=data.tariff,
            tenant_id=tenant_id,
            effective_from_us=starts_us,
        )
    return AssignmentView(tenant_id, data.tariff, to_time(starts_us))


@put(
    "/tenants/{tenant_id:str}/tariff/overrides",
    guards=[requires(Scope.ADMINISTER)],
    summary="Give a tenant its own prices",
    responses=documented(
        InvalidParameter,
        InvalidTariff,
        NoTariff,
        TariffConflict,
        Unauthenticated,
        Forbidden,
        NotFound,
    ),
    sync_to_thread=True,
)
def override_tariff(
    data: JSONBody[OverrideRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> TariffVersionView:
    """Publish the tenant's own tariff, made from another's document, and put it there: from now,
    or from the given moment. Putting it on another tariff again ends that.
    """
    starts_us = to_us_or_null(data.effective_from, "effective_from")
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        published = overrides.override(
            connection, tenant_id, data.changes, starts_us, base=data.base
        )
        audit.write(
            connection,
            actor=principal.key_id,
            action="tariff.overridden",
            subject=published.id,
            tenant_id=tenant_id,
            document_sha256=published.document_sha256,
            effective_from_us=published.effective_from_us,
        )
    return TariffVersionView.of(published)

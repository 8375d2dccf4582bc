"""Which tariff a tenant pays, and when: published versions, never changed, effective-dated.

Intervals are half-open: a version is in force in [effective_from_us, effective_to_us), and a
version's successor begins where it ends.

Whoever changes prices waits for whoever else does, and then locks the tenants that pay them: a
request is priced under its tenant's lock, so none is admitted between check and write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, or_, select, text, update

from billing import tariffs
from billing.errors import NoTariff, TariffConflict
from billing.invoices import closed_periods
from billing.ledger.accounts import Account, AccountKind, lock, lock_tenant
from billing.ledger.balances import currency_of
from billing.tables import tariff_versions, tenant_tariffs
from billing.tariffs import Tariff
from metering import clock
from metering.prepared import Prepared
from metering.tables import requests

TENANT_CREDIT = AccountKind.TENANT_CREDIT
LOCKED_AT_ONCE = 1000  # tenants in one statement: no driver takes any number of parameters


@dataclass(frozen=True, slots=True)
class TariffVersion:
    """One published version of a tariff. `id` is "<tariff>@<version>"."""

    id: str
    tariff: str
    version: int
    currency: str
    document: Tariff
    document_sha256: str
    effective_from_us: int
    effective_to_us: int | None  # exclusive; null is open


_VERSION = Prepared(select(tariff_versions).where(tariff_versions.c.id == bindparam("version_id")))


def version(connection: Connection, version_id: str) -> TariffVersion:
    """The version with this id; raises NoTariff when there is none."""
    row = _VERSION.row(connection, {"version_id": version_id})
    if row is None:
        raise NoTariff(f"no tariff version {version_id!r}")
    return _from_row(row._asdict())


def versions(connection: Connection, tariff: str | None = None) -> list[TariffVersion]:
    """Every version, or every version of one tariff, by name and number."""
    query = select(tariff_versions).order_by(tariff_versions.c.tariff, tariff_versions.c.version)
    if tariff is not None:
        query = query.where(tariff_versions.c.tariff == tariff)
    return [_from_row(row._asdict()) for row in connection.execute(query)]


_LATEST = (
    select(tenant_tariffs.c.tariff)
    .where(tenant_tariffs.c.tenant_id == bindparam("tenant_id"))
    .where(tenant_tariffs.c.effective_from_us <= bindparam("at_us"))
    .order_by(tenant_tariffs.c.effective_from_us.desc())
    .limit(1)
)
_EFFECTIVE = (
    select(tariff_versions)
    .where(tariff_versions.c.effective_from_us <= bindparam("at_us"))
    .where(
        or_(
            tariff_versions.c.effective_to_us.is_(None),
            tariff_versions.c.effective_to_us > bindparam("at_us"),
        )
    )
)
_ASSIGNED = Prepared(_LATEST)
_IN_FORCE = Prepared(_EFFECTIVE.where(tariff_versions.c.tariff == bindparam("name")))
_PAID = Prepared(_EFFECTIVE.where(tariff_versions.c.tariff == _LATEST.scalar_subquery()))


def tariff_in_force(connection: Connection, tenant_id: str, at_us: int) -> TariffVersion:
    """The version that a request admitted now would be pinned to; raises NoTariff."""
    row = _PAID.row(connection, {"tenant_id": tenant_id, "at_us": at_us})
    if row is not None:
        return _from_row(row._asdict())
    name = assigned(connection, tenant_id, at_us)
    if name is None:
        raise NoTariff(f"tenant {tenant_id!r} has no tariff")
    return in_force(connection, name, at_us)  # or why not


def assigned(connection: Connection, tenant_id: str, at_us: int) -> str | None:
    """The name of the tariff that a tenant is on at a time, or null."""
    return _ASSIGNED.value(connection, {"tenant_id": tenant_id, "at_us": at_us})


def in_force(connection: Connection, tariff: str, at_us: int) -> TariffVersion:
    """The version of a tariff that is in force at a time; raises NoTariff."""
    row = _IN_FORCE.row(connection, {"name": tariff, "at_us": at_us})
    if row is None:
        raise NoTariff(f"no version of tariff {tariff!r} is in force")
    return _from_row(row._asdict())


def publish(
    connection: Connection, tariff: Tariff, effective_from_us: int | None = None
) -> TariffVersion:
    """Add a version, in force from the given time or from now, and end its predecessor there.

    Publishing the latest document again changes nothing and returns its version. Raises
    TariffConflict where that is not in force when asked for, when the version would not come after
    its predecessor, would reprice requests that were admitted already or a month that is closed, or
    changes the currency.
    """
    lock_prices(connection)
    sha256 = tariffs.document_sha256(tariff)
    known = versions(connection, tariff.name)
    latest = known[-1] if known else None
    if latest is not None and latest.document_sha256 == sha256:
        return _again(latest, effective_from_us)
    if latest is None:
        start = clock.now_us() if effective_from_us is None else effective_from_us
    else:
        start = _succeed(connection, latest, tariff, effective_from_us)
    number = 1 if latest is None else latest.version + 1
    version_id = f"{tariff.name}@{number}"
    connection.execute(
        insert(tariff_versions).values(
            id=version_id,
            tariff=tariff.name,
            version=number,
            currency=tariff.currency,
            document=tariffs.canonical(tariff),
            document_sha256=sha256,
            effective_from_us=start,
            created_at_us=clock.now_us(),
        )
    )
    return TariffVersion(
        version_id, tariff.name, number, tariff.currency, tariff, sha256, start, None
    )


def _again(latest: TariffVersion, effective_from_us: int | None) -> TariffVersion:
    """The version that says just what is published again, where it is in force as asked."""
    now = clock.now_us()
    wanted = now if effective_from_us is None else effective_from_us
    began = latest.effective_from_us
    if wanted != began and not began <= min(wanted, now):
        raise TariffConflict(f"{latest.id}, which says the same, is in force from {began} on")
    return latest


def lock_prices(connection: Connection) -> None:
    """Let nobody else change prices until the transaction ends; requests are admitted meanwhile.

    It comes before the lock of any tenant, so that no two changes wait for each other.
    """
    if connection.dialect.name == "postgresql":  # SQLite has one writer
        connection.execute(text("LOCK TABLE tariff_versions IN SHARE ROW EXCLUSIVE MODE"))


def from_now(connection: Connection, tenant_id: str) -> int:
    """The earliest moment from which a tenant's prices may change now; locks the tenant.

    It lies after every request that was admitted, so that none admitted meanwhile is in the way.
    Raises UnknownTenant.
    """
    lock_prices(connection)
    lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
    newest_us = connection.scalar(
        select(func.max(requests.c.started_at_us)).where(requests.c.tenant_id == tenant_id)
    )
    return max(clock.now_us(), 0 if newest_us is None else int(newest_us) + 1)


def assign(connection: Connection, tenant_id: str, tariff_name: str, from_us: int) -> None:
    """Let a tenant pay this tariff from a time on. Assigning the same again changes nothing.

    Raises UnknownTenant, NoTariff, or TariffConflict when the currencies differ, another tariff
    was assigned from the same moment, requests were admitted under the one it replaces, or a month
    that ends after it is closed. A time when the tenant had no tariff takes its first one even so:
    nothing of it was priced.
    """
    lock_prices(connection)
    currency = currency_of(connection, tenant_id)
    known = versions(connection, tariff_name)
    if not known:
        raise NoTariff(f"no tariff {tariff_name!r}")
    owner = known[-1].document.tenant
    if owner is not None and owner != tenant_id:
        raise TariffConflict(f"tariff {tariff_name!r} is another tenant's own")
    if known[-1].currency != currency:
        raise TariffConflict(
            f"tariff {tariff_name!r} is in {known[-1].currency}, the tenant pays {currency}"
        )
    lock_tenant(connection, tenant_id, currency)  # nothing is admitted between check and write
    already = connection.scalar(
        select(tenant_tariffs.c.tariff)
        .where(tenant_tariffs.c.tenant_id == tenant_id)
        .where(tenant_tariffs.c.effective_from_us == from_us)
    )
    if already is None:
        is_first = assigned(connection, tenant_id, from_us) is None
        _leave_closed_months(connection, tenant_id, currency, from_us, is_first=is_first)
        _leave_admitted(connection, tenant_id, tariff_name, from_us)
        connection.execute(
            insert(tenant_tariffs).values(
                tenant_id=tenant_id, effective_from_us=from_us, tariff=tariff_name
            )
        )
    elif already != tariff_name:
        raise TariffConflict(f"tariff {already!r} was assigned from the same moment")


def install_shipped(connection: Connection) -> None:
    """Publish the tariffs that come with the gateway, unless a tariff of that name exists."""
    names = set(connection.scalars(select(tariff_versions.c.tariff).distinct()))
    for name, tariff in tariffs.shipped().items():
        if name not in names:
            publish(connection, tariff, 0)


def _succeed(
    connection: Connection, latest: TariffVersion, tariff: Tariff, effective_from_us: int | None
) -> int:
    """End a tariff's latest version where its successor begins, and say when that is.

    From now is after every request that was admitted under it.
    """
    if tariff.currency != latest.currency:
        raise TariffConflict(
            f"tariff {tariff.name!r} is in {latest.currency}; publish another name for "
            f"{tariff.currency}"
        )
    if tariff.tenant != latest.document.tenant:
        raise TariffConflict(f"tariff {tariff.name!r} is for another tenant, or for all")
    owners = (
        select(tenant_tariffs.c.tenant_id)
        .where(tenant_tariffs.c.tariff == tariff.name)
        .group_by(tenant_tariffs.c.tenant_id)
    )
    paying = connection.scalars(owners.order_by(tenant_tariffs.c.tenant_id)).all()
    for first in range(0, len(paying), LOCKED_AT_ONCE):
        some = paying[first : first + LOCKED_AT_ONCE]
        lock(connection, [Account(owner, TENANT_CREDIT, tariff.currency) for owner in some])
    start = clock.now_us() if effective_from_us is None else effective_from_us
    newest_us = connection.scalar(
        select(func.max(requests.c.started_at_us))
        .where(requests.c.tenant_id.in_(owners))
        .where(requests.c.started_at_us >= start)
        .where(requests.c.tariff_version_id == latest.id)
    )
    if effective_from_us is None and newest_us is not None:
        start, newest_us = int(newest_us) + 1, None
    if start <= latest.effective_from_us:
        raise TariffConflict(f"{latest.id} is in force from {latest.effective_from_us} on")
    if newest_us is not None:
        raise TariffConflict(f"requests were admitted under {latest.id} since {start}")
    for tenant_id in paying:
        _leave_closed_months(connection, tenant_id, tariff.currency, start, tariff.name)
    connection.execute(
        update(tariff_versions)
        .where(tariff_versions.c.id == latest.id)
        .values(effective_to_us=start)
    )
    return start


def _leave_closed_months(
    connection: Connection,
    tenant_id: str,
    currency: str,
    from_us: int,
    tariff: str | None = None,
    *,
    is_first: bool = False,
) -> None:
    """Refuse what would price a closed month anew, by its last moment; of a tariff, if it is named.

    A month that is being closed, or was voided, is looked at again after its close; so is a closed
    one that had no prices, where these are the first.
    """
    if from_us >= clock.now_us():
        return  # no month is closed before its end
    lock_tenant(connection, tenant_id, currency)
    for period, is_closed in closed_periods.affected(connection, tenant_id, from_us):
        if tariff is not None and assigned(connection, tenant_id, period.end_us - 1) != tariff:
            continue
        if is_closed and not is_first:
            until = datetime.fromtimestamp(period.end_us // 10**6, UTC)
            raise TariffConflict(
                f"{period.label} of {tenant_id} is closed: its prices can't change any more; the"
                f" earliest is {until:%Y-%m-%dT%H:%M:%SZ}"
            )
        closed_periods.look_again(connection, tenant_id, period.label)


def _leave_admitted(connection: Connection, tenant_id: str, tariff_name: str, from_us: int) -> None:
    """Refuse an assignment over requests that another one priced, until the next one there is."""
    until_us = connection.scalar(
        select(func.min(tenant_tariffs.c.effective_from_us)).where(
            tenant_tariffs.c.tenant_id == tenant_id,
            tenant_tariffs.c.effective_from_us > from_us,
        )
    )
    admitted = (
        select(requests.c.tariff_version_id)
        .join(tariff_versions, tariff_versions.c.id == requests.c.tariff_version_id)
        .where(requests.c.tenant_id == tenant_id, requests.c.started_at_us >= from_us)
        .where(tariff_versions.c.tariff != tariff_name)
        .limit(1)
    )
    if until_us is not None:
        admitted = admitted.where(requests.c.started_at_us < until_us)
    if (version_id := connection.scalar(admitted)) is not None:
        raise TariffConflict(f"requests were admitted under {version_id} since {from_us}")


def _from_row(row: Mapping[str, Any]) -> TariffVersion:
    return TariffVersion(
        id=row["id"],
        tariff=row["tariff"],
        version=row["version"],
        currency=row["currency"],
        document=_parsed(row["document"]),
        document_sha256=row["document_sha256"],
        effective_from_us=row["effective_from_us"],
        effective_to_us=row["effective_to_us"],
    )


@lru_cache(maxsize=256)
def _parsed(document: str) -> Tariff:
    return tariffs.parse(json.loads(document), is_published=True)

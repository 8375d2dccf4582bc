"""Templates to responses. Figures are formatted here, once, so that every page says them alike.

Null is never zero: a figure that does not exist prints as "unavailable".
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response
from markupsafe import Markup

from billing.invoices.minor_units import minor_nano, stated
from billing.money import format_nano
from dashboards.access import navigation
from dashboards.sessions import (
    CSRF_FIELD,
    PageRequest,
    csrf_token,
    known_viewer,
    take_notice,
)
from metering import wording
from metering.energy import Grid

PREFIX = "/dashboard"
TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
UNAVAILABLE = "unavailable"
SCALE = 9  # decimals of an amount


def page(request: PageRequest, template: str, **values: Any) -> Response[str]:
    """Render a template inside the layout; takes the session's notice and makes its form token."""
    content = environment().get_template(template).render(values, **frame(request))
    return Response(content, media_type=MediaType.HTML)


def frame(request: PageRequest) -> dict[str, Any]:
    """What the layout needs of the request; the notice is shown once."""
    return {
        "viewer": known_viewer(request),
        "path": request.url.path,
        "csrf_field": CSRF_FIELD,
        "csrf_token": csrf_token(request),
        "notice": take_notice(request),
    }


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The Jinja environment of all pages: autoescaped, and an undefined name is an error."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(url=url, asset=asset, navigation=navigation)
    made.filters.update(
        amount=amount,
        column=column,
        joules=joules,
        joules_exact=joules_exact,
        carbon=carbon,
        percent=percent,
        number=number,
        plain=format_nano,
        estimate=estimate,
        score=score,
        instant=instant,
        span=span,
        words=words,
        counted=counted,
        unit_of=unit_of,
        shortened=shortened,
    )
    return made


def url(path: str) -> str:
    """The address of a page, from its path below the prefix."""
    return PREFIX + path


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """The address of a static file; it changes with the content, so browsers may keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{PREFIX}/static/{name}?v={digest}"


def amount(nano: int | None, currency: str) -> Markup:
    """An exact amount and its currency; what is finer than a minor unit is set lighter beside one.

    An amount of less than a minor unit is all fine figures: there they are what counts.
    """
    if nano is None:
        return _unavailable()
    coarse, fine = (_signed(part) for part in stated(nano, currency))
    if abs(nano) < minor_nano(currency):
        coarse, fine = coarse + fine, ""
    return Markup(
        '<span class="amount">{}<span class="fine">{}</span> <span class="unit">{}</span></span>'
    ).format(coarse, fine, currency)


def column(nano: int | None, currency: str) -> Markup:
    """An amount for a right-aligned column: padded so that the decimal points stand in line."""
    if nano is None:
        return _unavailable()
    plain = _signed("".join(stated(nano, currency)))
    padding = SCALE - len(plain.partition(".")[2])
    point = Markup("") if "." in plain else Markup('<span class="pad-point"></span>')
    return Markup('<span class="amount pad-{}">{}{}</span>').format(padding, plain, point)


def joules(microjoules: int | None) -> str:
    """Energy in joules to a tenth, rounded down as it is billed."""
    if microjoules is None:
        return _unavailable()
    return f"{tenths(microjoules)} J"


def tenths(microjoules: int) -> str:
    """Joules rounded down to a tenth, as a decimal string."""
    return str(Decimal(microjoules // 100_000).scaleb(-1))


def joules_exact(microjoules: int | None) -> str:
    """Energy in joules to the microjoule, for whoever checks that the parts sum to the meter."""
    return _unavailable() if microjoules is None else f"{Decimal(microjoules).scaleb(-6):f} J"


def carbon(microjoules: int | None, grid: Grid) -> str:
    """Joules seen as grams of CO2 equivalent."""
    grams = grid.grams(microjoules)
    return _unavailable() if grams is None else f"{grams} g"


def percent(share: float | None) -> str:
    """A share of one, in percent with one decimal."""
    return _unavailable() if share is None else f"{share * 100:.1f} %"


def number(value: float | int | None, decimals: int = 0) -> str:
    """A count or rate, thousands set apart by thin spaces."""
    if value is None:
        return _unavailable()
    return f"{value:,.{decimals}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def counted(count: int, units: str) -> str:
    """A count with its word, in the plural unless it is one."""
    return f"{number(count)} {unit_of(units, count)}"


def unit_of(units: str, count: int | str) -> str:
    """The word for so many of these."""
    return wording.unit_of(count, units)


def estimate(value: float | None) -> str:
    """A figure that is no amount of the books: four significant digits, without an exponent."""
    if value is None:
        return _unavailable()
    return f"{Decimal(f'{value:.3e}'):f}".replace("-", "\N{MINUS SIGN}")


def score(value: str | None) -> str:
    """A probability with its four decimals, as the receipt states it."""
    return _unavailable() if value is None else value


def instant(at_us: int | None, zone: ZoneInfo | None = None) -> Markup:
    """A moment to the second with its offset; UTC where no time zone is given."""
    if at_us is None:
        return _unavailable()
    where: tzinfo = zone or UTC
    at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    local = at.astimezone(where)
    return Markup('<time datetime="{}">{} <span class="unit">{}</span></time>').format(
        at.isoformat().replace("+00:00", "Z"),
        local.strftime("%Y-%m-%d %H:%M:%S"),
        local.tzname() or "",
    )


def span(microseconds: int | None) -> str:
    """A length of time in its two largest units; negative when it lies behind."""
    if microseconds is None:
        return _unavailable()
    sign = "\N{MINUS SIGN}" if microseconds < 0 else ""
    seconds = abs(microseconds) // 1_000_000
    parts = [
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    ]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return sign + " ".join(f"{count} {unit}" for count, unit in parts[:2])


def words(name: str) -> str:
    """An identifier as a reader's word: `review_fee` is "review fee"."""
    return name.replace("_", " ")


def shortened(identifier: str) -> str:
    """An id short enough for a table: its kind and its last characters, which tell ids apart."""
    kind, separator, rest = identifier.partition("_")
    if not separator:
        kind, rest = "", identifier
    return identifier if len(rest) <= 12 else f"{kind}{separator}…{rest[-10:]}"


def _signed(figures: str) -> str:
    return figures.replace("-", "\N{MINUS SIGN}")


def _unavailable() -> Markup:
    return Markup('<span class="unavailable">{}</span>').format(UNAVAILABLE)

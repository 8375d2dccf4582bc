from __future__ import annotations

from decimal import Decimal

import pytest

from metering.wording import counted


@pytest.mark.parametrize(
    ("count", "units", "said"),
    [
        (0, "requests", "0 requests"),
        (1, "requests", "1 request"),
        ("1", "output_tokens", "1 output token"),
        (Decimal("1.0"), "joules", "1.0 joule"),
        ("-1", "periods", "-1 period"),
        ("0.5", "joules", "0.5 joules"),
        (2, "second opinions", "2 second opinions"),
        (1, "charged", "1 charged"),
    ],
)
def test_one_of_a_kind_is_said_in_the_singular(
    count: Decimal | int | str, units: str, said: str
) -> None:
    assert counted(count, units) == said

"""Which invoice billed what was booked when, whatever was voided and issued again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.exports.stretches import BEFORE_US, EVER_US, Booked, Issue, billing_of

LAST_US = 40


def holds(stretches: tuple[Booked, ...], at_us: int) -> bool:
    return any(each.after_us < at_us <= each.through_us for each in stretches)


def test_an_invoice_issued_in_place_of_a_void_one_takes_what_that_had_and_what_is_on_none() -> None:
    billing = billing_of(
        [Issue("october", 10, voided_us=30), Issue("november", 20), Issue("october again", 40)]
    )
    assert billing.stretches == {
        "november": (Booked(10, 20),),
        "october again": (Booked(BEFORE_US, 10), Booked(20, 40)),
    }
    assert billing.unbilled == (Booked(40, EVER_US),)
    assert billing.beside["november"] == ("october",)
    assert billing.beside["october again"] == ("november",)


def test_what_a_void_one_had_is_on_none_until_another_is_issued() -> None:
    billing = billing_of([Issue("october", 10, voided_us=30), Issue("november", 20)])
    assert billing.stretches == {"november": (Booked(10, 20),)}
    assert billing.unbilled == (Booked(BEFORE_US, 10), Booked(20, EVER_US))
    assert billing_of([]).unbilled == (Booked(BEFORE_US, EVER_US),)


@given(
    st.lists(st.integers(1, LAST_US), unique=True, max_size=7).map(sorted),
    st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=7, max_size=7),
)
def test_what_was_booked_is_on_the_first_invoice_that_found_it_on_none(
    issued: list[int], lasted: list[int | None]
) -> None:
    issues = [
        Issue(str(at_us), at_us, None if lasts is None else at_us + lasts)
        for at_us, lasts in zip(issued, lasted, strict=False)
    ]
    billing = billing_of(issues)
    for booked_us in range(LAST_US + 2):
        on: Issue | None = None
        for issue in issues:
            if on is not None and on.voided_us is not None and on.voided_us <= issue.issued_us:
                on = None
            if on is None and booked_us <= issue.issued_us:
                on = issue
        if on is not None and on.voided_us is not None:
            on = None
        found = [each for each, held in billing.stretches.items() if holds(held, booked_us)]
        assert found == ([] if on is None else [on.invoice_id])
        assert holds(billing.unbilled, booked_us) == (on is None)

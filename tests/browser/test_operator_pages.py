"""What the operator and its reviewers see and do, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from billing_cases import unit
from browser_chromium import Tab, open_tab
from browser_pages import STATS, World
from labels import CHECKSUM, MODEL, reviewed
from playwright.sync_api import Browser, Page, expect

from metering.calibration import store
from metering.calibration.fitting import fit
from metering.database import transaction


@pytest.fixture
def doubtful(world: World) -> str:
    """A request whose answer waits for a verdict that its tenant pays for."""
    return world.settle(unit(8, tier="review"), geo_mean="0.4100")


@pytest.fixture
def other_tab(chromium: Browser) -> Iterator[Tab]:
    with open_tab(chromium) as opened:
        yield opened


def open_item(page: Page, base_url: str) -> None:
    page.goto(f"{base_url}/dashboard/reviews")
    page.get_by_role("row").get_by_role("link").first.click()


def fee_rows(page: Page) -> list[str]:
    return [
        re.sub(r"\s+", " ", text).partition("UTC ")[2]
        for text in page.locator("#fee-movements tbody tr").all_inner_texts()
    ]


def test_a_verdict_moves_the_fee_from_the_pool_to_the_reviewers(
    world: World, doubtful: str, base_url: str, tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.operator)
    page = tab.page
    page.get_by_role("link", name="Reviews").click()
    expect(page.locator("#review-depth")).to_have_text("1")
    fee = page.locator("#review-pool").inner_text()
    assert fee != "0.00 USD"
    expect(page.locator("#reviewer-payable")).to_have_text("0.00 USD")

    page.get_by_role("row").get_by_role("link").first.click()
    amount = fee.removesuffix(" USD")
    assert fee_rows(page) == [f"holds review pool {amount}"]
    expect(page.locator("#output")).to_contain_text("return a + b")
    page.get_by_role("button", name="Claim").click()
    expect(page.get_by_role("status")).to_contain_text("The item is yours for 15 minutes")
    page.get_by_label("Note").fill("Runs, and does what was asked.")
    page.get_by_role("button", name="Approve").click()

    expect(page.get_by_role("status")).to_contain_text("approved")
    expect(page.locator("#review-state")).to_contain_text("resolved")
    assert fee_rows(page)[1:] == [f"review pool reviewer payable {amount}"]
    page.get_by_role("link", name="Reviews", exact=True).first.click()
    expect(page.locator("#review-depth")).to_have_text("0")
    expect(page.locator("#review-pool")).to_have_text("0.00 USD")
    expect(page.locator("#reviewer-payable")).to_have_text(fee)
    page.get_by_role("link", name="resolved").click()
    expect(page.locator("tbody")).to_contain_text("approved")


def test_a_rejection_refunds_the_tenant_and_shows_on_its_receipt(
    world: World, doubtful: str, base_url: str, tab: Tab, other_tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.reviewer)
    open_item(tab.page, base_url)
    tab.page.get_by_role("button", name="Claim").click()
    tab.page.get_by_label("incorrect").check()
    tab.page.get_by_role("button", name="Reject and refund").click()
    expect(tab.page.get_by_role("status")).to_contain_text("rejected")
    assert any("earnings tenant credit" in row for row in fee_rows(tab.page))

    other_tab.sign_in(base_url, world.house.owner)
    other_tab.page.goto(f"{base_url}/dashboard/receipts/{doubtful}")
    adjustments = other_tab.page.locator("#receipt-adjustments tbody tr")
    expect(adjustments).to_have_count(1)
    expect(adjustments).to_contain_text("review rejected")
    expect(adjustments).to_contain_text("valid")
    assert adjustments.locator("td").last.inner_text().startswith("\N{MINUS SIGN}")


def test_a_correction_is_kept_with_the_item(
    world: World, doubtful: str, base_url: str, tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.reviewer)
    open_item(tab.page, base_url)
    tab.page.get_by_role("button", name="Claim").click()
    tab.page.get_by_text("Correct the answer").click()
    edited = tab.page.get_by_label("Corrected answer")
    assert edited.input_value() == "    return a + b\n"
    edited.fill("    return a - b\n# two\n")
    tab.page.get_by_label("incorrect").check()
    tab.page.get_by_role("button", name="Save correction").click()
    expect(tab.page.get_by_role("status")).to_contain_text("corrected")
    corrected = tab.page.locator("section", has_text="Corrected answer").locator("pre")
    assert corrected.text_content() == "    return a - b\n# two\n"


def test_an_item_that_another_reviewer_holds_is_refused_and_says_so(
    world: World, doubtful: str, base_url: str, tab: Tab, other_tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.reviewer)
    open_item(tab.page, base_url)
    other_tab.sign_in(base_url, world.house.operator)
    open_item(other_tab.page, base_url)

    tab.page.get_by_role("button", name="Claim").click()
    other_tab.page.get_by_role("button", name="Claim").click()

    expect(other_tab.page.get_by_role("alert")).to_contain_text("another reviewer has it")
    expect(other_tab.page.get_by_text("Another reviewer has claimed this item")).to_be_visible()
    expect(other_tab.page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(tab.page.get_by_role("button", name="Approve")).to_be_visible()


def test_a_verdict_with_a_token_that_was_overtaken_moves_nothing(
    world: World, doubtful: str, base_url: str, tab: Tab, other_tab: Tab
) -> None:
    for each in (tab, other_tab):
        each.sign_in(base_url, world.house.reviewer)
        open_item(each.page, base_url)
    tab.page.get_by_role("button", name="Claim").click()
    other_tab.page.get_by_role("button", name="Claim").click()  # the same reviewer, a newer token

    tab.page.get_by_role("button", name="Approve").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("not claimed with this token any more")
    assert len(fee_rows(tab.page)) == 1


def test_what_was_said_cannot_run_in_a_reviewers_browser(
    world: World, base_url: str, tab: Tab
) -> None:
    hostile = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"
    world.settle(unit(20, tier="review"), geo_mean="0.3000", output=hostile)
    tab.sign_in(base_url, world.house.reviewer)
    open_item(tab.page, base_url)
    expect(tab.page.locator("#output")).to_contain_text("<script>document.title")
    assert "owned" not in tab.page.title()


def test_the_engine_page_says_how_the_engine_does(world: World, base_url: str, tab: Tab) -> None:
    world.settle(unit(8))
    world.meter()
    tab.sign_in(base_url, world.house.operator)
    page = tab.page
    main = page.locator("main")
    for figure in ("31.2", "66.7 %", "2.50", "70 123"):
        expect(main).to_contain_text(figure.replace(" 1", "\N{NARROW NO-BREAK SPACE}1"))
    expect(page.get_by_text("The draft hit rate is below 70 %")).to_be_visible()
    row = page.locator("#engine-energy tbody tr").first.inner_text()
    assert row.split()[0] == "estimated"
    page.get_by_role("link", name="last hour").click()
    expect(page.locator("figure.chart[data-drawn=true]")).to_have_count(2)


def test_the_engine_page_keeps_itself_current(world: World, base_url: str, tab: Tab) -> None:
    tab.page.clock.install()
    tab.sign_in(base_url, world.house.operator)
    expect(tab.page.get_by_text("31.2")).to_be_visible()
    world.stats = msgspec.structs.replace(STATS, emitted_tokens_per_s=77.5)
    tab.page.clock.fast_forward(16_000)
    expect(tab.page.get_by_text("77.5")).to_be_visible()


def test_the_engine_page_admits_that_no_engine_answers(
    world: World, base_url: str, tab: Tab
) -> None:
    world.stats = world.info = None
    tab.sign_in(base_url, world.house.operator)
    expect(tab.page.get_by_role("alert")).to_contain_text("does not answer")
    expect(tab.page.get_by_text("No energy on record")).to_be_visible()


def test_calibrations_are_shown_with_what_speaks_for_them_and_their_absence_is_said(
    world: World, base_url: str, tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.operator)
    page = tab.page
    page.get_by_role("link", name="Calibrations").click()
    expect(page.locator(".uncalibrated h2")).to_have_text("tiny: uncalibrated")
    expect(page.locator("main")).to_contain_text("Nothing of it has been judged.")
    expect(page.locator("#kinds")).to_have_count(0)

    few, many = reviewed(2000, audit_ppm=60_000), reviewed(4000, audit_ppm=60_000, seed=1)
    first = fit(MODEL, CHECKSUM, few)
    labels = [*many, *reviewed(300, kind="sentence")]
    second = fit(MODEL, CHECKSUM, labels, revision=2, judge="nightly/tests")
    for report in (first, second):
        with transaction(world.database) as connection:
            assert store(connection, report.calibration(), msgspec.json.encode(report))
    page.reload()
    expect(page.locator(".uncalibrated")).to_have_count(0)
    expect(page.locator("#calibration-id")).to_have_text(second.id)
    expect(page.locator("#judge")).to_have_text("nightly/tests")
    whole, sentence = second.kinds
    assert sentence.curve is None
    assert whole.calibrated is not None
    rows = page.locator("#kinds tbody tr")
    expect(rows).to_have_count(3)
    for figure in (whole.calibrated.ece, whole.calibrated.brier, whole.calibrated.auroc):
        expect(rows.nth(1)).to_contain_text(f"{figure:.4f}")
    expect(rows.nth(1)).to_contain_text(f"{whole.calibrated.coverage * 100:.1f} %")
    expect(rows.nth(2).get_by_role("cell")).to_have_text(
        ["uncalibrated", str(sentence.labels), str(sentence.sampled), str(sentence.reason)]
    )
    plot = page.locator("#reliability svg")
    expect(plot).to_be_visible()
    dots = sum(len(each.bins) for each in (whole.raw, whole.calibrated) if each)
    expect(plot.locator("circle")).to_have_count(dots)
    expect(plot).to_contain_text("coverage")

    page.get_by_role("link", name=first.id).click()
    expect(page.locator("#calibration-id")).to_have_text(first.id)
    expect(page.locator("#shown-title + p")).to_have_text("superseded")


def test_reconciliation_finds_no_difference_and_finds_one(
    world: World, base_url: str, tab: Tab
) -> None:
    tab.sign_in(base_url, world.house.operator)
    tab.page.get_by_role("link", name="Reconciliation").click()
    expect(tab.page.locator("#reconciled")).to_have_text("No differences.")
    world.settle(unit(3))  # settled without an engine: its tokens were never emitted by one
    tab.page.get_by_role("link", name="Compare again").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("found")
    expect(tab.page.get_by_role("table").first).to_contain_text("req_")
    periods = tab.page.locator("section", has=tab.page.locator("#periods-title"))
    expect(periods.get_by_role("row")).to_have_count(2)
    expect(periods).to_contain_text(world.house.tenant_id)


def test_costs_appear_once_the_operator_states_its_rates(
    world: World, base_url: str, tab: Tab
) -> None:
    world.settle(unit(8))
    tab.sign_in(base_url, world.house.operator)
    page = tab.page
    page.get_by_role("link", name="Economics").click()
    expect(page.get_by_text("Give the machine’s price")).to_be_visible()
    page.get_by_label("Machine, an hour").fill("2.50")
    page.get_by_role("button", name="Reckon").click()
    expect(page.locator("#no-fit")).to_contain_text("on record are 0 at 0")
    expect(page.locator("#margins tbody tr")).to_have_count(1)
    figures = {"gpus": "2", "gpu_hour": "1", "kw_per_gpu": "1", "people": "1"}
    for fleet in ("before", "after"):
        for name, value in (figures | {"iteration_days": "10"}).items():
            page.locator(f"#{fleet}_{name}").fill(value)
    page.locator("#after_gpus").fill("1")
    for name, value in (("person_year", "1000"), ("kwh", "1"), ("pue", "x"), ("one_off", "8760")):
        page.locator(f"#{name}").fill(value)
    page.locator("#years").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert")).to_contain_text("pue: must be")
    page.locator("#pue").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#verdict")).to_contain_text("paid back after 6 months")
    expect(page.locator("#no-fit")).to_be_visible()  # the rates were kept


def test_reviewers_who_differ_are_decided_by_a_third_and_each_is_paid(
    world: World, doubtful: str, base_url: str, tab: Tab, other_tab: Tab
) -> None:
    """Given three reviewers, the first unsure, and an answer that holds an address."""
    third = world.reviewer_key()
    tab.sign_in(base_url, world.house.reviewer)
    page = tab.page
    open_item(page, base_url)
    page.get_by_role("button", name="Claim").click()
    page.get_by_label("Ask another reviewer").check()
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("Another reviewer is asked")
    expect(page.locator("#review-opinions")).to_have_text("1 of 2")
    assert fee_rows(page)[1:] == []

    other_tab.sign_in(base_url, world.house.operator)
    page = other_tab.page
    open_item(page, base_url)
    expect(page.locator("#opinions")).to_have_count(0)
    page.get_by_role("button", name="Claim").click()
    page.get_by_label("unsafe").check()
    page.get_by_role("button", name="Reject and refund").click()
    expect(page.locator("#review-opinions")).to_have_text("2 of 2")

    other_tab.context.clear_cookies()
    other_tab.sign_in(base_url, third)
    open_item(page, base_url)
    expect(page.locator("#opinions tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Claim").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("approved; the outcome is signed")

    other_tab.context.clear_cookies()
    other_tab.sign_in(base_url, world.house.operator)
    page.get_by_role("link", name="Reviewers", exact=True).click()
    rows = page.locator("#reviewer-accounts tbody tr")
    expect(rows).to_have_count(3)
    rows.first.get_by_label("Reference").fill("bank 17")
    rows.first.get_by_role("button", name="Paid all").click()
    expect(page.get_by_role("status")).to_contain_text("booked as paid")
    expect(page.locator("#payouts tbody tr")).to_contain_text("bank 17")
    page.get_by_role("link", name="Reviews", exact=True).first.click()
    expect(page.locator("#review-agreement")).to_contain_text("0.0")


def test_a_correction_is_written_around_what_is_hidden_and_reaches_the_tenant_whole(
    world: World, base_url: str, tab: Tab, other_tab: Tab
) -> None:
    request_id = world.settle(
        unit(9, tier="review"), geo_mean="0.3000", output="Ask ann@mail.example now.\n"
    )
    tab.sign_in(base_url, world.house.reviewer)
    page = tab.page
    open_item(page, base_url)
    expect(page.locator("#output")).to_contain_text("Ask [email 1] now.")
    expect(page.locator("#hidden")).to_contain_text("1 text that points at a person is hidden")
    page.get_by_role("button", name="Claim").click()
    page.get_by_label("style").check()
    page.get_by_text("Correct the answer").click()
    page.get_by_label("Corrected answer").fill("Please ask [email 1].")
    page.get_by_role("button", name="Save correction").click()
    expect(page.get_by_role("status")).to_contain_text("corrected")

    other_tab.sign_in(base_url, world.house.owner)
    other_tab.page.goto(f"{base_url}/dashboard/receipts/{request_id}")
    expect(other_tab.page.locator("#review-outcome")).to_contain_text("edit")
    corrected = other_tab.page.locator("#corrected-output")
    expect(corrected).to_have_text("Please ask ann@mail.example.")

"""What a tenant sees, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from billing_cases import unit
from browser_chromium import Tab, open_tab
from browser_pages import World
from click.testing import CliRunner
from playwright.sync_api import Browser, expect

from billing.receipts_cli import receipt
from metering.cli_context import CliContext
from metering.semantic import Segmenter


def test_a_charge_appears_on_the_overview(world: World, base_url: str, tab: Tab) -> None:
    tab.sign_in(base_url, world.house.finance)
    page = tab.page
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator("#balance")).to_have_text("10.00 USD")
    expect(page.locator("#spend")).to_have_text("0.00 USD")
    expect(page.get_by_text("No receipts in this range")).to_be_visible()

    world.settle(unit(8), unit(4, "fragment", "reduced"), geo_mean="0.8200")
    page.reload()

    expect(page.locator("#requests")).to_have_text("1")
    spend = page.locator("#spend").inner_text()
    assert re.fullmatch(r"0\.\d+ USD", spend)
    assert spend != "0.00 USD"
    expect(page.locator("#balance")).not_to_have_text("10.00 USD")
    expect(page.locator("figure.chart[data-drawn=true]")).to_have_count(3)
    page.locator("#chart-spend summary").click()
    expect(page.locator("#chart-spend tbody tr")).to_have_count(30)
    shown = page.locator("#chart-spend tbody td").all_inner_texts()
    assert sum(text not in {"–", ""} for text in shown) >= 2


def test_the_charts_are_really_drawn(world: World, base_url: str, tab: Tab) -> None:
    world.settle(unit(8))
    tab.sign_in(base_url, world.house.owner)
    for canvas in tab.page.locator("figure.chart canvas").all():
        canvas.scroll_into_view_if_needed()
        painted = canvas.evaluate(
            """canvas => {
                const pixels = canvas.getContext('2d')
                    .getImageData(0, 0, canvas.width, canvas.height).data;
                const colours = new Set();
                for (let i = 0; i < pixels.length; i += 4)
                    if (pixels[i + 3] > 200)
                        colours.add(`${pixels[i]},${pixels[i + 1]},${pixels[i + 2]}`);
                return colours.size;
            }"""
        )
        assert painted > 3  # text, lines and at least one bar


def test_a_receipt_shows_the_output_unit_by_unit_and_verifies(
    world: World, base_url: str, tab: Tab
) -> None:
    request_id = world.settle(unit(1), unit(2, "fragment", "review", kind="statement"))
    tab.sign_in(base_url, world.house.developer)
    page = tab.page
    page.get_by_role("row").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Receipt")
    expect(page.get_by_text(request_id, exact=True)).to_be_visible()
    expect(page.locator("#output .semantic")).to_have_count(2)
    expect(page.locator("#output .fragment.tier-review")).to_have_count(1)
    assert page.locator("#output").inner_text().startswith("    return a + b")
    expect(page.locator("#receipt-valid")).to_have_text("valid, checked just now")
    page.locator("#output .semantic").first.hover()
    expect(page.locator("tr.unit-row.lit")).to_have_count(1)
    amounts = page.locator("#receipt-lines tbody td:last-child").all_inner_texts()
    assert len(amounts) >= 2


def test_the_units_of_a_mixed_answer_lie_over_its_text(
    world: World, base_url: str, tab: Tab
) -> None:
    answer = (
        "## 例\n\n这是一句。Next one!\n\n```js\napp.get('/', (req) => {\n"
        "  send(`<b>${req.a}</b>`);\n});\n```\n\nDone, but"
    )
    data, segmenter = answer.encode(), Segmenter()
    found = segmenter.feed(data) + segmenter.finish()
    request_id = world.settle(
        *(
            msgspec.structs.replace(
                unit(2, each.state, kind=each.kind, index=index),
                byte_start=each.start,
                byte_end=each.end,
            )
            for index, each in enumerate(found)
        ),
        output=answer,
    )
    tab.sign_in(base_url, world.house.developer)
    tab.page.goto(f"{base_url}/dashboard/receipts/{request_id}")
    marked = tab.page.locator("#output .semantic").evaluate_all(
        "marks => marks.map(mark => [mark.textContent, mark.title.split(',')[0]])"
    )
    assert [kind for _, kind in marked] == [
        *("heading", "sentence", "sentence", "header", "statement", "bracket", "sentence")
    ]
    assert [text.encode() for text, _ in marked] == [data[one.start : one.end] for one in found]
    expect(tab.page.locator("#output .fragment")).to_have_text("Done, but")


def test_what_is_downloaded_verifies_offline(
    world: World, base_url: str, tab: Tab, tmp_path: Path
) -> None:
    request_id = world.settle(unit(3))
    tab.sign_in(base_url, world.house.finance)
    tab.page.goto(f"{base_url}/dashboard/receipts/{request_id}")
    for name in ("Download, signed", "public keys"):
        with tab.page.expect_download() as download:
            tab.page.get_by_role("link", name=name).click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
    arguments = ["verify", "--keys", tmp_path / "keys.json", tmp_path / f"{request_id}.json"]
    verified = CliRunner().invoke(
        receipt, [str(each) for each in arguments], obj=CliContext(tmp_path, "sqlite://")
    )
    assert verified.output.startswith(f"valid: {request_id}"), verified.output


def test_finance_takes_its_usage_and_charges_away_as_files(
    world: World, base_url: str, tab: Tab, tmp_path: Path
) -> None:
    request_id = world.settle(unit(8), carries={"end_user": "eve"})
    other = world.settle(unit(8), house=world.add_house("Umbrella"))
    tab.sign_in(base_url, world.house.finance)
    files = {}
    for path, link in (
        ("/receipts", "usage as CSV"),
        ("/receipts", "signed receipts"),
        ("/invoices", "CSV"),
    ):
        tab.page.goto(f"{base_url}/dashboard{path}")
        with tab.page.expect_download() as download:
            tab.page.get_by_role("link", name=link, exact=True).first.click()
        download.value.save_as(tmp_path / "file")
        files[link] = (tmp_path / "file").read_text()
        assert other not in files[link]
    assert request_id in files["usage as CSV"]
    assert request_id in files["signed receipts"]
    assert ",eve," in files["CSV"]


def test_finance_sees_the_money_and_not_what_was_said(
    world: World, base_url: str, tab: Tab
) -> None:
    request_id = world.settle(unit(3))
    tab.sign_in(base_url, world.house.finance)
    tab.page.goto(f"{base_url}/dashboard/receipts/{request_id}")
    expect(tab.page.locator("#receipt-lines")).to_be_visible()
    expect(tab.page.get_by_text("not what was said")).to_be_visible()
    assert "return a + b" not in tab.page.content()


def test_another_tenants_receipt_is_not_found(world: World, base_url: str, tab: Tab) -> None:
    stranger = world.add_house("Stranger")
    request_id = world.settle(unit(3), house=stranger)
    tab.sign_in(base_url, world.house.owner)
    expected = ["Failed to load resource: the server responded with a status of 404 (Not Found)"]
    for path in (f"receipts/{request_id}", f"receipts/{request_id}/receipt.json", "receipts/no"):
        tab.page.goto(f"{base_url}/dashboard/{path}")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Not found")
    assert tab.problems == expected * 3
    tab.problems.clear()


def test_receipts_are_paged_and_the_range_is_kept(world: World, base_url: str, tab: Tab) -> None:
    for _ in range(53):
        world.settle(unit(1))
    tab.sign_in(base_url, world.house.owner)
    page = tab.page
    page.get_by_role("link", name="Receipts", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(50)
    first = page.locator("tbody tr a").first.get_attribute("href")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    page.get_by_role("link", name="Newest").click()
    assert page.locator("tbody tr a").first.get_attribute("href") == first
    page.get_by_label("From").fill("2020-01-01")
    page.get_by_label("To", exact=True).fill("2020-01-31")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No receipts")).to_be_visible()


def test_what_has_no_figure_is_unavailable_and_not_zero(
    world: World, base_url: str, tab: Tab
) -> None:
    request_id = world.settle(
        unit(3, tier=None), confidence=None, energy=world.no_energy(), information_ubits=None
    )
    tab.sign_in(base_url, world.house.owner)
    expect(tab.page.locator("tbody tr", has_text=request_id[-10:])).to_contain_text("unavailable")
    assert "0.0 J" not in tab.page.locator("main").inner_text()
    tab.page.goto(f"{base_url}/dashboard/receipts/{request_id}")
    tiles = tab.page.locator("dl.tiles")
    expect(tiles.locator(".tile", has_text="Confidence")).to_contain_text("unavailable")
    expect(tiles.locator(".tile", has_text="Energy")).to_contain_text("unavailable")


def test_the_statement_lists_every_movement_of_credit(
    world: World, base_url: str, tab: Tab
) -> None:
    world.settle(unit(3))
    tab.sign_in(base_url, world.house.finance)
    tab.page.get_by_role("link", name="Statement").click()
    kinds = tab.page.locator("tbody th").all_inner_texts()
    assert kinds == ["release", "hold", "grant"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_its_window(
    world: World, base_url: str, chromium: Browser, scheme: str, width: int
) -> None:
    request_id = world.settle(unit(1), unit(2, "fragment", "review"))
    with open_tab(
        chromium, color_scheme=scheme, viewport={"width": width, "height": 800}
    ) as opened:
        opened.sign_in(base_url, world.house.owner)
        for path in ("overview", "receipts", f"receipts/{request_id}", "statement"):
            opened.page.goto(f"{base_url}/dashboard/{path}")
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_the_page_is_usable_by_keyboard_and_names_its_parts(
    world: World, base_url: str, tab: Tab
) -> None:
    world.settle(unit(3))
    tab.sign_in(base_url, world.house.owner)
    page = tab.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    assert page.locator("html").get_attribute("lang") == "en"
    expect(page.get_by_role("navigation", name="Main").locator("[aria-current=page]")).to_have_text(
        "Overview"
    )
    for canvas in page.locator("canvas").all():
        assert canvas.get_attribute("role") == "img"
        assert canvas.get_attribute("aria-label")
    for field in page.locator("input:not([type=hidden])").all():
        identifier = field.get_attribute("id")
        expect(page.locator(f"label[for={identifier}]")).to_have_count(1)

"""Charts as data."""

from __future__ import annotations

from dashboards.charts import OTHER_COLOUR, Chart, ChartKind, Series, stack


def chart(*values: str | None) -> Chart:
    return Chart(
        id="spend",
        title="Spend",
        kind=ChartKind.STACKED_BARS,
        unit="USD",
        category="Day",
        categories=tuple(str(i) for i in range(len(values))),
        series=(Series("input", "--chart-1", values),),
    )


def test_a_chart_is_empty_only_where_no_figure_exists() -> None:
    assert chart(None, None).empty
    assert not chart(None, "0").empty


def test_values_reach_the_script_as_the_strings_they_are() -> None:
    assert chart("0.000000001", None).to_wire()["series"] == [
        {
            "label": "input",
            "colour": "--chart-1",
            "values": ("0.000000001", None),
            "dashed": False,
        }
    ]


def test_rows_are_stacked_in_the_order_of_their_colours_and_leave_gaps_null() -> None:
    rows = [("mon", "output", "2"), ("tue", "input", "1"), ("tue", "write_off", "-1")]
    series = stack(rows, ["mon", "tue"], {"input": "--chart-1", "output": "--chart-2"})
    assert series == (
        Series("input", "--chart-1", (None, "1")),
        Series("output", "--chart-2", ("2", None)),
        Series("write off", OTHER_COLOUR, (None, "-1")),
    )

"""The reliability plot: what was predicted against what was right, as SVG. Pure.

One panel for each calibrated kind. A dot is a bin: as large as its share, on the diagonal where
predictions mean what they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from metering.calibration.reports import Figures, KindReport, Report
from metering.confidence import REVIEW_BELOW

SIDE = 220
MARGIN = 44
WIDTH = SIDE + 2 * MARGIN + 64  # for captions that are longer than the panel is wide
HEIGHT = SIDE + 126
COLUMNS = 3
RAW, CALIBRATED = "#b45309", "#1d4ed8"


def reliability_svg(report: Report) -> str:
    """The plot of every kind that has a curve."""
    fitted = [each for each in report.kinds if each.curve is not None]
    rows = -(-len(fitted) // COLUMNS)
    width, height = WIDTH * min(COLUMNS, len(fitted)), HEIGHT * rows + 24
    panels = "".join(
        f'<g transform="translate({index % COLUMNS * WIDTH},{index // COLUMNS * HEIGHT + 24})">'
        f"{''.join(_panel(kind))}</g>"
        for index, kind in enumerate(fitted)
    )
    title = escape(
        f"{report.model}, calibration {report.id}, from {_labels(fitted)} labels by {report.judge}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#111827">'
        f"<title>Reliability of {title}</title>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{MARGIN}" y="18">{title}</text>{panels}</svg>\n'
    )


def _labels(fitted: Sequence[KindReport]) -> int:
    return sum(each.labels for each in fitted)


def _panel(kind: KindReport) -> Iterator[str]:
    assert kind.raw is not None
    assert kind.calibrated is not None
    yield f'<text x="{MARGIN}" y="20" font-weight="600">{escape(kind.kind)}</text>'
    yield (
        f'<rect x="{MARGIN}" y="30" width="{SIDE}" height="{SIDE}" fill="none" stroke="#9ca3af"/>'
        f'<path d="M{MARGIN} {30 + SIDE}L{MARGIN + SIDE} 30" stroke="#9ca3af" '
        'stroke-dasharray="3 3"/>'
    )
    for tick in range(0, 11, 5):
        at = SIDE * tick / 10
        yield (
            f'<text x="{MARGIN + at:.1f}" y="{44 + SIDE}" text-anchor="middle">{tick / 10:g}</text>'
            f'<text x="{MARGIN - 6}" y="{34 + SIDE - at:.1f}" text-anchor="end">'
            f"{tick / 10:g}</text>"
        )
    yield (
        f'<text x="{MARGIN + SIDE / 2}" y="{58 + SIDE}" text-anchor="middle">predicted</text>'
        f'<text transform="translate(14,{30 + SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "right</text>"
    )
    for number, (name, color, figures) in enumerate(
        (("raw", RAW, kind.raw), ("calibrated", CALIBRATED, kind.calibrated))
    ):
        yield from _dots(figures, color)
        area = "none" if figures.auroc is None else f"{figures.auroc:.3f}"
        yield (
            f'<text x="{MARGIN}" y="{76 + SIDE + 14 * number}" fill="{color}">{name}: '
            f"ECE {figures.ece:.3f}, Brier {figures.brier:.3f}, AUROC {area}</text>"
        )
    yield (
        f'<text x="{MARGIN}" y="{104 + SIDE}">from {REVIEW_BELOW} on, coverage '
        f"{kind.raw.coverage:.3f} raw, {kind.calibrated.coverage:.3f} calibrated</text>"
    )


def _dots(figures: Figures, color: str) -> Iterator[str]:
    line = " ".join(
        f"{MARGIN + SIDE * each.said:.1f},{30 + SIDE * (1 - each.right):.1f}"
        for each in figures.bins
    )
    yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-opacity="0.5"/>'
    for each in figures.bins:
        yield (
            f'<circle cx="{MARGIN + SIDE * each.said:.1f}" '
            f'cy="{30 + SIDE * (1 - each.right):.1f}" r="{2 + 8 * each.share**0.5:.1f}" '
            f'fill="{color}" fill-opacity="0.7"><title>{each.labels} labels: predicted '
            f"{each.said:.3f}, right {each.right:.3f}</title></circle>"
        )

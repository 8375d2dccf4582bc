"""What scores are worth: every calibration, what speaks for it, and what has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromQuery
from markupsafe import Markup

from dashboards.injected import AHost, AViewer
from dashboards.protocols import EngineState
from dashboards.rendering import page
from dashboards.sessions import PageRequest
from metering import calibration
from metering.calibration import LabelCount, Version
from metering.calibration.plot import reliability_svg
from metering.database import snapshot


@dataclass(frozen=True, slots=True)
class Uncalibrated:
    """A model file whose scores are shown raw, and what was judged of it so far."""

    model: str
    checksum: str
    is_served: bool
    counts: tuple[LabelCount, ...]


@get("/calibrations", sync_to_thread=True)
def show_calibrations(
    request: PageRequest,
    host: AHost,
    operator: AViewer,
    version: FromQuery[str | None] = None,
) -> Response[str]:
    """All versions, one of them whole: the one asked for, or the newest."""
    with snapshot(host.database) as connection:
        versions = calibration.versions(connection)
        counts = calibration.label_counts(connection)
    shown = next((each for each in versions if version in {None, each.id}), None)
    if shown is None and version is not None:
        raise NotFoundException("There is no such calibration.")
    return page(
        request,
        "operator/calibrations.html",
        versions=versions,
        shown=shown,
        # Drawn from numbers and escaped names; see `metering.calibration.plot`.
        plot=None if shown is None else Markup(reliability_svg(shown.report)),  # noqa: S704
        uncalibrated=uncalibrated(host.engines(), versions, counts),
    )


def uncalibrated(
    engines: Sequence[EngineState], versions: Sequence[Version], counts: Sequence[LabelCount]
) -> list[Uncalibrated]:
    """The model files that are served or were judged, and have no calibration."""
    served = {(each.info.model, each.info.checksum) for each in engines if each.info is not None}
    calibrated = {(each.report.model, each.report.model_checksum) for each in versions}
    judged: dict[tuple[str, str], list[LabelCount]] = {}
    for count in counts:
        judged.setdefault((count.model, count.model_checksum), []).append(count)
    return [
        Uncalibrated(*file, file in served, tuple(judged.get(file, ())))
        for file in sorted((served | judged.keys()) - calibrated)
    ]


HANDLERS = (show_calibrations,)

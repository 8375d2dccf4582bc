"""The requests that are not final yet, as this process knows them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from metering.bodies import EnergyBody, Fact
from metering.recorder.endings import Ending, Withheld
from metering.request_meter import RequestMeter
from metering.requests import AdmittedRequest

KEPT_FACTS = 64  # folded since the meter was last copied, at most, or a batch more


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request between admission and its final state.

    `meter` holds what is durable and, while a batch is being written, what that batch says. Should
    the batch fail, an older copy is folded again: few do, and copies are dear. Fields are changed
    under the recorder's locks: `withheld` under that of `LiveRequests`, the others under the
    writer's.
    """

    admitted: AdmittedRequest
    meter: RequestMeter
    withheld: Withheld | None = None
    withheld_detail: str | None = None
    withheld_at_ns: int | None = None
    is_running: bool = False  # its row says so
    is_orphan: bool = False  # a crash left it; of its steps only those with blocks are known
    charged_until_ns: int = -1  # the end of the last step that it pays for
    replaced_tail: bool = False
    ending: Ending | None = None  # set once the engine has finished with it
    ending_at_ns: int = -1
    is_closed: bool = False  # its summary is drawn up: energy that settles now comes too late
    ended_at_us: int | None = None  # event time of the terminal event, the same in every attempt
    retry_at_ns: int = -1
    retries: int = 0
    _copy: RequestMeter = field(init=False)  # of the meter as it once was
    _since: list[Fact] = field(default_factory=list)  # what it was folded with after that

    def __post_init__(self) -> None:
        self._copy = self.meter.copy()

    def keep(self, meter: RequestMeter, facts: Sequence[Fact]) -> None:
        """These are durable, and `meter` is the request's folded with them."""
        self.meter = meter
        self._since += facts
        if len(self._since) > KEPT_FACTS:
            self._copy = meter.copy()
            self._since.clear()

    def fold_energy(self, body: EnergyBody) -> None:
        """This is durable: fold the meter with it."""
        self.meter.fold_energy(body)
        self._since.append(body)

    def take_back(self) -> None:
        """Make `meter` again what is durable."""
        self.meter = self._copy.copy()
        for fact in self._since:
            self.meter.fold(fact)


@dataclass(slots=True)
class LiveRequests:
    """All of them, by id. Every method may be called from any thread."""

    _by_id: dict[str, LiveRequest] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, live: LiveRequest) -> None:
        """Take in a request; raises ValueError for an id that is here already."""
        with self._lock:
            if self._by_id.setdefault(live.admitted.id, live) is not live:
                raise ValueError(f"request {live.admitted.id} is tracked already")

    def get(self, request_id: str) -> LiveRequest | None:
        """The request with this id, if it isn't final."""
        with self._lock:
            return self._by_id.get(request_id)

    def remove(self, live: LiveRequest) -> None:
        """Forget a request that is final."""
        with self._lock:
            self._by_id.pop(live.admitted.id, None)

    def ids(self) -> tuple[str, ...]:
        """The ids of all, in the order in which they came."""
        with self._lock:
            return tuple(self._by_id)

    def all(self) -> list[LiveRequest]:
        """All of them, in the order in which they came."""
        with self._lock:
            return list(self._by_id.values())

    def withhold(
        self, live: LiveRequest, why: Withheld, at_ns: int, detail: str | None = None
    ) -> bool:
        """Commit nothing more of a request. False when it was so already, or has finished."""
        with self._lock:
            if live.withheld is not None or live.ending is not None:
                return False
            live.withheld, live.withheld_detail, live.withheld_at_ns = why, detail, at_ns
            return True

    def end(self, live: LiveRequest, ending: Ending, at_ns: int) -> None:
        """The engine has finished with a request; the first end stands."""
        with self._lock:
            if live.ending is None:
                live.ending, live.ending_at_ns = ending, at_ns

    def is_metered(self, request_id: str) -> bool:
        """Whether energy that settles now still reaches the request."""
        live = self.get(request_id)
        return live is not None and not live.is_closed

    def known(self, request_ids: Iterable[str]) -> list[LiveRequest]:
        """Those of these ids that aren't final."""
        with self._lock:
            return [self._by_id[name] for name in request_ids if name in self._by_id]

"""The queues: who waits, who runs, who must make room.

Decoding goes first, then prefill in order of arrival in chunks, then drafts in whatever rows are
left. A sequence that is preempted gives back its pages and keeps its tokens: they are computed
again later, and it goes on where it stopped. The youngest is preempted first, so the oldest
always gets on and nothing starves. What it had computed stays in the prefix tree as long as there
is room, and it comes back only when it could be computed to its end, so that sequences don't push
each other out in turn.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice

from engine.cache.pages import PagePool, PagesExhausted
from engine.cache.prefix_tree import agreement
from engine.config import EngineConfig
from engine.errors import EngineOverloaded
from engine.scheduler.plan import Plan, Turn
from engine.scheduler.sequence import Sequence


class Scheduler:
    """Owns the live sequences. Not thread-safe."""

    def __init__(self, config: EngineConfig, pool: PagePool) -> None:
        self._pool = pool
        self._max_step_rows = config.max_step_rows
        # Every running sequence has a row in every step.
        self._max_running = min(config.max_running, config.max_step_rows)
        self._max_live = config.max_live
        self._prefill_chunk = config.prefill_chunk
        self._running: list[Sequence] = []  # by arrival
        self._waiting: deque[Sequence] = deque()  # by arrival: the preempted come first
        self.preemptions = 0

    @property
    def running(self) -> int:
        """How many sequences hold pages."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many sequences hold none."""
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises EngineOverloaded if the engine is full.

        The bound is on live sequences, so that a preemption can't push anybody out.
        """
        live = len(self._running) + len(self._waiting)
        if live >= self._max_live:
            raise EngineOverloaded(f"{live} requests are running or waiting already")
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a live sequence and give back its pages; what it published stays cached."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.release()

    def plan(self) -> Plan:
        """Decide one step: admits, preempts and reserves slots for every row it plans."""
        rows = self._max_step_rows
        turns: dict[Sequence, Turn] = {}
        for sequence in [running for running in self._running if running.pending == 1]:
            if sequence in self._running and self._make_room(sequence, turns):
                turns[sequence] = Turn(sequence, 1)
        rows -= len(turns)
        copies = self._admit()
        for sequence in self._running:
            if rows and sequence.pending > 1:
                count = min(sequence.pending, self._prefill_chunk, rows)
                turns[sequence] = Turn(sequence, count)
                rows -= count
            elif rows and sequence not in turns:  # adopted all but its last token
                turns[sequence] = Turn(sequence, 1)
                rows -= 1
        return Plan(tuple(turns.values()), rows, tuple(copies))

    def grant(self, turn: Turn, nodes: int) -> int:
        """Reserve slots for up to `nodes` drafted nodes after a turn's rows; returns how many.

        Drafts are optional: nobody is preempted for one.
        """
        start = turn.sequence.computed + turn.rows
        try:
            turn.sequence.table.reserve(start + nodes)
        except PagesExhausted:
            return max(0, turn.sequence.table.capacity - start)
        return nodes

    def _make_room(self, sequence: Sequence, turns: dict[Sequence, Turn]) -> bool:
        """Reserve the next position, preempting the youngest as needed; false if that is itself."""
        while True:
            try:
                sequence.table.reserve(len(sequence.tokens))
            except PagesExhausted:
                victim = self._running[-1]
                turns.pop(victim, None)
                self._preempt(victim)
                if victim is sequence:
                    return False
            else:
                return True

    def _preempt(self, sequence: Sequence) -> None:
        sequence.release()
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit(self) -> list[tuple[int, int]]:
        """Start waiting sequences in order, as long as all their pending tokens have pages.

        One page per running sequence is left over, or the next steps would preempt the newcomer.
        Returns slots to copy.
        """
        copies = []
        for sequence in list(islice(self._waiting, self._max_running - len(self._running))):
            sequence.table.adopt(sequence.tokens)
            if self._is_being_computed(sequence):
                sequence.table.release()
                continue
            preempted = sequence.computed_once > 0
            length = len(sequence.tokens) + (sequence.remaining if preempted else 0)
            wanted = sequence.table.pages_wanted(length)
            if wanted + len(self._running) > self._pool.available:
                sequence.table.release()
                break
            copies += sequence.start()
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=lambda running: running.arrival)
        return copies

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether another is just computing what this one would compute next.

        It is worth a few steps' wait where at least half a page can be had for it.
        """
        table, size = sequence.table, self._pool.page_size
        start = table.capacity
        coming = sequence.tokens[start : min(start + size, len(sequence.tokens) - 1)]
        least = table.lent + size // 2
        return len(coming) >= least and any(
            other.pending > 1
            and other.request.tenant_id == sequence.request.tenant_id
            and table.begins(other.table)
            and agreement(other.tokens[start : start + size], coming) >= least
            for other in self._running
        )

"""Where the money that came for an invoice went, however it was paid and taken back.

Payments are one pot, whichever of them a dispute was about: what the tenant was given of it as
credit and has spent comes first, then the invoice, and the rest is its credit. What the pot lacks
even for that was lost. So it does not matter in which order events come, and what was lost is made
good by whatever comes for the invoice next.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """All that came for an invoice, less what was taken back, and what became of it."""

    paid_minor: int  # negative where more was taken back than came
    settled_minor: int  # of what the invoice comes to
    credited_nano: int  # into the tenant's credit

    def lost_nano(self, minor_nano: int) -> int:
        """What was settled or credited, and is not there any more."""
        return self.credited_nano - (self.paid_minor - self.settled_minor) * minor_nano

    def after(
        self, amount_minor: int, *, due_minor: int, minor_nano: int, free_nano: int
    ) -> Standing:
        """How it stands when this came, or, if negative, was taken back.

        `due_minor` is what the invoice comes to less what was forgiven of it, `free_nano` what the
        tenant has of credit: what is taken back first takes of that what was a surplus.
        """
        paid = self.paid_minor + amount_minor
        given = self.credited_nano
        surplus = max(0, paid - due_minor) * minor_nano
        given -= max(0, min(free_nano, -amount_minor * minor_nano, given - surplus))
        rest = paid * minor_nano - given
        settled = max(0, min(due_minor, rest // minor_nano))
        return Standing(paid, settled, given + max(0, rest - settled * minor_nano))

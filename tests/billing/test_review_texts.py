"""What a reviewer sees of a tenant's texts: what the tenant lets be seen."""

from __future__ import annotations

from pathlib import Path

from billing_cases import unit
from browser_pages import World
from review_desk import ReviewDesk
from sqlalchemy import Engine

from api import tenants
from billing import review, review_texts
from metering.database import transaction

OUTPUT = "Ask ann@example.org."


def test_a_tenant_may_have_its_texts_seen_as_they_are(database: Engine, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    request_id = world.settle(unit(20, tier="review"), geo_mean="0.3000", output=OUTPUT)
    with transaction(database) as connection:
        item = review.item(connection, f"rev_{request_id}")
        hidden = review_texts.texts(connection, item).output
        assert hidden is not None
        assert hidden.text == "Ask [email 1]."
        tenant = tenants.change(connection, item.tenant_id, review_redaction=False)
        assert not tenant.review_redaction
        seen = review_texts.texts(connection, item)
        assert (seen.output.text, seen.redaction.originals) == (OUTPUT, {})  # type: ignore[union-attr]
        # Who began to write before the tenant changed its mind is still understood.
        assert review_texts.corrected(connection, item, "Or [email 1].") == "Or ann@example.org."
        assert review_texts.corrected(connection, item, "Or bob@x.org.") == "Or bob@x.org."


def test_a_correction_keeps_what_looks_like_a_mark(database: Engine, tmp_path: Path) -> None:
    """Given one in the prompt, which reviewer and correction see before the answer's own marks."""
    desk = ReviewDesk(database, tmp_path)
    desk.tenant()
    output = "Write [email 2] to ann@example.org or bob@example.org."
    request_id = desk.answer(output=output, request={"prompt": {"prompt": "What is [email 1]?"}})
    with transaction(database) as connection:
        item = review.item(connection, f"rev_{request_id}")
        shown = review_texts.texts(connection, item)
        assert shown.prompt == {"prompt": "What is [email 1]?"}
        assert shown.output is not None
        assert shown.output.text == "Write [email 2] to [email 3] or [email 4]."
        assert review_texts.corrected(connection, item, shown.output.text) == output
        said = "[email 1] and [email 2]: [email 4]"
        assert review_texts.corrected(connection, item, said) == (
            "[email 1] and [email 2]: bob@example.org"
        )

"""What a reviewer sees of a tenant's texts: what the tenant lets be seen."""

from __future__ import annotations

from pathlib import Path

from billing_cases import unit
from browser_pages import World
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

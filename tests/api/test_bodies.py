from __future__ import annotations

import contextlib
import json
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import bodies
from api.admin.retention_routes import ErasureRequest
from api.admin.schemas import TenantRequest
from api.admin.spending_schemas import RefundRequest
from api.errors import InvalidBody
from api.invoices.schemas import CreditNoteRequest
from api.review.schemas import PayoutRequest, VerdictRequest


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    kind: Literal["a", "b"] = "a"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=5)]
    heat: float = 0.0
    parts: list[Inner] = []


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (b'{"name": 1}', "name"),
        (b'{"heat": 1}', "name"),
        (b'{"name": "too long"}', "name"),
        (b'{"name": "a", "nam": 1}', "nam"),
        (b'{"name": "a", "heat": "1"}', "heat"),
        (b'{"name": "a", "heat": true}', "heat"),
        (b'{"name": "a", "heat": 1e999}', "heat"),
        (b'{"name": "a", "parts": {}}', "parts"),
        (b'{"name": "a", "parts": [{"size": 1}, {"size": "1"}]}', "parts[1].size"),
        (b'{"name": "a", "parts": [{"size": 1, "x": 1}]}', "parts[0].x"),
        (b'{"name": "a", "parts": [{}]}', "parts[0].size"),
        (b'{"name": "a", "parts": [{"size": 1, "kind": "c"}]}', "parts[0].kind"),
        (b"[]", None),
        (b"null", None),
        (b"", None),
        (b'{"name": "a"', None),
        (b'{"name": "a"} {}', None),
        (b'{"name": "a", "heat": NaN}', None),
        (b'{"name": "a", "heat": Infinity}', None),
        (b'{"name": "\xff"}', None),
        (b'{"name": "\\ud800"}', None),
        (b"\xff\xfe", None),
        (b'{"name": ' + b"[" * 100_000, "name"),
        (b"[" * 100_000, None),
    ],
)
def test_a_body_of_another_shape_is_refused_and_the_culprit_named(
    body: bytes, parameter: str | None
) -> None:
    with pytest.raises(InvalidBody) as caught:
        bodies.decode(body, Outer)
    assert caught.value.parameter == parameter
    assert "api." not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    with contextlib.suppress(InvalidBody):
        bodies.decode(body, Outer)


def test_deep_nesting_in_a_free_field_is_refused() -> None:
    with pytest.raises(InvalidBody):
        bodies.decode(b"[" * 100_000 + b"]" * 100_000, list)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ErasureRequest, {"end_user": "a\x00b"}),
        (ErasureRequest, {"end_user": ""}),
        (PayoutRequest, {"reviewer_id": "a\x00b", "reference": "1"}),
        *[
            (kind, body | {field: f"a{sign}b"})
            for sign in ("\x00", "\x1b", "\x9b", "\u202e")
            for kind, field, body in (
                (PayoutRequest, "reference", {"reviewer_id": "key_1"}),
                (TenantRequest, "name", {}),
                (CreditNoteRequest, "reason", {"amount": "1", "reference": "r"}),
                (RefundRequest, "reason", {"reference": "r"}),
                (VerdictRequest, "note", {"token": 1, "verdict": "approve"}),
            )
        ],
    ],
)
def test_a_text_that_no_database_takes_is_refused(kind: type[object], body: object) -> None:
    with pytest.raises(InvalidBody):
        bodies.decode(json.dumps(body).encode(), kind)

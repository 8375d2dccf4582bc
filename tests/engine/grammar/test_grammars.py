"""Schemas as grammars: whatever the logits say, what comes out satisfies the schema."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_tiny_dfm

from engine.errors import InvalidRequest
from engine.grammar.compilation import SCHEMA_BYTES_MAX
from engine.grammar.grammars import GrammarFailed, Grammars
from engine.grammar.trial import try_out
from engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_tiny_dfm(tmp_path_factory.mktemp("model") / "tiny.dfm")
    return Tokenizer.from_dfm(path)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


ANY_OBJECT = '{"type": "object"}'
MANY = {
    "type": "object",
    "properties": {f"p{index}": {"type": "integer"} for index in range(1500)},
    "additionalProperties": False,
}


def choices(number: int) -> dict[str, Any]:
    """Four ways to be; of several such, all combinations are possible."""
    ways = [{"type": "object", "properties": {f"p{number}{way}": {}}} for way in range(4)]
    return {"anyOf": ways}


def walked(grammars: Grammars, tokenizer: Tokenizer, schema: str, seed: int) -> str | None:
    """What random logits say under a schema; null if they did not come to an end."""
    random = np.random.default_rng(seed)
    state = grammars.open(schema)
    said = b""
    for _ in range(600):
        row = state.masked(random.normal(size=tokenizer.vocab_size).astype(np.float32))
        token = int(np.argmax(row))
        state.take(token)
        if token in tokenizer.eos_ids:
            return said.decode()
        said += tokenizer.piece(token)
    return None


scalars = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -7, "maximum": 1200},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[a-f]{2,4}$"},
        {"type": "string", "format": "date"},
        {"enum": ["left", "right", 3, None]},
        {"const": 'naïve "quote" 😀'},
    ]
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "b c", "the", "Ünï", 'q"'])
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda properties: (
            st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": False,
                }
            )
            if properties
            else st.just({"type": "object", "additionalProperties": False})
        )
    )
    arrays = st.builds(
        lambda items, least: {
            "type": "array",
            "items": items,
            "minItems": least,
            "maxItems": least + 2,
        },
        inner,
        st.integers(0, 2),
    )
    return objects | arrays | st.lists(inner, min_size=1, max_size=3).map(lambda of: {"anyOf": of})


@settings(max_examples=150)
@given(schema=st.recursive(scalars, nested, max_leaves=5), seed=st.integers(0, 2**32 - 1))
def test_what_ends_satisfies_its_schema(
    grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], seed: int
) -> None:
    text = walked(grammars, tokenizer, json.dumps(schema), seed)
    assert text is not None
    jsonschema.validate(json.loads(text), schema)


def test_any_object_is_json(grammars: Grammars, tokenizer: Tokenizer) -> None:
    ended = [walked(grammars, tokenizer, ANY_OBJECT, seed) for seed in range(30)]
    objects = [json.loads(text) for text in ended if text is not None]
    assert len(objects) > 5
    assert all(isinstance(value, dict) for value in objects)


def test_a_token_is_forced_where_the_schema_leaves_no_other(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    schema = {"type": "object", "properties": {"the": {"type": "boolean"}}, "required": ["the"]}
    state = grammars.open(json.dumps(schema | {"additionalProperties": False}))
    certain = b"".join(map(tokenizer.piece, state.certain()))
    assert certain == b'{"the": '
    said, forced = b"", []
    flat = np.zeros(tokenizer.vocab_size, np.float32)
    while not said.endswith(b"}"):
        token = int(np.argmax(state.masked(flat)))
        forced.append(state.take(token))
        said += tokenizer.piece(token)
    assert said in {b'{"the": true}', b'{"the": false}'}
    assert forced.count(False) == 1, "true or false is all there was to choose"
    assert np.flatnonzero(np.isfinite(state.masked(flat))).tolist() == sorted(tokenizer.eos_ids)


def test_two_requests_of_one_schema_go_their_own_ways(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    schema = json.dumps({"enum": ["ab", "cd"]})
    one, other = grammars.open(schema), grammars.open(schema)
    row = np.zeros(tokenizer.vocab_size, np.float32)
    quote = int(np.argmax(one.masked(row)))
    one.take(quote)
    assert np.isfinite(one.masked(row)).sum() == 2
    assert int(np.argmax(other.masked(row))) == quote


def test_a_grammar_that_outgrows_its_bounds_says_so(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    state = grammars.open(json.dumps(MANY))
    row = np.zeros(tokenizer.vocab_size, np.float32)

    def follow(text: str) -> None:
        for token in tokenizer.encode_text(text):
            state.masked(row)
            state.take(token)

    with pytest.raises(GrammarFailed, match="too complex"):
        follow('{"p1": 1')


def test_the_row_given_stays_as_it_is(grammars: Grammars, tokenizer: Tokenizer) -> None:
    row = np.zeros(tokenizer.vocab_size, np.float32)
    grammars.open(ANY_OBJECT).masked(row)
    assert not row.any()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("true", "JSON object"),
        ('{"type": "wizard"}', "wizard"),
        ('{"not": {"type": "string"}}', "not"),
        ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('{"type": "string", "pattern": "(?=a)b"}', "look-around"),
        ('{"$ref": "https://example.com/schema"}', "example.com"),
        ('{"x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
        ('{"enum": []}', "nsatisfiable"),
        ('{"$ref": "#"}', "satisfied"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "minLength"),
        ('{"a":' * 70 + "1" + "}" * 70, "deep"),
        ("[" * 100_000, "bytes"),
        ('{"items":' + "[" * 30_000, "not JSON"),
        (json.dumps({"enum": ["x" * SCHEMA_BYTES_MAX]}), "bytes"),
        ('{"const": "\\ud800"}', "honoured"),
        (json.dumps({"allOf": [choices(index) for index in range(9)]}), "too large"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(
    grammars: Grammars, schema: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        grammars.open(schema)
    assert refused.value.parameter == "json_schema"
    assert len(str(refused.value)) < 500


def test_a_strangers_schema_is_tried_out_where_it_can_be_killed() -> None:
    patterns = [{"type": "string", "pattern": f"a.{{0,{7 * index}}}b"} for index in range(1, 25)]
    with pytest.raises(InvalidRequest, match="too complex to compile"):
        try_out(json.dumps({"allOf": patterns}))
    with pytest.raises(InvalidRequest, match="wizard"):
        try_out('{"type": "wizard"}')
    try_out(ANY_OBJECT)


def test_nobody_waits_while_a_strangers_schema_is_compiled(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(tokenizer)
    grammars.open(ANY_OBJECT)
    begun, released = Event(), Event()

    def slow(_self: Grammars, _schema: str) -> str:
        begun.set()
        released.wait()
        return "it took long"

    monkeypatch.setattr(Grammars, "_compiled", slow)
    with ThreadPoolExecutor(2) as pool:
        stranger = pool.submit(grammars.open, '{"type": "null"}')
        try:
            assert begun.wait(20)
            pool.submit(grammars.open, ANY_OBJECT).result(20)
        finally:
            released.set()
        with pytest.raises(InvalidRequest, match="it took long"):
            stranger.result()


def test_a_folder_called_engine_where_the_gateway_was_started_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    try_out(ANY_OBJECT)

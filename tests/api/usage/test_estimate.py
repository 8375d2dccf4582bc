from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from api_app import make_client
from api_cases import House, bearer, make_house
from api_settled import Desk
from billing_cases import unit
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine
from tiny_models import write_tiny_dfm

from api import tenants
from api.inference.orders import Order, ServedModel
from api.replicas import Replica, Replicas
from api.roles import Role
from api.usage.estimate_routes import estimate
from billing import queries
from engine.grammar.grammars import Grammars
from engine.tokenizer import Tokenizer
from metering.database import snapshot, transaction
from metering.energy import Choice
from metering.energy.replicas import SAMPLES_MIN, Basis, Candidate, Figure, green
from metering.events import EnergyClass

Client = TestClient[Litestar]
GREEN = {"energy": "green"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    tokenizer = Tokenizer.from_dfm(write_tiny_dfm(tmp_path_factory.mktemp("m") / "tiny.dfm"))
    return ServedModel(
        "tiny",
        tokenizer,
        tokenizer.context_length,
        max_tokens_default=64,
        grammars=Grammars(tokenizer),
    )


class Standing(Replicas):
    """Two replicas that stand as this says: enough to choose between them."""

    def __init__(self, samples: int) -> None:
        super().__init__(())
        self.devices: tuple[str, ...] = ("gpu",)
        basis = Basis(EnergyClass.MEASURED, "nvml_total_energy", "gpu_board")
        self.candidates = [
            Candidate(name, live=0, room=4, figure=Figure(basis, samples, uj_per_token))
            for name, uj_per_token in (("eco", 123_456.0), ("fast", 400_000.0))
        ]

    def greenest(self) -> Choice:
        return green(self.candidates)

    def place(self, order: Order) -> tuple[Replica, Order]:
        name = self.candidates[0].replica
        self._replicas = (cast("Replica", SimpleNamespace(name=name, devices=self.devices)),)
        return super().place(order)

    def _candidates(self) -> list[Candidate]:
        return self.candidates[:1]


@pytest.fixture
def replicas() -> Standing:
    return Standing(samples=SAMPLES_MIN)


@pytest.fixture
def client(
    sqlite_database: Engine, house: House, served: ServedModel, replicas: Standing
) -> Iterator[Client]:
    with make_client(sqlite_database, estimate, served=served, replicas=replicas) as opened:
        yield opened


def ask(client: Client, secret: str, **body: Any) -> httpx.Response:
    return client.post("/estimate", headers=bearer(secret), json=body)


def test_a_prompt_is_counted_by_the_models_own_tokenizer(
    client: Client, house: House, served: ServedModel
) -> None:
    answer = ask(client, house.developer, prompt="def add(a, b):", max_tokens=16)
    assert answer.status_code == 200, answer.text
    quote = answer.json()
    assert quote["input_tokens"] == len(served.tokenizer.encode("def add(a, b):"))
    assert quote["max_tokens"] == 16
    assert 0 < Decimal(quote["expected"]) <= Decimal(quote["worst"])
    assert quote["currency"] == "USD"
    assert quote["tariff"] == {"id": "composite@1", "name": "composite", "version": 1}
    stated = ask(client, house.developer, input_tokens=quote["input_tokens"], max_tokens=16)
    assert stated.json() == quote


def test_green_energy_is_quoted_with_the_choice_of_this_moment(
    client: Client, house: House, replicas: Standing
) -> None:
    body = {"input_tokens": 100, "max_tokens": 300}
    plain, quote = (ask(client, house.developer, **body, **more).json() for more in ({}, GREEN))
    assert plain["green"] is None
    assert quote["green"] | {"candidates": None} == {
        "replica": "eco",
        "reason": "lowest",
        "candidates": None,
        "multiplier": "0.8",
    }
    assert [each["joules_per_token"] for each in quote["green"]["candidates"]] == ["0.12", "0.40"]
    assert Decimal(quote["expected"]) < Decimal(plain["expected"])
    assert quote["worst"] == plain["worst"], "a discount is not assumed"
    replicas.candidates = Standing(samples=1).candidates
    undecided = ask(client, house.developer, **body, **GREEN).json()
    assert undecided["green"]["reason"] == "not_enough_samples"
    assert undecided["green"]["multiplier"] is None
    assert undecided["expected"] == plain["expected"]


def test_a_conversation_counts_with_its_template(
    client: Client, house: House, served: ServedModel
) -> None:
    messages = [{"role": "user", "content": "hi there"}]
    quote = ask(client, house.developer, messages=messages).json()
    assert quote["input_tokens"] == len(served.tokenizer.encode_chat(messages))
    assert quote["max_tokens"] == 64


def test_the_body_of_generate_may_be_sent_as_it_is(client: Client, house: House) -> None:
    plain = ask(client, house.developer, prompt="a b c", max_tokens=8)
    dressed = ask(
        client,
        house.developer,
        prompt="a b c",
        max_tokens=8,
        model="tiny",
        temperature=0.7,
        top_p=0.9,
        seed=4,
        stop=["x"],
        stream=True,
        max_cost="1",
        tags={"team": "a"},
    )
    assert dressed.json() == plain.json()


def test_a_max_cost_bounds_what_is_quoted(client: Client, house: House) -> None:
    body = {"input_tokens": 20, "max_tokens": 400}
    quote = ask(client, house.developer, **body).json()
    expected, worst = Decimal(quote["expected"]), Decimal(quote["worst"])
    between = ask(client, house.developer, **body, max_cost=str((expected + worst) / 2)[:11]).json()
    assert between["expected"] == quote["expected"]
    assert expected < Decimal(between["worst"]) == Decimal(str((expected + worst) / 2)[:11]) < worst
    below = str(expected / 2)[:11]
    capped = ask(client, house.developer, **body, max_cost=below).json()
    assert Decimal(capped["expected"]) == Decimal(capped["worst"]) == Decimal(below)
    assert ask(client, house.developer, **body, max_cost="1").json() == quote


def test_a_max_cost_that_admits_no_request_has_no_price(client: Client, house: House) -> None:
    answer = ask(client, house.developer, input_tokens=20, max_tokens=400, max_cost="0.000000001")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "cost_ceiling_too_low")
    assert problem["parameter"] == "max_cost"
    needed = problem["needed"]
    one = ask(client, house.developer, input_tokens=20, max_tokens=1).json()
    assert needed == one["worst"], "the most that the input and one token can cost"
    least = ask(client, house.developer, input_tokens=20, max_tokens=400, max_cost=needed)
    assert least.json()["worst"] == needed


def test_a_limit_of_joules_has_a_price_only_where_they_are_metered(
    client: Client, house: House, replicas: Standing
) -> None:
    body = {"prompt": "a", "max_joules": "3"}
    assert ask(client, house.developer, **body).status_code == 200
    replicas.devices = ()
    assert ask(client, house.developer, **body).json()["parameter"] == "max_joules"


def test_no_request_costs_more_than_the_worst_case(
    client: Client, house: House, desk: Desk, sqlite_database: Engine
) -> None:
    quote = ask(client, house.developer, input_tokens=20, max_tokens=40).json()
    desk.settle(
        house.tenant_id,
        house.key_ids[Role.DEVELOPER],
        "req_9",
        *(unit(1, "fragment", "review") for _ in range(40)),
    )
    with snapshot(sqlite_database) as connection:
        lines = queries.lines(connection, "req_9")
    cost = Decimal(sum(line.amount_nano for line in lines)).scaleb(-9)
    assert 0 < cost <= Decimal(quote["worst"])


def test_a_review_fee_counts_only_for_those_who_agreed_to_it(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    without = ask(client, house.developer, input_tokens=20, max_tokens=40).json()
    with transaction(sqlite_database) as connection:
        tenants.change(connection, house.tenant_id, review_opt_in=True)
    agreed = ask(client, house.developer, input_tokens=20, max_tokens=40).json()
    assert (without["review_fee"], agreed["review_fee"]) == (False, True)
    assert Decimal(agreed["worst"]) > Decimal(without["worst"])


def test_an_estimate_changes_nothing(client: Client, house: House, sqlite_database: Engine) -> None:
    ask(client, house.developer, prompt="a b c")  # the key's first use is noted
    with snapshot(sqlite_database) as connection:
        before = list(connection.connection.iterdump())
    ask(client, house.developer, prompt="a b c")
    with snapshot(sqlite_database) as connection:
        assert list(connection.connection.iterdump()) == before


@pytest.mark.parametrize(
    ("body", "status", "parameter"),
    [
        ({}, 400, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "prompt"),
        ({"prompt": "a", "input_tokens": 5}, 400, "input_tokens"),
        ({"input_tokens": 0}, 400, "input_tokens"),
        ({"input_tokens": 2**40}, 400, "input_tokens"),
        ({"input_tokens": 512}, 400, "prompt"),
        ({"prompt": "word " * 2000}, 400, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**9}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": "8"}, 400, "max_tokens"),
        ({"prompt": "a", "tokens": 5}, 400, "tokens"),
        ({"prompt": "a", "model": "gpt-9"}, 404, "model"),
        ({"prompt": "a", "temperature": 99}, 400, "temperature"),
        ({"input_tokens": 5, "temperature": 99}, 400, "temperature"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p"),
        ({"prompt": "a", "seed": -1}, 400, "seed"),
        ({"input_tokens": 5, "seed": -1}, 400, "seed"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"prompt": "a", "stop": ""}, 400, "stop"),
        ({"prompt": "a", "max_joules": "x"}, 400, "max_joules"),
        ({"prompt": "a", "json_schema": {"type": "wizard"}}, 400, "json_schema"),
        ({"input_tokens": 5, "json_schema": {"type": "wizard"}}, 400, "json_schema"),
        ({"prompt": "a", "deadline_ms": 0}, 400, "deadline_ms"),
        ({"prompt": "a", "end_user": "a\x00"}, 400, "end_user"),
        ({"prompt": "a", "tags": {"": "a"}}, 400, "tags"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, 400, "messages[0].role"),
    ],
)
def test_what_cannot_run_has_no_price(
    client: Client, house: House, body: dict[str, Any], status: int, parameter: str
) -> None:
    answer = ask(client, house.developer, **body)
    assert (answer.status_code, answer.json().get("parameter")) == (status, parameter)


def test_without_a_tariff_there_is_no_estimate(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    answer = ask(client, other.developer, input_tokens=5)
    assert (answer.status_code, answer.json()["code"]) == (409, "no_tariff")


def test_an_operator_estimates_for_a_tenant(client: Client, house: House) -> None:
    query = {"tenant_id": house.tenant_id}
    body = {"input_tokens": 5}
    answer = client.post("/estimate", headers=bearer(house.operator), json=body, params=query)
    assert answer.json() == ask(client, house.owner, input_tokens=5).json()
    assert ask(client, house.operator, input_tokens=5).json()["parameter"] == "tenant_id"

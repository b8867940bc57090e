"""What an endpoint lists, and which of it is asked for; what its prefix cache counts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.drivers.counters import parse_counters
from harness.drivers.replay import PREFIX_CACHE
from harness.drivers.served_models import Served, choose_model, parse_models
from harness.errors import UsageError

URL = "http://host/v1"


def test_the_only_model_is_taken_whatever_requests_are_called() -> None:
    assert choose_model(None, Served({"a": None}), ["default"], URL) == "a"


def test_a_model_that_was_named_is_asked_for_even_if_none_is_listed() -> None:
    assert choose_model("mine", Served(), ["default"], URL) == "mine"


def test_where_all_that_requests_carry_is_served_each_asks_for_its_own() -> None:
    assert choose_model(None, Served({"a": None, "b": None, "c": None}), ["a", "b"], URL) is None


def test_a_damaged_line_of_the_page_costs_nothing_else() -> None:
    page = PAGE + 'vllm:prefix_cache_hits_total{a="}"} 1.2.3.4-x\nvllm:prefix_cache_hits_total{ \n'
    assert parse_counters(page, PREFIX_CACHE) == {"queries": 400.0, "hits": 42.0}
    labels = 'vllm:prefix_cache_hits_total{engine="0", model="a}b"} 8\n'
    assert parse_counters(PAGE + labels, PREFIX_CACHE)["hits"] == 50.0


@pytest.mark.parametrize(
    ("served", "says"),
    [
        (Served({f"m{i}": None for i in range(10)}), "serves m0, m1, m2, m3, m4, m5, m6, m7 and 2"),
        (Served(refusal="HTTP 404"), "http://host/v1/models answered HTTP 404"),
        (Served(), "http://host/v1/models lists no model"),
    ],
)
def test_where_nobody_says_the_user_is_asked(served: Served, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_model(None, served, ["default"], URL)
    assert says in str(caught.value)
    assert "engine.model=NAME" in str(caught.value)


def test_a_server_that_asks_who_we_are_is_given_a_key_and_no_model() -> None:
    with pytest.raises(UsageError, match=r"answered HTTP 401: name .* engine\.api_key_env=NAME"):
        choose_model(None, Served(refusal="HTTP 401"), ["default"], URL)


def test_lengths_are_those_that_the_server_tells() -> None:
    body = {"data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}, {"id": 7}, "c"]}
    assert parse_models(json.dumps(body).encode()).lengths == {"a": 4096, "b": None}


@given(body=st.binary(max_size=60) | st.sampled_from([b"[" * 9999, b"[]", b'{"data": 3}']))
def test_any_list_of_models_is_read_or_empty(body: bytes) -> None:
    assert isinstance(parse_models(body).lengths, dict)


PAGE = """# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 300.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 100.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 32.0
vllm:external_prefix_cache_hits_total{engine="0"} 5.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 1e+01
"""


def test_counters_are_summed_over_a_servers_engines() -> None:
    assert parse_counters(PAGE, PREFIX_CACHE) == {"queries": 400.0, "hits": 42.0}


@pytest.mark.parametrize("page", ["", "{}", PAGE.replace("hits_total", "x"), "vllm:prefix_cache_"])
def test_a_page_without_the_counters_says_nothing(page: str) -> None:
    assert not {"queries", "hits"} <= parse_counters(page, PREFIX_CACHE).keys()

"""Requests that can never run are refused with the parameter at fault."""

import pytest
from engine_sequences import request

from engine.config import PROFILES, SHIPPED_PROFILE, EngineConfig
from engine.errors import InvalidConfig, InvalidRequest, PromptTooLong
from engine.requests import SamplingParams
from engine.scheduler.admission import Limits, check_config, check_sampling

LIMITS = Limits(vocab_size=100, context_length=64, kv_tokens=48)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "parameter"),
    [
        ([], 1, "prompt"),
        ([100], 1, "prompt"),
        ([-1], 1, "prompt"),
        ([1], 0, "max_tokens"),
        ([1], -3, "max_tokens"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    prompt: list[int], max_tokens: int, parameter: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LIMITS.check(request(prompt, max_tokens))
    assert caught.value.parameter == parameter


def test_a_request_that_fits_exactly_is_taken() -> None:
    LIMITS.check(request([1] * 40, 8))


def test_a_request_beyond_the_storage_or_the_context_is_too_long() -> None:
    with pytest.raises(PromptTooLong, match="storage of 48 tokens"):
        LIMITS.check(request([1] * 40, 9))
    with pytest.raises(PromptTooLong, match="context of 64 tokens") as caught:
        LIMITS.check(request([1] * 70, 1))
    assert caught.value.parameter == "prompt"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop string"):
        LIMITS.check(request(stop=("end", "")))


@pytest.mark.parametrize(
    ("parameters", "at_fault"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 11.0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"presence_penalty": float("-inf")}, "presence_penalty"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": ((1, -100.5),)}, "logit_bias"),
        ({"logit_bias": ((1, 2.0), (1, 3.0))}, "logit_bias"),
        ({"logit_bias": ((-1, 2.0),)}, "logit_bias"),
        ({"logit_bias": tuple((token, 1.0) for token in range(301))}, "logit_bias"),
    ],
)
def test_sampling_parameters_that_define_no_distribution_are_refused(
    parameters: dict[str, float], at_fault: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_sampling(SamplingParams(**parameters))
    assert caught.value.parameter == at_fault


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"sampling": SamplingParams(logit_bias=((100, 1.0),))}, "logit_bias"),
        ({"json_schema": "{}"}, "json_schema"),
    ],
)
def test_an_option_that_this_engine_cannot_honour_is_refused(
    asked: dict[str, object], parameter: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LIMITS.check(request([1], 1, **asked))
    assert caught.value.parameter == parameter


def test_the_profiles_are_the_named_ones_and_the_shipped_one_is_the_default() -> None:
    assert PROFILES["default"] == (4, 1, 0.8, 1.0, 0)
    assert PROFILES["recommended"] == (8, 4, 1.2, 2.0, 1024)
    assert EngineConfig.of(SHIPPED_PROFILE) == EngineConfig()
    chosen = EngineConfig.of("default", verifier_batch_size=3, threads=None)
    assert chosen == EngineConfig(
        draft_block_size=4, verifier_batch_size=3, entropy_threshold=0.8, expert_cache_size=0
    )
    with pytest.raises(InvalidConfig, match="recommended"):
        EngineConfig.of("turbo")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_can_run_with_the_experts_it_names(profile: str) -> None:
    config = EngineConfig.of(profile)
    check_config(config, 8192)
    check_config(config, 8192, experts=True)
    assert config.experts_kept == PROFILES[profile].expert_cache_size


def test_experts_may_be_named_where_there_are_some() -> None:
    config = EngineConfig.of("default", expert_cache_size=96)
    check_config(config, 8192, experts=True)
    assert config.experts_kept == 96


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"expert_cache_size": 1024}, "dense"),
        ({"expert_cache_size": -1}, "negative"),
        ({"use_flash_attn2": "verifier"}, "CUDA kernel"),
        ({"use_flash_attn2": "verifier", "device": "cuda:0"}, "half precision"),
        ({"use_flash_attn2": "draft", "device": "cuda:0"}, "draft layer never"),
        ({"use_flash_attn2": "everywhere"}, "one of verifier, draft"),
        ({"rope_scaling_factor": 0.0}, "above 0"),
        ({"rope_scaling_factor": float("nan")}, "above 0"),
        ({"degrade_policy": "sometimes"}, "hit_rate, speedup, never"),
        ({"longest_token_length": 8191}, "at least 8192"),
    ],
)
def test_what_an_engine_cannot_honour_is_refused_with_the_reason(
    parameters: dict[str, object], why: str
) -> None:
    with pytest.raises(InvalidConfig, match=why):
        check_config(EngineConfig(**parameters), 8192)

"""Which steps count as decoding, and which as prefill."""

from __future__ import annotations

from engine.bench.records import StepLog, Workload


def log_of(*steps: tuple[int, float, int, int], sustained: bool = True) -> StepLog:
    log = StepLog.of(Workload((), 2, 8, sustained=sustained))
    for requests, elapsed_ms, prompt_tokens, emitted_tokens in steps:
        log.take(
            elapsed_ms,
            requests=requests,
            prompt_tokens=prompt_tokens,
            emitted_tokens=emitted_tokens,
        )
    return log


STEPS = ((2, 40.0, 30, 2), (2, 10.0, 0, 2), (2, 15.0, 20, 1), (2, 12.0, 0, 5), (1, 9.0, 0, 1))


def test_while_prompts_wait_a_step_without_them_counts_where_the_batch_is_full() -> None:
    run = log_of(*STEPS).run((), 86.0)
    assert (run.prefill_tokens, run.prefill_ms) == (50, 55.0)
    assert (run.decode_tokens, run.decode_ms, run.step_ms) == (7, 22.0, (10.0, 12.0))


def test_where_nobody_waits_or_no_batch_is_full_every_step_without_prompts_counts() -> None:
    assert log_of(*STEPS, sustained=False).run((), 86.0).step_ms == (10.0, 12.0, 9.0)
    assert log_of(*STEPS[:1], *STEPS[4:]).run((), 49.0).step_ms == (9.0,)

"""Which steps count as decoding, and which as prefill."""

from __future__ import annotations

from engine.bench.records import StepLog


def test_steps_without_prompts_count_only_while_the_batch_is_full() -> None:
    log = StepLog(concurrency=2)
    log.take(40.0, requests=2, prompt_tokens=30, emitted_tokens=2)
    log.take(10.0, requests=2, prompt_tokens=0, emitted_tokens=2)
    log.take(15.0, requests=2, prompt_tokens=20, emitted_tokens=1)
    log.take(12.0, requests=2, prompt_tokens=0, emitted_tokens=5)
    log.take(9.0, requests=1, prompt_tokens=0, emitted_tokens=1)  # nobody waits any more
    run = log.run((), 86.0)
    assert (run.prefill_tokens, run.prefill_ms) == (50, 55.0)
    assert (run.decode_tokens, run.decode_ms, run.step_ms) == (7, 22.0, (10.0, 12.0))

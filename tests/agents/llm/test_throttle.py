import random

from agents.llm.config import RetryConfig
from agents.llm.throttle import Throttle, backoff_s


def test_backoff_draws_from_the_whole_range_below_a_doubling_ceiling():
    # base 0.5 s, cap 3 s: ceilings 0.5, 1, 2, 3, 3
    retry = RetryConfig(backoff_base_s=0.5, backoff_cap_s=3.0)
    draw = random.Random(1)
    for failures, ceiling in enumerate((0.5, 1.0, 2.0, 3.0, 3.0), start=1):
        waits = [backoff_s(retry, failures, draw) for _ in range(400)]
        assert max(waits) <= ceiling
        assert max(waits) > 0.95 * ceiling and min(waits) < 0.05 * ceiling  # full jitter, not a band at the top


async def test_a_pause_is_waited_out_and_a_shorter_one_does_not_cut_it():
    now, slept = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(sleep=sleep, clock=lambda: now[0])
    throttle.limit("a", 1)
    throttle.limit("b", 1)
    throttle.pause("a", 30.0)
    throttle.pause("a", 5.0)
    async with throttle.turn("b"):
        assert slept == []
    async with throttle.turn("a"):
        assert slept == [30.0]

"""What a check asks, and in which company."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llm42.check.prompts import LONGEST, SHORTEST, prompts
from llm42.check.runner import SEED, bursts


@given(st.integers(2, 20), st.integers(1, 5), st.integers(2, 16))
def test_bursts_ask_every_prompt_in_every_trial_and_never_alone(n: int, trials: int, concurrency: int) -> None:
    made = list(bursts(n, trials, concurrency, random.Random(SEED)))
    assert Counter(prompt for burst in made for prompt in burst) == dict.fromkeys(range(n), trials)
    sizes = [len(burst) for burst in made]
    assert max(sizes) <= concurrency
    alone = sizes.count(1)
    assert alone == (1 if concurrency == 2 and n * trials % 2 else 0)


def test_bursts_are_both_large_and_small() -> None:
    sizes = [len(burst) for burst in bursts(16, 3, 8, random.Random(SEED))]
    assert sizes[:2] == [8, 2]
    assert len(set(sizes)) > 2


def test_prompts_are_repeatable_distinct_and_of_many_lengths() -> None:
    made = prompts(16, SEED)
    assert made == prompts(16, SEED) != prompts(16, SEED + 1)
    assert len(set(made)) == 16
    words = [len(prompt.split()) for prompt in made]
    assert min(words) >= SHORTEST
    assert max(words) <= LONGEST + 20
    assert max(words) >= LONGEST
    assert len(set(words)) > 10


def test_prompts_may_be_few_or_many() -> None:
    assert len(prompts(2, SEED)) == 2
    assert len(set(prompts(3000, SEED))) == 3000

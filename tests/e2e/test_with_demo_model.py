"""The features once more on SmolLM2, a model whose words mean something."""

import asyncio

import pytest

from tests.e2e.client import Answer, Client
from tests.e2e.cluster import Cluster

QUESTION = "What is the capital of France?"
STORIES = [
    f"Write a short story about {subject}."
    for subject in ("a lighthouse", "two sailors and a cat", "the last train to the mountains", "a beekeeper")
]
STORY_TOKENS = 40
ROLLBACKS = "ray_llm42_rollbacks_total"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def test_chat_ends_by_itself(demo: Client) -> None:
    """The end-of-sequence token ends the answer, and is part of it, but not of its text."""
    answer = await demo.chat(QUESTION, 64)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage[1] == len(answer.token_ids) < 64
    assert await demo.chat(QUESTION, 64, stream=True) == answer
    longer = await demo.chat(QUESTION, len(answer.token_ids) + 5, ignore_eos=True)
    assert longer.token_ids[: len(answer.token_ids)] == answer.token_ids
    assert longer.finish_reason == "length"


async def test_load(demo_cluster: Cluster, demo: Client) -> None:
    before = (await demo_cluster.metrics()).get(ROLLBACKS, 0.0)
    alone = [await demo.chat(story, STORY_TOKENS) for story in STORIES]
    together = await asyncio.gather(*(demo.chat(story, STORY_TOKENS, stream=True) for story in STORIES))
    assert together == alone
    print(f"rollbacks: {(await demo_cluster.metrics()).get(ROLLBACKS, 0.0) - before:.0f}")


async def test_turns_of_a_conversation(demo: Client) -> None:
    """An assistant's message, cut short and sent back, is continued as it was."""
    question = {"role": "user", "content": STORIES[0]}
    full = await demo.chat([question], STORY_TOKENS)
    for cut in (9, 25):
        beginning = (await demo.chat([question], cut)).text
        rest = await demo.chat(
            [question, {"role": "assistant", "content": beginning}],
            STORY_TOKENS - cut,
            continue_final_message=True,
            add_generation_prompt=False,
        )
        assert beginning + rest.text == full.text
        assert rest.token_ids == full.token_ids[cut:]
        assert rest.logprobs == full.logprobs[4 * cut :]


async def test_stop_strings_across_commits(demo: Client) -> None:
    """A stop string ends the text wherever it lies among tokens, windows and commits."""
    prompt = "Once upon a time, in a small village by the sea,"
    full = await demo.complete(prompt, STORY_TOKENS)
    for tokens in (1, 21):  # the prompt and 20 more fill a window
        # Two characters on either side of where token number ``tokens`` ends.
        middle = len((await demo.complete(prompt, tokens)).text)
        string = full.text[middle - 2 : middle + 2]
        expected = full.text[: full.text.index(string)]
        for include in (False, True):
            answers: list[Answer] = await asyncio.gather(
                *(
                    demo.complete(
                        prompt, STORY_TOKENS, stop=[string], include_stop_str_in_output=include, stream=stream
                    )
                    for stream in (False, True)
                )
            )
            for answer in answers:
                assert answer.text == expected + (string if include else "")
                assert (answer.finish_reason, answer.stop_reason) == ("stop", string)
                assert answer.token_ids == full.token_ids[: len(answer.token_ids)]
                assert answer.logprobs == full.logprobs[: len(answer.logprobs)]
        assert await demo.complete(prompt, STORY_TOKENS, stop=["no such string"]) == full

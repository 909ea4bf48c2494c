"""The built-in prompts: as many as wanted, of 10 to about 400 words, always the same ones."""

import random

SHORTEST = 10
LONGEST = 400

_TASKS = (
    "Explain to a curious neighbour, step by step, how {topic} works.",
    "Write a short story in which {topic} changes somebody's whole day.",
    "List five practical questions one should ask before buying {topic}.",
    "Compare the costs and the merits of {topic} with those of {other}.",
    "Draft a polite letter to the town council about {topic} and {other}.",
    "Describe what usually goes wrong with {topic}, and how to mend it.",
    "Invent a dialogue between two experts who disagree about {topic} and {other}.",
    "Summarise the notes below in three sentences for somebody who repairs {topic}.",
)
_TOPICS = (
    "a tide mill", "a paper kite", "a village bakery", "a bicycle pump", "a night train", "a beehive",
    "a public library", "a rain gauge", "a wooden bridge", "a weather balloon", "a harbour crane",
    "a slide rule", "a greenhouse", "a brass telescope", "a ferry timetable", "a clay oven", "a music box",
)  # fmt: skip
_SUBJECTS = (
    "The old surveyor", "Our first prototype", "Nearly every visitor", "A careful apprentice", "My cousin",
    "The second report", "Whoever wrote the manual", "A retired sailor", "The quiet engineer", "A guest",
)  # fmt: skip
_VERBS = (
    "measured", "forgot to mention", "carefully repainted", "wrote twice about", "could not explain", "sold",
    "quietly replaced", "argued over", "took apart", "kept a diary about", "drew a map of", "insured",
)  # fmt: skip
_ENDINGS = (
    "before the snow melted", "at about seven in the morning", "with a budget of 340 crowns",
    "for the third time since March", "although nobody asked", "while the kettle was boiling",
    "in spite of the noise", "and was rather proud", "because the numbers did not add up",
    "during the longest meeting of the year",
)  # fmt: skip


def prompts(count: int, seed: int) -> tuple[str, ...]:
    """``count`` different prompts, geometrically longer from ``SHORTEST`` to about ``LONGEST`` words."""
    rng = random.Random(seed)
    ratio = LONGEST / SHORTEST
    made: dict[str, None] = {}
    while len(made) < count:
        # Short ones may come out alike; then the next draw takes the place.
        made[_prompt(rng, round(SHORTEST * ratio ** (len(made) / max(1, count - 1))))] = None
    return tuple(made)


def _prompt(rng: random.Random, words: int) -> str:
    topic, other = rng.sample(_TOPICS, 2)
    sentences = [rng.choice(_TASKS).format(topic=topic, other=other)]
    while sum(len(sentence.split()) for sentence in sentences) < words:
        subject, verb, ending = rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_ENDINGS)
        sentences.append(f"{subject} {verb} {rng.choice(_TOPICS)} {ending}.")
    return " ".join(sentences)

"""Windows to steer: logits, a sequence, and a steering that has something to do in most of their rows."""

from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from llm42.protocol.steering import Grammar, Steering

FEATURES = "presence frequency repetition logit_bias min_tokens bad_words allowed grammar".split()
VOCABULARY = 101  # four words of a bitmask, the last one not full


@dataclass(frozen=True)
class Window:
    logits: Tensor
    steering: Steering
    tokens: Tensor
    start: int
    masks: Tensor | None


def window(features: list[str], seed: int, vocabulary: int = VOCABULARY, rows: int = 8, length: int = 40) -> Window:
    """Tokens are few, so that they come again; the prompt ends before, in or after the window."""
    random = Random(seed)
    start = random.randrange(length - rows + 1)
    tokens = [random.randrange(vocabulary // 4) for _ in range(length)]
    steering = Steering(random.randrange(1, length))
    for feature in features:
        steering = replace(steering, **_field(feature, random, vocabulary, tokens))
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, 5:8] = torch.tensor([0.0, -0.0, -torch.inf])
    return Window(logits, steering, torch.tensor(tokens), start, _masks(random, rows, vocabulary, steering))


def _field(feature: str, random: Random, vocabulary: int, tokens: list[int]) -> dict[str, object]:
    match feature:
        case "presence" | "frequency":
            return {f"{feature}_penalty": random.choice([-2.0, -0.3, 0.1, 0.7, 1.9999])}
        case "repetition":
            return {"repetition_penalty": random.choice([0.3, 0.999, 1.1, 1.7, 3.0])}
        case "logit_bias":
            ids = sorted(random.sample(range(vocabulary), 20))
            return {"logit_bias": tuple((token, random.uniform(-100, 100)) for token in ids)}
        case "min_tokens":
            stops = sorted(random.sample(range(vocabulary), 5))
            return {"min_tokens": random.randrange(1, len(tokens)), "stops": tuple(stops)}
        case "bad_words":
            words = [tuple(tokens[(at := random.randrange(30)) : at + random.randint(1, 4)]) for _ in range(40)]
            return {"bad_words": tuple(sorted({*words, *((random.randrange(vocabulary),) for _ in range(3))}))}
        case "allowed":
            return {"allowed": tuple(sorted(random.sample(range(vocabulary), vocabulary // 2)))}
        case "grammar":
            return {"grammar": Grammar("json_object", "")}
    raise ValueError(feature)


def _masks(random: Random, rows: int, vocabulary: int, steering: Steering) -> Tensor | None:
    """Of the last row the grammar permits nothing but what stops: there min_tokens gives way."""
    if steering.grammar is None:
        return None
    ids = [random.sample(range(vocabulary), vocabulary // 2) for _ in range(rows)]
    ids[-1] = list(steering.stops) or ids[-1]
    masks = [[sum(1 << bit for bit in range(32) if word * 32 + bit in row) for word in range(-(-vocabulary // 32))]
             for row in map(set, ids)]  # fmt: skip
    return torch.tensor(masks, dtype=torch.int64).to(torch.int32)  # wraps


def bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)

"""A model verifier and a driver for the pure session, for property tests. Adversarial by design."""

import hashlib
import struct
from collections.abc import Sequence

from llm42.protocol import Question, ReplayReply, Scores, StopRules, unpack_tokens

VOCABULARY = 8
EOS = 0


def canonical_token(prefix: Sequence[int]) -> int:
    """The "model": any function of the whole prefix will do."""
    return hashlib.sha256(bytes(prefix)).digest()[0] % VOCABULARY


def canonical_logprob(prefix: Sequence[int]) -> bytes:
    return struct.pack("f", -hashlib.sha256(bytes(prefix)).digest()[1] / 7.0)


def canonical_output(prompt: Sequence[int], stop: StopRules) -> list[int]:
    tokens = list(prompt)
    while len(tokens) - len(prompt) < stop.max_tokens:
        tokens.append(canonical_token(tokens))
        if stop.stops(tokens[-1]):
            break
    return tokens[len(prompt) :]


def reply_to(question: Question, idle_rows: int = 0) -> ReplayReply:
    tokens = unpack_tokens(question.tokens)
    prefixes = [tokens[: p + 1] for p in range(question.start, len(tokens))]
    scored = [tokens[len(prefix)] for prefix in prefixes[: question.given]]
    scores = Scores(
        [*scored, *(canonical_token(prefix) for prefix in prefixes[question.given :])],
        b"".join(canonical_logprob(prefix) for prefix in prefixes),
        [1] * len(prefixes),
    )
    return ReplayReply("f", question.digest, scores, idle_rows)

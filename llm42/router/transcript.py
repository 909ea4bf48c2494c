"""What one deterministic request has committed, kept where something is to be done with it at the end."""

from dataclasses import dataclass, field, replace

from llm42.protocol import Commit, Haste, Question, ReplayRequest, Selection, pack_tokens
from llm42.protocol.messages import WORD
from llm42.receipt import Receipt, issue


@dataclass(slots=True)
class Transcript:
    """``logprobs`` are the fp32 bits of ``tokens``' logprobs."""

    request_id: str
    prompt: list[int]
    selection: Selection
    window_size: int
    adapter: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: bytearray = field(default_factory=bytearray)

    def add(self, commit: Commit) -> None:
        self.tokens += commit.scores.tokens
        self.logprobs += commit.scores.logprobs

    def receipt(self, fingerprint: str, count: int) -> Receipt:
        """For the first ``count`` tokens: of what follows a stop string, the client sees nothing."""
        tokens, logprobs = self.tokens[:count], bytes(self.logprobs[: WORD * count])
        return issue(fingerprint, self.window_size, self.selection, self.prompt, tokens, logprobs, self.adapter)

    def question(self, fingerprint: str | None) -> ReplayRequest:
        """Replay all of it anew; nobody waits for that."""
        request = replay_of(self.request_id, self.prompt, self.tokens, self.selection, self.adapter, fingerprint)
        return replace(request, haste=Haste.EARLY)


def replay_of(
    request_id: str,
    prompt: list[int],
    tokens: list[int],
    selection: Selection,
    adapter: str,
    fingerprint: str | None,
) -> ReplayRequest:
    """What would be committed after ``prompt``, if it is ``tokens``: the whole output in one replay, uncached."""
    question = Question(pack_tokens([*prompt, *tokens[:-1]]), len(prompt) - 1, selection, adapter=adapter)
    return ReplayRequest(request_id, question, fingerprint, fresh=True)

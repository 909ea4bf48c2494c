"""The heart: decode, verify, commit, roll back. Pure Python, no I/O; imports no ray, vllm or torch.

Read in this order: :mod:`grid` (where a position is computed), :mod:`messages` (what a verifier is asked and
answers), :mod:`selection` and :mod:`steering` (how a token is chosen), :mod:`session` (one request's life),
:mod:`cadence` and :mod:`doubt` (when to verify).
"""

from llm42.protocol.actions import Action, Commit, Finish, StartDraft, StopDraft, Verify
from llm42.protocol.cadence import VerifyCadence
from llm42.protocol.doubt import Doubt
from llm42.protocol.grid import ReplayGrid
from llm42.protocol.messages import Haste, Question, ReplayReply, ReplayRequest, Scores, pack_tokens, unpack_tokens
from llm42.protocol.selection import GREEDY, Selection
from llm42.protocol.session import Session, SessionStats, StopRules
from llm42.protocol.steering import Grammar, Steering

__all__ = [
    "GREEDY",
    "Action",
    "Commit",
    "Doubt",
    "Finish",
    "Grammar",
    "Haste",
    "Question",
    "ReplayGrid",
    "ReplayReply",
    "ReplayRequest",
    "Scores",
    "Selection",
    "Session",
    "SessionStats",
    "StartDraft",
    "Steering",
    "StopDraft",
    "StopRules",
    "Verify",
    "VerifyCadence",
    "pack_tokens",
    "unpack_tokens",
]

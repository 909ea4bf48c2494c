"""The heart: decode, verify, commit, roll back. Pure Python, no I/O; imports no ray, vllm or torch.

Read in this order: :mod:`grid` (where a position is computed), :mod:`messages` (what a verifier is asked and
answers), :mod:`selection` (how a token is chosen), :mod:`session` (one request's life), :mod:`cadence` (when to
verify).
"""

from llm42.protocol.actions import Action, Commit, Finish, StartDraft, StopDraft, Verify
from llm42.protocol.cadence import VerifyCadence
from llm42.protocol.grid import ReplayGrid
from llm42.protocol.messages import ReplayReply, ReplayRequest, pack_tokens, token_digest, unpack_tokens
from llm42.protocol.selection import GREEDY, Selection
from llm42.protocol.session import Session, SessionStats, StopRules

__all__ = [
    "GREEDY",
    "Action",
    "Commit",
    "Finish",
    "ReplayGrid",
    "ReplayReply",
    "ReplayRequest",
    "Selection",
    "Session",
    "SessionStats",
    "StartDraft",
    "StopDraft",
    "StopRules",
    "Verify",
    "VerifyCadence",
    "pack_tokens",
    "token_digest",
    "unpack_tokens",
]

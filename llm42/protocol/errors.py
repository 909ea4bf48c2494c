"""Why a verifier did not answer. Plain and picklable: they cross process boundaries as they are."""

from typing import Self


class NotVerified(ValueError):
    """A request asks for what no verifier computes; ``param`` names the parameter."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ReplayError(Exception):
    """Base of all that a verifier raises to its caller; ``replica_id`` says which one, and ``fingerprint`` what it
    computes as, where it knows."""

    def __init__(self, message: str, replica_id: str = "", fingerprint: str = "") -> None:
        super().__init__(message, replica_id, fingerprint)  # all of them: they are what is pickled
        self.replica_id = replica_id
        self.fingerprint = fingerprint

    def __str__(self) -> str:
        return str(self.args[0])

    def named(self, replica_id: str, fingerprint: str) -> Self:
        """The same, from that verifier."""
        return type(self)(str(self), replica_id, fingerprint)


class ReplayRefused(ReplayError):
    """The request itself cannot be served: never retry."""


class GrammarRefused(ReplayRefused):
    """What the output has to be cannot be enforced."""


class VerifierBusy(ReplayError):
    """This verifier's queue is full: try another, or later."""


class FingerprintMismatch(ReplayError):
    """This verifier computes other bits than the caller builds on, or has not what it asks for: ask another pool."""


class ReplayImpossible(ReplayError):
    """The model computes no usable logits for this request (NaN, infinity): never retry where two verifiers say so."""


class ReplayFailed(ReplayError):
    """The replay was tried and gave no trustworthy answer."""

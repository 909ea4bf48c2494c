"""Why a verifier did not answer. Plain and picklable: they cross process boundaries as they are."""


class ReplayError(Exception):
    """Base of all that a verifier raises to its caller."""


class ReplayRefused(ReplayError):
    """The request itself cannot be served: never retry."""


class VerifierBusy(ReplayError):
    """This verifier's queue is full: try another, or later."""


class FingerprintMismatch(ReplayError):
    """This verifier computes other bits than the caller builds on: ask another pool."""


class ReplayImpossible(ReplayError):
    """The model computes no usable logits for this request (NaN, infinity): never retry."""


class ReplayFailed(ReplayError):
    """The replay was tried and gave no trustworthy answer."""

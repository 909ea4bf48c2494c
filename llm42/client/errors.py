"""Why a batch cannot be begun or finished. ``str()`` of each says why and what to do."""


class BatchError(Exception):
    """The batch stops here. What was answered before stays in its output."""


class InputError(BatchError):
    """The requests are not usable; nothing was sent."""


class OutputError(BatchError):
    """The output file is not this batch's, or cannot be written."""


class FingerprintError(BatchError):
    """The verifiers compute with another fingerprint than the batch: their answers cannot stand side by side."""


class UnverifiedError(BatchError):
    """The server gave an answer that it does not call verified."""

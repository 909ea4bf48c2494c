"""What stops a run."""


class BenchError(Exception):
    """It cannot go on; the message says why, and what to do."""

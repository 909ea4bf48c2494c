"""Serve's log files, which vLLM would close.

Relies on vLLM 0.32.0 setting up its logging with ``logging.config.dictConfig``, which shuts down every handler that
``logging._handlerList`` (CPython 3.11, 3.12) holds; and on Ray Serve 2.60.0, whose logger ``ray.serve`` has a
``MemoryHandler`` in front of its file: once shut down, that has forgotten the file, and drops what it is given.
"""

import logging


def keep_log_files() -> None:
    """What this replica logs is to reach its file also when vLLM has started. Call it before."""
    keep = logging.getLogger("ray.serve").handlers
    # Nobody else needs them there: Serve's handlers flush each record, unless Serve is told to buffer them.
    logging._handlerList[:] = [ref for ref in logging._handlerList if ref() not in keep]  # type: ignore[attr-defined]

"""Where a request goes that may go on where it was before. One policy, for routers and for plans."""

PREFER_SLACK = 4
"""How many more requests the engine that has it in its prefix cache may have: that is worth so much."""


def stays(preferred: int, least: int) -> bool:
    """Whether it goes on at the engine it had before, with ``preferred`` requests, or at the one with the ``least``."""
    return preferred <= least + PREFER_SLACK

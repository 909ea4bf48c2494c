"""What determinism costs: the same load on our deployment and on plain vLLM, interleaved in one run.

Edge code: nothing of the system imports it. Needs the extra ``bench``. Systems are started as a user would start them,
and spoken to over HTTP; only :mod:`llm42.bench.calibrate_worker` loads engines by itself.
"""

NEEDED = ("aiohttp", "matplotlib", "numpy", "psutil")
"""The extra ``bench``."""

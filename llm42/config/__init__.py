"""The configuration of a deployment: one frozen model, read from ``args`` in the Serve YAML.

Only what can be judged without loading a model is judged here; what needs the model or the machine is
judged by :mod:`llm42.preflight` before a replica starts.
"""

from llm42.config.deployment import DEFAULT_VERIFY_BATCH_SIZE, RUN_AHEAD_WINDOWS, Config, read_config
from llm42.config.frozen import Frozen, wrong_fields
from llm42.config.pools import Autoscaling, FastPath, FastPathAutoscaling, Pool, Verifier, VerifierAutoscaling
from llm42.config.serving import Audit, Cadence, Quota, Router, Timeouts, Traces

__all__ = [
    "DEFAULT_VERIFY_BATCH_SIZE",
    "RUN_AHEAD_WINDOWS",
    "Audit",
    "Autoscaling",
    "Cadence",
    "Config",
    "FastPath",
    "FastPathAutoscaling",
    "Frozen",
    "Pool",
    "Quota",
    "Router",
    "Timeouts",
    "Traces",
    "Verifier",
    "VerifierAutoscaling",
    "read_config",
    "wrong_fields",
]

"""The catalogue: every metric, declared once beside what it measures; and the objects that the parts report to.

Exported through ``ray.serve.metrics``: on each node's metrics port as ``ray_llm42_…`` with Serve's own labels
(application, deployment, replica). Counters get ``_total`` there. Nothing of a prompt is ever a label.
"""

from llm42.metrics.catalogue import BY_PART, CATALOGUE, FOREIGN
from llm42.metrics.fastpath import FastPathMetrics
from llm42.metrics.metric import Counter, Gauge, Histogram, Metric
from llm42.metrics.reporter import Reporter
from llm42.metrics.router import RouterMetrics
from llm42.metrics.verifier import VerifierMetrics

__all__ = [
    "BY_PART",
    "CATALOGUE",
    "FOREIGN",
    "Counter",
    "FastPathMetrics",
    "Gauge",
    "Histogram",
    "Metric",
    "Reporter",
    "RouterMetrics",
    "VerifierMetrics",
]

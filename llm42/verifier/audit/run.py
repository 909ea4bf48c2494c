"""The audit: each pass changes many things at once; only if something moved, a second series finds out what."""

import time
from collections.abc import Callable

from llm42.verifier.audit.cached import CacheAudit
from llm42.verifier.audit.isolate import Isolation, differs
from llm42.verifier.audit.probes import Level, Probes
from llm42.verifier.audit.report import AuditFailed, AuditReport, Failure, Property, remedies
from llm42.verifier.audit.rig import Rig
from llm42.verifier.model import ReplayModel


def audit(model: ReplayModel, level: Level = "quick", on_pass: Callable[[], None] = lambda: None) -> AuditReport:
    """Audit a model that nobody uses yet, and block meanwhile. ``on_pass`` is called before each pass.

    Raises :class:`AuditFailed`, and whatever a pass raises.
    """
    began, passes = time.perf_counter(), 0

    def count() -> None:
        nonlocal passes
        passes += 1
        on_pass()

    comparisons, failures = _digests(model, level, count)
    if not failures:
        cached = CacheAudit(model, count)
        failures = [failure] if (failure := cached.failure()) else []
        comparisons += cached.comparisons
    if failures:
        dtype, threads = model.parts["dtype"], model.parts["threads"]
        raise AuditFailed(failures, remedies(failures, on_cpu=model.on_cpu, dtype=dtype, threads=threads))
    checked = tuple(checked for checked in Property if checked != Property.ROW or model.shape.rows > 1)
    return AuditReport(level, checked, passes, comparisons, time.perf_counter() - began)


def _digests(model: ReplayModel, level: Level, on_pass: Callable[[], None]) -> tuple[int, list[Failure]]:
    """How many slots were compared, and what failed."""
    probes = Probes(model.shape, model.vocabulary, level, model.adapters)
    rig = Rig(model, probes.windows, on_pass)
    reference: dict[int, list[bytes]] = {}
    comparisons = 0
    # At the end the first again: by then whatever a kernel keeps between calls has been used.
    for given in [*probes.references(), *probes.rounds(), *probes.references()]:
        digests = rig.run(given)
        for row, probe in given.targets():
            if differs(reference.setdefault(probe.target, digests[row]), digests[row], probe.known) is not None:
                return comparisons, Isolation(rig, probes, given, row).failures()
            comparisons += probe.known
    return comparisons, []

"""Two passes disagree: which property is it? Each pass here changes one thing only."""

from collections.abc import Iterator
from dataclasses import replace

from llm42.verifier.audit.probes import TAILS, Probe, Probes, Round
from llm42.verifier.audit.report import Failure, Property
from llm42.verifier.audit.rig import Rig

REPEATS = 6
"""Of the same two passes, before they count as repeatable."""


def differs(a: list[bytes], b: list[bytes], known: int) -> int | None:
    """The first of the ``known`` slots that both were asked for and whose bits differ."""
    return next((slot for slot in range(known) if a[slot] and b[slot] and a[slot] != b[slot]), None)


class Isolation:
    """``found``: the round, and the row in it, whose target came out otherwise than in the reference."""

    def __init__(self, rig: Rig, probes: Probes, found: Round, row: int) -> None:
        probe = found.rows[row]
        assert probe is not None
        self._rig, self._probes = rig, probes
        self._found, self._row, self._probe = found, row, probe
        self._target = probes.targets[probe.target]

    def failures(self) -> list[Failure]:
        """All properties that are violated; never empty."""
        # What is not repeatable cannot be told apart any further.
        if found := next(self._not_repeatable(), None):
            return [found]
        checks = (self._depends_on_tail(), self._depends_on_row(), self._depends_on_place())
        failures = [failure for check in checks if (failure := next(check, None))]
        return failures or [self._only_together()]

    def _not_repeatable(self) -> Iterator[Failure]:
        rounds = (self._found, *self._probes.references())
        first = [self._rig.run(given) for given in rounds]
        for _ in range(REPEATS):
            for given, before in zip(rounds, first, strict=True):
                again = self._rig.run(given)
                for row, probe in given.targets():
                    if (slot := differs(before[row], again[row], probe.known)) is not None:
                        where = f"a pass repeated with nothing changed differed in {self._place(probe, row, slot)}"
                        yield Failure(Property.REPEATABLE, where)

    def _depends_on_tail(self) -> Iterator[Failure]:
        others = [self._probes.disturbed(self._probe.target, 1, tail) for tail in TAILS[:2]]
        for given in self._company():
            whole = self._rig.run(self._beside(given, self._target))[self._row]
            for probe in [self._probe, *others]:
                # All slots, so that nothing moves in the LM head.
                changed = self._rig.run(self._beside(given, replace(probe, first=0, heard=self._window)))[self._row]
                if (slot := differs(whole, changed, probe.known)) is not None:
                    where = (
                        f"{self._place(probe, self._row, slot)} changed when the slots from {probe.known} on became "
                        f"{probe.tail}, beside {given.neighbours}"
                    )
                    yield Failure(Property.TAIL, where)

    def _depends_on_row(self) -> Iterator[Failure]:
        rows = len(self._found.rows)
        first = self._rig.run(self._probes.alone(self._target, 0))[0] if rows > 1 else []
        for row in range(1, rows):
            there = self._rig.run(self._probes.alone(self._target, row))[row]
            if (slot := differs(first, there, self._window)) is not None:
                where = (
                    f"{self._place(self._target, row, slot)} differed from row 0, with padding in all other rows: "
                    "it depends on the row's index"
                )
                yield Failure(Property.ROW, where)
        alone, *company = self._company()
        reference = self._rig.run(self._beside(alone, self._target))[self._row]
        for given in company:
            changed = self._rig.run(self._beside(given, self._target))[self._row]
            if (slot := differs(reference, changed, self._window)) is not None:
                where = (
                    f"{self._place(self._target, self._row, slot)} changed when the other rows became "
                    f"{given.neighbours} instead of padding"
                )
                yield Failure(Property.ROW, where)

    def _depends_on_place(self) -> Iterator[Failure]:
        """One slot alone, the first or the last, here and there in the LM head."""
        for slot in sorted({0, self._window - 1}) if len(self._found.rows) > 1 else ():
            alone = self._probes.alone(replace(self._target, first=slot, known=slot + 1), self._row)
            reference = self._rig.run(alone)[self._row]
            for lead in sorted({1, self._window // 2, self._window - 1}):
                there = self._rig.run(replace(alone, lead=lead))[self._row]
                if differs(reference, there, slot + 1) is not None:
                    where = (
                        f"{self._place(self._target, self._row, slot)} changed when it stood {lead} further on "
                        "in the LM head"
                    )
                    yield Failure(Property.ROW, where)

    def _company(self) -> list[Round]:
        """Nobody but padding, then the neighbours of the round, then all others."""
        nobody = self._probes.alone(self._target, self._row)
        return [nobody, self._found, *self._probes.rounds()] if len(self._found.rows) > 1 else [nobody]

    def _beside(self, given: Round, probe: Probe) -> Round:
        rows = list(given.rows)
        rows[self._row] = probe
        return replace(given, rows=tuple(rows))

    def _only_together(self) -> Failure:
        several = len(self._found.rows) > 1
        where = (
            f"{self._place(self._probe, self._row, 0)} with the slots from {self._probe.known} on replaced by "
            f"{self._probe.tail}, beside {self._found.neighbours}, also in the LM head; changing one moved nothing"
        )
        return Failure(Property.ROW if several else Property.TAIL, where)

    @property
    def _window(self) -> int:
        return len(self._target.tokens)

    def _place(self, probe: Probe, row: int, slot: int) -> str:
        adapter = f" with adapter {probe.adapter!r}" if probe.adapter else ""
        return (
            f"row {row}, slot {slot} of window {probe.window} (context {probe.window * self._window} tokens){adapter}"
        )

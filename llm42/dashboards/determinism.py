"""Is it holding? And how far can drafts be trusted?"""

from functools import partial

from llm42.dashboards.colours import BAD, CALM, GOOD, WARNING
from llm42.dashboards.panel import Dashboard, Panel, Query, Row, stat
from llm42.dashboards.promql import each, in_range, matching, quantiles, rate, ratio, value
from llm42.metrics import router, verifier

_SHORT = '"short", "$1", "fingerprint", "(.{12}).*"'

_HOLDING = Row(
    "Is it holding?",
    (
        stat(
            "Audit mismatches",
            "Answers that their replay did not confirm, in the time shown. Anything but 0: determinism is broken.",
            "none",
            in_range(router.AUDITS, outcome="mismatch"),
            "mismatches",
            base=GOOD,
            steps=((1, BAD),),
        ),
        stat(
            "Unverified tokens sent",
            "Tokens of deterministic requests that left beyond what was committed, counted at the exit. Always 0.",
            "none",
            in_range(router.UNVERIFIED),
            "tokens",
            base=GOOD,
            steps=((1, BAD),),
        ),
        stat(
            "Answers audited",
            "Answers that were replayed again, by another verifier where there is one, and confirmed bit for bit.",
            "none",
            in_range(router.AUDITS, outcome="confirmed"),
            "answers",
            base=CALM,
            decimals=0,
        ),
        stat(
            "Fingerprints",
            "What verifiers compute as. One for each application; two while a deploy changes it.",
            "none",
            f"count(count by (fingerprint) ({matching(verifier.FINGERPRINT)}))",
            "fingerprints",
            base=GOOD,
            steps=((2, WARNING),),
        ),
        stat(
            "Verifiers refused",
            "Verifiers that were not let in: their kernels failed the start-up audit, or they compute as another pool.",
            "none",
            in_range(verifier.REFUSED),
            "verifiers",
            base=GOOD,
            steps=((1, WARNING),),
        ),
        stat(
            "Unverifiable requests",
            "Share of the deterministic requests that found no verifier (503). They fail; they are never answered "
            "unverified.",
            "percentunit",
            ratio(
                rate(router.REQUESTS, mode="deterministic", outcome="unverifiable"),
                rate(router.REQUESTS, mode="deterministic"),
            ),
            "unverifiable",
            base=GOOD,
            steps=((0.001, WARNING), (0.01, BAD)),
        ),
        Panel(
            "Audits",
            "Finished answers that were replayed again (audit.share). Skipped ones are too many at once; unanswered "
            "ones found no verifier.",
            "ops",
            each(router.AUDITS, "outcome", rate),
            stack="normal",
        ),
        Panel(
            "Verifiers by fingerprint",
            "How many verifiers compute as what: the first twelve digits of the fingerprint, as clients see it in "
            "system_fingerprint.",
            "none",
            (Query(f"count by (short) (label_replace({matching(verifier.FINGERPRINT)}, {_SHORT}))", "{{short}}"),),
            stack="normal",
        ),
        Panel(
            "Deterministic requests by outcome",
            "How deterministic requests ended. stopped: by a stop string, or the client left.",
            "reqps",
            each(router.REQUESTS, "outcome", partial(rate, mode="deterministic")),
            stack="normal",
        ),
    ),
)

_DRAFTS = Row(
    "How far can drafts be trusted?",
    (
        Panel(
            "Acceptance",
            "Of the drafted tokens that were replayed, those that the replay confirmed; of all drafted ones, those "
            "that rollbacks threw away, and those drafted again for that. Costs time, never changes an answer.",
            "percentunit",
            (
                Query(ratio(rate(router.ACCEPTED), rate(router.VERIFIED)), "accepted"),
                Query(ratio(rate(router.ROLLED_BACK), rate(router.DRAFTED)), "rolled back"),
                Query(ratio(rate(router.RECOMPUTED), rate(router.DRAFTED)), "recomputed"),
            ),
        ),
        Panel(
            "Rollbacks for 1,000 tokens",
            "Rollbacks for each thousand committed tokens.",
            "none",
            (Query(f"1000 * {ratio(rate(router.ROLLBACKS), rate(router.COMMITTED))}", "rolled back"),),
        ),
        Panel(
            "Tokens",
            "What becomes of drafted tokens, a second. Committed ones include those that verifiers chose themselves.",
            "ops",
            (
                Query(rate(router.DRAFTED), "drafted"),
                Query(rate(router.VERIFIED), "verified"),
                Query(rate(router.COMMITTED), "committed"),
                Query(rate(router.ROLLED_BACK), "rolled back"),
                Query(rate(router.RECOMPUTED), "recomputed"),
            ),
        ),
        Panel(
            "Consistent spans",
            "Tokens committed from the start or a rollback up to the next rollback, or to the end of the request.",
            "none",
            (
                Query(
                    f"sum by (le) (increase({matching(router.SPAN, '_bucket')}[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
            kind="heatmap",
        ),
        Panel(
            "Consistent spans that ended in a rollback",
            "How many tokens a draft holds before it goes wrong, where it does.",
            "none",
            quantiles(router.SPAN, (0.1, 0.5, 0.9), end="rollback"),
        ),
        Panel(
            "Run-ahead",
            "How many tokens drafts are ahead of what is committed when a replay is sent. At the limit (run_ahead), "
            "verifiers are the bottleneck.",
            "none",
            quantiles(router.RUN_AHEAD, (0.5, 0.95)),
        ),
        Panel(
            "Age of uncommitted tokens",
            "How long drafted tokens wait for their commit: at each commit, that of the oldest; and of the oldest that "
            "waits now, in any router.",
            "s",
            (
                *quantiles(router.AGE, (0.5, 0.95)),
                Query(value(router.OLDEST, how="max"), "oldest now"),
            ),
            width=24,
        ),
    ),
)

DETERMINISM = Dashboard(
    "llm42-determinism",
    "LLM-42 / Determinism",
    "Is determinism holding, and how far can drafts be trusted?",
    (_HOLDING, _DRAFTS),
)

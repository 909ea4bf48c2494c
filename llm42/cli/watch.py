"""Print how a Serve application comes up: ``python -m llm42.cli.watch ADDRESS``.

A process of its own, so that the launcher holds no connection to Ray. One line per change; exits with 0 when
every application runs and with 1, and Serve's reason, when one cannot.
"""

import sys
import time
from typing import Any

POLL_S = 1.0
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


def main(address: str) -> int:
    import ray
    from ray import serve

    started = time.monotonic()
    ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
    seen: dict[str, str] = {}
    while True:
        applications = serve.status().applications
        for line in changes(applications, seen):
            print(f"  {time.monotonic() - started:4.0f} s  {line}", flush=True)
        if any(application.status in FAILED for application in applications.values()):
            return 1
        if applications and all(application.status == "RUNNING" for application in applications.values()):
            return 0
        time.sleep(POLL_S)


def changes(applications: dict[str, Any], seen: dict[str, str]) -> list[str]:
    """What to print now that has not been printed before; remembered in ``seen``."""
    lines = []
    for name, application in applications.items():
        parts = {name: f"{application.status.value} {_brief(application.message)}".strip()}
        for deployment, overview in application.deployments.items():
            states = ", ".join(f"{count} {state.lower()}" for state, count in overview.replica_states.items())
            parts[f"{name}/{deployment}"] = f"{states or 'waiting'} {_brief(overview.message)}".strip()
        for key, text in parts.items():
            if seen.get(key) != text:
                seen[key] = text
                lines.append(f"{key}: {text}")
    return lines


def _brief(message: str) -> str:
    """Serve's messages end in a whole traceback; what it is about stands in the first line and the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ... ".join(lines[:1] + lines[1:][-1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

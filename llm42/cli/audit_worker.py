"""The process that ``llm42 audit`` follows: ``python -m llm42.cli.audit_worker CONFIG_AS_JSON``.

Stdout has one JSON value in a line: the number of passes so far, in the end an object. All else goes to stderr. It
must be started in the environment of a verifier (:func:`llm42.verifier.settings.verifier_env`).
"""

import json
import os
import sys
from itertools import count
from typing import Any

from llm42.config import Config


def main(config: Config) -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to stdout
    import torch

    from llm42.verifier.settings import verifier_env

    os.environ.update(verifier_env(config, gpu=torch.cuda.is_available()))
    from llm42.models import resolve_model
    from llm42.preflight import require_adapters, require_servable
    from llm42.verifier.audit.report import AuditFailed
    from llm42.verifier.audit.run import audit
    from llm42.verifier.model import ReplayModel

    path = resolve_model(config.model)
    require_servable(config, path)
    require_adapters(config)
    model, passes = ReplayModel(config, path), count(1)

    def say(value: Any) -> None:
        print(json.dumps(value), file=lines)

    try:
        report = audit(model, config.audit.start, on_pass=lambda: say(next(passes)))
    except AuditFailed as failed:
        failures = [failure.as_json() for failure in failed.failures]
        say({"holds": False, "level": config.audit.start, "failures": failures, "remedies": failed.remedies})
    else:
        say({"holds": True, **report.as_json()})


if __name__ == "__main__":
    main(Config.model_validate_json(sys.argv[1]))

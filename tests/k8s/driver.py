"""The dashboard's part of a deploy, in a process that has the cluster's token: ``python -m tests.k8s.driver …``.

Applies the Serve configuration that comes on stdin, if one does, and waits until the application has the status.
"""

import json
import sys
import time
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

POLL_S = 0.5


def main(address: str, node_ip: str, status: str, timeout_s: str, config: dict[str, Any] | None) -> None:
    ray.init(address=address, _node_ip_address=node_ip, namespace="serve", log_to_driver=False)
    if config is not None:
        schema = ServeDeploySchema.model_validate(config)
        serve.start(proxy_location=schema.proxy_location, http_options=schema.http_options.model_dump())
        _get_global_client().deploy_apps(schema)
    deadline = time.monotonic() + float(timeout_s)
    while True:
        app = serve.status().applications["llm42"]
        # Serve says DEPLOYING while it builds too: a build that was refused has no deployments.
        if app.deployments and app.status == status:
            return
        if app.status == "DEPLOY_FAILED" or time.monotonic() > deadline:
            sys.exit(f"the application is {app.status}, not {status}: {app}")
        time.sleep(POLL_S)


if __name__ == "__main__":
    text = sys.stdin.read()
    main(*sys.argv[1:], json.loads(text) if text else None)

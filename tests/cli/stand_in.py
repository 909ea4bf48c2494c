"""A Serve application without models, which the launcher cannot tell from ours."""

import os
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

api = FastAPI()


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Engine:
    def __init__(self, fail: bool) -> None:
        if fail:
            raise RuntimeError("no such weights")


@serve.deployment(ray_actor_options={"num_cpus": 0})
@serve.ingress(api)
class Router:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    @api.get("/health")
    def health(self) -> None:
        return None

    @api.get("/v1/models")
    def models(self) -> dict[str, Any]:
        return {"data": [{"id": "stand-in"}]}

    @api.get("/environment")
    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def build(args: dict[str, bool]) -> Application:
    return Router.bind(Engine.bind(args["fail"]))  # type: ignore[attr-defined]

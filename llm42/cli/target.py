"""What the launcher has to know about a Serve configuration before it starts anything."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm42.config import Config, read_config
from llm42.environment import OFFLINE_ENV
from llm42.router.keys import read_keys

APPLICATION = "llm42.app:build"
LOOPBACK = "127.0.0.1"
SERVE_PORT = 8000
PREPARED_MODELS = ("demo", "tiny")

# No process calls home. A variable that the user has set wins over ours.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Ray replaces 127.0.0.1 by the address of a network interface unless told that this is a single machine.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_COLOR_PREFIX": "0",
}


@dataclass(frozen=True)
class Target:
    """Where the first application of a configuration will answer, and the configurations of ours."""

    port: int
    prefix: str
    configs: tuple[Config, ...]

    @classmethod
    def read(cls, config: Path) -> "Target":
        """Read a configuration.

        Raises:
            ValueError: it is not a Serve configuration, or the args of our application are not valid.
        """
        try:
            document: dict[str, Any] = yaml.safe_load(config.read_text())
            applications: list[dict[str, Any]] = document["applications"]
            configs = tuple(
                read_config(application.get("args") or {})
                for application in applications
                if application["import_path"] == APPLICATION
            )
            prefix = str(applications[0].get("route_prefix", "/")).rstrip("/")
            port = int((document.get("http_options") or {}).get("port", SERVE_PORT))
        except ValueError as error:
            raise ValueError(f"{config}: {error}") from None
        except (yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{config} is not a Serve configuration: {error!r}") from None
        return cls(port, prefix, configs)

    @property
    def models(self) -> list[str]:
        """Those that our applications need."""
        return [config.model for config in self.configs]

    @property
    def url(self) -> str:
        """Of the application, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.port}{self.prefix}"

    @property
    def key(self) -> str | None:
        """An API key that the application takes; None: it asks for none. Raises ValueError if it cannot be had."""
        keys = read_keys(self.configs[0].router, os.environ) if self.configs else ()
        return keys[0] if keys else None

    def environment(self) -> dict[str, str]:
        """Ours, with telemetry off, and with the model hub off too unless a model comes from there."""
        local = all(model in PREPARED_MODELS or Path(model).is_dir() for model in self.models)
        env = {**QUIET, **(OFFLINE_ENV if local else {}), **os.environ}
        env.pop("RAY_ADDRESS", None)  # It names another cluster than the one we start.
        return env

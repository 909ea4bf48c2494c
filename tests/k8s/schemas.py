"""Objects against schemas, as strictly as an API server that is asked for strict field validation.

Not judged are the rules in a schema's ``x-kubernetes-validations``, and what an operator judges after the server.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

CRD_DIR = "LLM42_CRD_DIR"
"""Environment variable: directory with the schemas of the custom resources. docs/kubernetes.md says how to get them."""

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": _TEXTS,
        "annotations": _TEXTS,
    },
    "required": ["name"],
    "additionalProperties": False,
}


def _strict(schema: Any) -> Any:
    """An equal schema in which objects are closed: fields that no schema names are refused."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    schema = {key: _strict(value) for key, value in schema.items()}
    properties = schema.get("properties")
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if isinstance(properties, dict) and not open_ended:
        schema.setdefault("additionalProperties", False)
    if isinstance(schema.get("required"), list) and isinstance(properties, dict):
        # The server fills in defaults first.
        schema["required"] = [name for name in schema["required"] if "default" not in properties.get(name, {})]
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


@cache
def _custom_kinds() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    """By apiVersion and kind."""
    directory = os.environ.get(CRD_DIR)
    if not directory:
        pytest.skip(f"{CRD_DIR} is not set: no schemas of custom resources to judge by")
    found = {}
    for path in Path(directory).glob("*.json"):
        kind = json.loads(path.read_text())
        for version in kind["versions"]:
            schema = _strict(version["openAPIV3Schema"])
            schema["properties"]["metadata"] = _METADATA
            found[f"{kind['group']}/{version['name']}", kind["kind"]] = jsonschema.Draft202012Validator(schema)
    return found


def is_custom(thing: dict[str, Any]) -> bool:
    return thing["apiVersion"].startswith(("ray.io/", "monitoring.coreos.com/"))


def faults(thing: dict[str, Any]) -> list[str]:
    """What is wrong with it; empty if nothing. Skips the test where a custom kind's schema is not to be had."""
    if is_custom(thing):
        validator = _custom_kinds().get((thing["apiVersion"], thing["kind"]))
        if validator is None:
            pytest.skip(f"{CRD_DIR} has no schema of {thing['kind']}")
        return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(thing)]
    try:
        kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message[:200]}"]
    return []

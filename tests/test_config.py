"""bad_input: a wrong configuration is refused at start, by field, value and remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from llm42.adapters import adapters_of
from llm42.config import Config
from llm42.internals.adapters import adapter_engine_args
from llm42.preflight import require_adapters, require_servable
from llm42.resources import require_resources


@pytest.mark.parametrize(("written", "means"), [(False, "off"), (True, "on"), ("seeded", "seeded"), ("off", "off")])
def test_yaml_switches(written: object, means: str) -> None:
    assert Config.model_validate({"determinism": written}).determinism == means


@pytest.mark.parametrize(
    ("args", "field", "remedy"),
    [
        ({"window": 32}, "window", "not permitted"),
        ({"window_size": 0}, "window_size", "greater than or equal to 1"),
        ({"window_size": "big"}, "window_size", "valid integer"),
        ({"determinism": "maybe"}, "determinism", "'off', 'seeded' or 'on'"),
        ({"dtype": "int8"}, "dtype", "'bfloat16'"),
        ({"fast_path": {"replicas": 0}}, "replicas", "greater than or equal to 1"),
        ({"timeouts": {"replay_s": -1}}, "replay_s", "greater than 0"),
        ({"strict": True, "verify_batch_size": 4}, "verify_batch_size is 4", "set it to 1"),
        ({"run_ahead": 8}, "run_ahead is 8", "at least 32"),
        ({"max_model_len": 16}, "max_model_len is 16", "raise it"),
        ({"timeouts": {"replay_s": 10, "verify_s": 5}}, "verify_s is 5", "at least as long"),
        ({"verifier": {"engine": {"max_num_seqs": 2}}}, "max_num_seqs is 2", "at least 4"),
        ({"verifier": {"engine": {"max_num_batched_tokens": 100}}}, "max_num_batched_tokens is 100", "at least 128"),
        ({"verifier": {"engine": {"dtype": "half"}}}, "verifier.engine must not set dtype", "top of the configuration"),
        ({"fast_path": {"engine": {"max_model_len": 64}}}, "must not set max_model_len", "top of the configuration"),
        ({"router": {"arguments": ["--max_model_len=9"]}}, "must not set --max-model-len", "a field for it"),
        ({"router": {"arguments": ["--fingerprint-val=x"]}}, "must not set --fingerprint-value", "the router needs it"),
        ({"router": {"arguments": ["--api-k=secret"]}}, "must not set --api-key", "router.api_keys_file"),
        ({"router": {"arguments": ["--api-key", "secret"]}}, "must not set --api-key", "router.api_keys_file"),
        ({"router": {"arguments": ["--api_key=secret"]}}, "must not set --api-key", "router.api_keys_file"),
        ({"router": {"api_keys_file": ""}}, "api_keys_file", "at least 1"),
        ({"router": {"quota": {"deterministic_requests": 0}}}, "deterministic_requests", "greater than or equal to 1"),
        ({"router": {"quota": {"requests": 4}}}, "quota.requests", "not permitted"),
        ({"traces": {"endpoint": "collector:4318"}}, "endpoint is 'collector:4318'", "http://collector:4318"),
        ({"traces": {"endpoint": "http://c:4318/v1/traces"}}, "endpoint is", "without a path"),
        ({"traces": {"protocol": "http"}}, "traces.protocol", "'http/protobuf' or 'grpc'"),
        ({"adapters": {"": "/a"}}, "adapters is {'': '/a'}", "each needs a name"),
        ({"adapters": {"a": ""}}, "adapters is {'a': ''}", "a directory or hub id"),
        ({"adapters": {"demo": "/a"}}, "the model's own name", "give the adapter another"),
        ({"served_model_name": "m", "adapters": {"m": "/a"}}, "adapters has 'm'", "give the adapter another"),
        ({"verifier": {"engine": {"enable_lora": True}}}, "verifier.engine must not set enable_lora", "`adapters`"),
        ({"fast_path": {"engine": {"max_loras": 9}}}, "fast_path.engine must not set max_loras", "`adapters`"),
        ({"router": {"arguments": ["--lora-modules"]}}, "must not set --lora-modules", "a field for it"),
        ({"verifier": {"autoscaling": {}}}, "verifier.autoscaling.max_replicas", "Field required"),
        ({"verifier": {"autoscaling": {"max_replicas": 0}}}, "max_replicas", "greater than or equal to 1"),
        ({"verifier": {"autoscaling": {"min_replicas": 0, "max_replicas": 2}}}, "min_replicas", "or equal to 1"),
        ({"verifier": {"autoscaling": {"min_replicas": 3, "max_replicas": 2}}}, "max_replicas is 2", "raise the one"),
        (
            {"verifier": {"replicas": 2, "autoscaling": {"max_replicas": 2}}},
            "replicas is 2, but autoscaling is set too",
            "leave one of them out",
        ),
        ({"fast_path": {"replicas": 1, "autoscaling": {"max_replicas": 2}}}, "replicas is 1", "leave one of them out"),
        ({"fast_path": {"autoscaling": {"max_replicas": 2, "target_wait_s": 1}}}, "target_wait_s", "not permitted"),
        ({"verifier": {"autoscaling": {"max_replicas": 2, "target_requests": 1}}}, "target_requests", "not permitted"),
        ({"verifier": {"autoscaling": {"max_replicas": 2, "target_wait_s": 0}}}, "target_wait_s", "greater than 0"),
        ({"router": {"autoscaling": {"max_replicas": 2}}}, "router.autoscaling", "not permitted"),
        ({"verifier": {"engine": {"block_size": 48}}}, "block_size is 48", "multiple of window_size 32"),
    ],
)
def test_wrong_values(args: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Config.model_validate(args)
    assert field in str(refused.value)
    assert remedy in str(refused.value)


def test_strict_is_one_row() -> None:
    assert Config(strict=True).verify_batch_size == 1
    assert Config.model_validate({"strict": True}).verify_batch_size == 1


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Config().window_size = 64  # type: ignore[misc]


LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}


def write(path: Any, config: str) -> str:
    (path / "config.json").write_text(config)
    return str(path)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"sliding_window": 4096}, "sliding window of 4096"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {"x": 1}}, "images"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_models_that_are_not_served(tmp_path: Any, extra: dict[str, Any], why: str) -> None:
    import json

    path = write(tmp_path, json.dumps({**LLAMA, **extra}))
    with pytest.raises(ValueError, match=f"(?s)cannot be served.*{why}"):
        require_servable(Config(model=path), path)


def test_models_and_lengths(tmp_path: Any) -> None:
    import json

    path = write(tmp_path, json.dumps({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}))
    require_servable(Config(model=path, max_model_len=2048), path)
    with pytest.raises(ValueError, match=r"max_model_len is 4096.*at most 2048"):
        require_servable(Config(model=path, max_model_len=4096), path)
    with pytest.raises(ValueError, match="no directory"):
        require_servable(Config(model="/nowhere/model"), "/nowhere/model")
    with pytest.raises(ValueError, match=r"no config\.json"):
        require_servable(Config(model=str(tmp_path.parent)), str(tmp_path.parent))


def test_adapters_that_are_none(tmp_path: Any) -> None:
    import json

    require_adapters(Config(adapters={"a": "somebody/adapter"}))
    with pytest.raises(ValueError, match=r"adapters\.a is '/nowhere/a', but there is no such directory"):
        require_adapters(Config(adapters={"a": "/nowhere/a"}))
    config = Config(adapters={"a": str(tmp_path)})
    with pytest.raises(ValueError, match=r"adapters\.a: .* is no LoRA adapter: it needs adapter_config\.json"):
        require_adapters(config)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "PREFIX_TUNING"}))
    with pytest.raises(ValueError, match=r"adapters\.a: .* has no rank `r`"):
        require_adapters(config)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 9, "rank_pattern": {"q_proj": 24}}))
    require_adapters(config)
    [adapter] = adapters_of(config)
    assert adapter_engine_args([adapter]) == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 1024}))
    with pytest.raises(ValueError, match="'a' has rank 1024, but vLLM serves at most 512"):
        adapter_engine_args([adapter])


def test_more_engines_than_resources() -> None:
    config = Config.model_validate({"fast_path": {"replicas": 2}, "verifier": {"replicas": 1}})
    require_resources(config, {"CPU": 3.0})
    with pytest.raises(ValueError, match="need 3 CPU, but Ray has found 2"):
        require_resources(config, {"CPU": 2.0})
    with pytest.raises(ValueError, match="need 3 GPU, but Ray has found 1"):
        require_resources(config, {"CPU": 64.0, "GPU": 1.0})

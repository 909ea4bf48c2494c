"""From a request, through vLLM's own frontend, to the grammar that the verifier enforces."""

import json
from typing import Any

import pytest

from llm42.protocol import Grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
EOS, OTHER_EOS = 2, 0


@pytest.fixture(scope="module")
def model_config(tiny_path: str) -> Any:
    from vllm.config import ModelConfig

    return ModelConfig(model=tiny_path, dtype="float32")


def admitted(
    model_config: Any,
    endpoint: str = "chat",
    server: dict[str, Any] | None = None,
    reasoning_ended: bool | None = None,
    **fields: Any,
) -> Any:
    """The parameters of one request as vLLM's frontend hands them to its core, the server's settings, and the rest."""
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.parser.parser_manager import ParserManager
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    settings = StructuredOutputsConfig(**(server or {}))
    if endpoint == "chat":
        request: Any = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], **fields)
        if request.tools:
            parser = ParserManager.get_parser(tool_parser_name="hermes", enable_auto_tools=True)
            assert parser is not None
            request = parser(tokenizer, request.tools, model_config=model_config).adjust_request(request)
    else:
        request = CompletionRequest(prompt="x", **fields)
    params = request.to_sampling_params(64, {})
    params.update_from_generation_config({"eos_token_id": [OTHER_EOS, EOS]}, EOS)
    params.verify(model_config, None, settings, tokenizer)
    return params, settings, reasoning_ended


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json",
            json.dumps(SCHEMA),
        ),
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"structured_outputs": {"json": SCHEMA}}, "json", json.dumps(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "grammar", 'root ::= "a" | "b"'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_grammars_of_requests(model_config: Any, endpoint: str, fields: dict[str, Any], kind: Any, text: str) -> None:
    from llm42.internals.structured import grammar_of

    assert grammar_of(*admitted(model_config, endpoint, **fields)) == Grammar(kind, text, stops=(OTHER_EOS, EOS))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_forced_tools_are_grammars(model_config: Any, choice: Any) -> None:
    """Which kind, its parser decides."""
    from llm42.internals.structured import grammar_of

    grammar = grammar_of(*admitted(model_config, tools=[FUNCTION], tool_choice=choice))
    assert grammar is not None
    assert json.loads(grammar.text)


def test_nothing_asked(model_config: Any) -> None:
    from llm42.internals.structured import grammar_of

    assert grammar_of(*admitted(model_config)) is None
    assert grammar_of(*admitted(model_config, response_format={"type": "text"}, ignore_eos=True)) is None


def test_whitespace(model_config: Any) -> None:
    from llm42.internals.structured import grammar_of

    def loose(server: dict[str, Any], **asked: Any) -> bool:
        found = grammar_of(*admitted(model_config, server=server, structured_outputs=asked))
        assert found is not None
        return found.any_whitespace

    tight = {"backend": "xgrammar", "disable_any_whitespace": True}
    assert loose({}, json=SCHEMA)
    assert not loose({}, json=SCHEMA, disable_any_whitespace=True)
    assert not loose(tight, json=SCHEMA)
    assert not loose(tight, json_object=True)
    assert loose(tight, regex="a+"), "a regex says itself where whitespace is"


@pytest.mark.parametrize(
    ("server", "fields", "reason"),
    [
        ({"reasoning_parser": "qwen3"}, {"structured_outputs": {"json": SCHEMA}}, "reasoning parser qwen3"),
        (
            {"reasoning_parser": "qwen3"},
            {"structured_outputs": {"json": SCHEMA}, "reasoning_ended": False},
            "reasoning parser qwen3",
        ),
        ({}, {"structured_outputs": {"json": {"type": "integer", "multipleOf": 3}}}, "the backend guidance"),
        ({"backend": "guidance"}, {"structured_outputs": {"json": SCHEMA}}, "the backend guidance"),
        ({}, {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, "whitespace_pattern"),
        ({}, {"structured_outputs": {"json": SCHEMA}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_not_verified(model_config: Any, server: dict[str, Any], fields: dict[str, Any], reason: str) -> None:
    from llm42.internals.structured import grammar_of

    with pytest.raises(ValueError, match=reason):
        grammar_of(*admitted(model_config, server=server, **fields))


@pytest.mark.parametrize(("enabled", "ended"), [(True, None), (False, True)])
def test_no_reasoning_before_the_grammar(model_config: Any, enabled: bool, ended: bool | None) -> None:
    """Where reasoning is constrained too, or there is none, the grammar begins with the output, as everywhere."""
    from vllm.v1.engine import EngineCoreRequest

    from llm42.internals.structured import grammar_of

    assert "reasoning_ended" in EngineCoreRequest.__struct_fields__
    server = {"reasoning_parser": "qwen3", "enable_in_reasoning": enabled}
    request = admitted(model_config, server=server, reasoning_ended=ended, structured_outputs={"regex": "a"})
    assert grammar_of(*request) is not None


@pytest.mark.parametrize(
    "asked",
    [
        {"json": {"type": "nosuch"}},
        {"json": {"type": "array", "uniqueItems": True}},
        {"json": "{"},
        {"regex": "(("},
        {"grammar": " "},
        {"choice": []},
    ],
)
def test_bad_ones_do_not_pass_the_frontend(model_config: Any, asked: dict[str, Any]) -> None:
    """vLLM answers these with a 400, before its core (ours) hears of them."""
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError):
        admitted(model_config, structured_outputs=asked)

"""On a real tokenizer: masks are vLLM's own, and whoever follows them writes what was asked for."""

import json
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

from llm42.protocol import Grammar
from llm42.sampling.grammar import GrammarMasks
from tests.sampling.grammars import permitted

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y", 3, None]}, "maxItems": 3},
        "mail": {"type": "string", "pattern": "^[a-z]{2,6}@[a-z]{2,6}\\.com$"},
    },
    "required": ["name", "age", "mail"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    },
    "$ref": "#/$defs/node",
}
PHONE = r"\+[0-9]{1,3} \([0-9]{2,4}\) [0-9]{3}-[0-9]{4}(x[0-9]+)?"
EBNF = 'root ::= "yes" | "no" | "may" root'
LARK = 'start: "SELECT " NAME (", " NAME)*\nNAME: /[a-z_]{1,8}/'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</call>",
    },
}
LEGACY_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": {"type": "object"}, "end": "</call>"}],
    "triggers": ["<call>"],
}
CHOICES = ["red", 'say "no"\n', "<|im_start|>", "na\u0308ive 漢字"]
BOB = '{"name": "Bob", "age": 7, "tags": ["x", 3], "mail": "bob@home.com"}'

KINDS: list[tuple[Grammar, str]] = [
    (Grammar("json", json.dumps(PERSON)), BOB),
    (Grammar("json", json.dumps(PERSON), any_whitespace=False), BOB.replace(" ", "")),
    (Grammar("json", json.dumps(TREE)), '{"next": {"next": {}}}'),
    (Grammar("json_object", ""), '{"a": [1, {"b": null}], "c": "\\u00e9"}'),
    # xgrammar 0.2.8 puts a space there all the same, see vLLM's XgrammarBackend.
    (Grammar("json_object", "", any_whitespace=False), '{"a":[1, {"b":null}]}'),
    (Grammar("regex", PHONE), "+49 (030) 123-4567x9"),
    (Grammar("choice", json.dumps(CHOICES)), CHOICES[1]),
    (Grammar("grammar", EBNF), "maymayno"),
    (Grammar("grammar", LARK), "SELECT a, b_c"),
    (Grammar("structural_tag", json.dumps(TAG)), f"<call>{BOB}</call>"),
    (Grammar("structural_tag", json.dumps(LEGACY_TAG)), 'so <call>{"a": 1}</call> it is'),
]
IDS = [f"{grammar.kind}-{number}" for number, (grammar, _) in enumerate(KINDS)]


@pytest.fixture(scope="module")
def model_config(tiny_path: str) -> Any:
    from vllm.config import ModelConfig

    return ModelConfig(model=tiny_path, skip_tokenizer_init=True, dtype="float32")


@pytest.fixture(scope="module")
def tokenizer(model_config: Any) -> Any:
    from llm42.internals.grammar_tokenizer import tokenizer_of

    found = tokenizer_of(model_config)
    assert model_config.skip_tokenizer_init, "the engine's own configuration is left alone"
    return found


@pytest.fixture(scope="module")
def text_of(tokenizer: Any) -> list[str]:
    return [tokenizer.decode([token]) for token in range(len(tokenizer))]


@pytest.fixture(scope="module")
def masks(model_config: Any) -> GrammarMasks:
    from llm42.internals.grammar_tokenizer import make_grammar_masks

    return make_grammar_masks(model_config)


def vllm_masks(model_config: Any, tokenizer: Any, grammar: Grammar, output: list[int]) -> torch.Tensor:
    """As vLLM's engine makes them, for a request that vLLM's frontend has admitted."""
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
    from vllm.v1.structured_output.request import get_structured_output_key

    given: Any = json.loads(grammar.text) if grammar.kind in ("choice", "json") else grammar.text
    asked = StructuredOutputsParams(**{grammar.kind: grammar.kind == "json_object" or given})
    server = StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=not grammar.any_whitespace)
    params = SamplingParams(structured_outputs=asked, stop_token_ids=list(grammar.stops))
    params.verify(model_config, None, server, tokenizer)
    settings = SimpleNamespace(structured_outputs_config=server, model_config=model_config, speculative_config=None)
    backend = XgrammarBackend(settings, tokenizer=tokenizer, vocab_size=model_config.get_vocab_size())
    follower = backend.compile_grammar(*get_structured_output_key(asked), stop_token_ids=params.all_stop_token_ids)
    rows = backend.allocate_token_bitmask(len(output) + 1)
    for row, token in enumerate([*output, None]):
        follower.fill_bitmask(rows, row)
        assert token is None or follower.accept_tokens("request", [token])
    return rows


@pytest.mark.parametrize(("grammar", "text"), KINDS, ids=IDS)
def test_masks_are_those_of_vllm(
    model_config: Any, tokenizer: Any, text_of: list[str], masks: GrammarMasks, grammar: Grammar, text: str
) -> None:
    """But for what they would let into an answer that does not belong there."""
    from llm42.internals.grammar_tokenizer import special_ids

    output = tokenizer.encode(text, add_special_tokens=False)
    if grammar.kind == "choice":
        grammar = Grammar(grammar.kind, grammar.text, stops=(0, 5))
    ours = masks.masks(grammar, output, 0, len(output) + 1)
    theirs = vllm_masks(model_config, tokenizer, grammar, output)
    stops = set(grammar.stops or [tokenizer.eos_token_id])
    left_out = set() if grammar.kind in ("grammar", "structural_tag") else set(special_ids(tokenizer)) - stops
    if grammar.kind in ("json", "json_object"):
        left_out |= {
            token for token in range(len(tokenizer)) if re.search(r"[\0-\x09\x0b\x0c\x0e-\x1f]", text_of[token])
        }
    for mine, other in zip(ours, theirs, strict=True):
        assert permitted(mine) == [token for token in permitted(other) if token not in left_out]
    assert stops <= set(permitted(ours[-1])), "it may end here"


def is_json(schema: Any) -> Callable[[str], object]:
    return lambda text: jsonschema.validate(json.loads(text), schema)


def matches(pattern: str) -> Callable[[str], object]:
    def validate(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return validate


def is_choice(text: str) -> None:
    assert text in CHOICES


WALKS: list[tuple[Grammar, Callable[[str], object]]] = [
    (KINDS[0][0], is_json(PERSON)),
    (KINDS[1][0], is_json(PERSON)),
    (KINDS[2][0], is_json(TREE)),
    (KINDS[3][0], is_json({"type": "object"})),
    (Grammar("json", '{"type": "string", "minLength": 8, "maxLength": 9}'), is_json({"minLength": 8, "maxLength": 9})),
    (KINDS[5][0], matches(PHONE)),
    (Grammar("json", '{"type": "string", "pattern": "^[^a]{2,4}$"}'), is_json({"pattern": "^[^a]{2,4}$"})),
    (Grammar("regex", ".{7}"), matches(".{7}")),
    (KINDS[6][0], is_choice),
    (KINDS[7][0], matches("(may)*(yes|no)")),
    (KINDS[8][0], matches("SELECT [a-z_]{1,8}(, [a-z_]{1,8})*")),
]


def walked(masks: GrammarMasks, grammar: Grammar, draw: random.Random, ends: list[int], stop: int) -> list[int]:
    """Tokens drawn from those permitted, one step after another, with a bias to what ends."""
    output: list[int] = []
    while len(output) < 2000:
        choices = permitted(masks.masks(grammar, output, len(output), 1)[0])
        assert choices, "a grammar that nothing continues"
        if stop in choices and draw.random() < 0.3:
            return output
        closing = [token for token in ends if token in choices]
        output.append(draw.choice(closing if closing and draw.random() < 0.5 else choices))
        if output[-1] == stop:
            return output[:-1]
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("grammar", "validate"), WALKS, ids=[f"{grammar.kind}-{i}" for i, (grammar, _) in enumerate(WALKS)]
)
def test_whoever_follows_the_masks_writes_what_was_asked_for(
    tokenizer: Any, masks: GrammarMasks, grammar: Grammar, validate: Callable[[str], object]
) -> None:
    ends = tokenizer.convert_tokens_to_ids(['"', "}", "]", "},", "no"])
    for seed in range(20):
        output = walked(masks, grammar, random.Random(seed), ends, tokenizer.eos_token_id)
        validate(tokenizer.decode(output, skip_special_tokens=True))


def test_without_the_masks_it_is_not(tokenizer: Any) -> None:
    """What the walks are judged by can say no."""
    draw = random.Random(0)
    text = tokenizer.decode([draw.randrange(100, 49000) for _ in range(20)])
    for _, validate in WALKS:
        with pytest.raises((AssertionError, ValueError, jsonschema.ValidationError)):
            validate(text)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json", '{"type": "nosuch"}'), "Unsupported type"),
        (Grammar("json", "{"), "Invalid JSON"),
        (Grammar("json", '{"type": "array", "uniqueItems": true}'), "not supported by xgrammar"),
        (Grammar("json", '{"items": ' * 500 + "{}" + "}" * 500), "nested too deeply"),
        (Grammar("regex", "(("), "parenthesis"),
        (Grammar("regex", "a\x00"), "NUL"),
        (Grammar("grammar", "root ::= "), "Invalid grammar"),
        (Grammar("structural_tag", "{}"), "Invalid structural tag"),
    ],
)
def test_what_vllm_would_refuse_is_refused(masks: GrammarMasks, grammar: Grammar, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        masks.masks(grammar, [], 0, 1)
    assert masks.prepare(grammar)[0] == "refused"

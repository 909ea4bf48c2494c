"""Which grammar a request asks for, as the verifier will enforce it, or why it cannot.

Relies on vLLM 0.32.0: its frontend turning ``response_format``, ``structured_outputs`` and what tools and
``tool_choice`` demand into ``SamplingParams.structured_outputs`` and checking it, before the engine core sees it
(whoever fails gets a 400); there ``_backend`` tells who enforces it, and choices may have become a grammar;
``all_stop_token_ids``, which holds the end-of-sequence token even under ``ignore_eos``;
``get_structured_output_key``; ``StructuredOutputsConfig``; and ``EngineCoreRequest.reasoning_ended`` saying whether
output begins after the reasoning (None: its endpoint has not looked).
"""

from vllm import SamplingParams
from vllm.config.structured_outputs import StructuredOutputsConfig
from vllm.v1.structured_output.request import get_structured_output_key

from llm42.protocol.errors import NotVerified
from llm42.protocol.steering import Grammar

PARAM = "structured_outputs"
"""What stands for all that becomes one, be it `response_format` or tools: nobody can tell any more."""


def grammar_of(
    params: SamplingParams, settings: StructuredOutputsConfig, reasoning_ended: bool | None
) -> Grammar | None:
    """None where nothing is asked. ``settings`` are the frontend's, the rest is its request's.

    Raises NotVerified.
    """
    asked = params.structured_outputs
    if asked is None or asked.all_constraints_none():
        return None
    if settings.reasoning_parser and not settings.enable_in_reasoning and not reasoning_ended:
        raise NotVerified(
            PARAM,
            f"structured output begins where reasoning ends, which the reasoning parser {settings.reasoning_parser} "
            "knows and the verifier does not: ask for an answer without reasoning",
        )
    if asked._backend != "xgrammar":
        raise NotVerified(
            PARAM,
            f"the grammar needs the backend {asked._backend}, and only xgrammar's are verified: "
            "it uses something that xgrammar does not support, or would ignore",
        )
    for name in ("whitespace_pattern", "disable_additional_properties"):
        if getattr(asked, name):
            raise NotVerified(f"{PARAM}.{name}", f"{PARAM}.{name} means nothing to xgrammar: leave it out")
    if params.ignore_eos:
        raise NotVerified("ignore_eos", "ignore_eos asks for more where the grammar has come to its end: leave it out")
    option, text = get_structured_output_key(asked)
    kind = option.name.lower()
    tight = kind in ("json", "json_object") and (asked.disable_any_whitespace or settings.disable_any_whitespace)
    return Grammar(kind, text, any_whitespace=not tight, stops=tuple(sorted(params.all_stop_token_ids)))

"""Which requests are deterministic, and whether what they ask for can be verified. Pure.

A deterministic request may only ask for what the verifier computes. Anything else is refused by name, never
quietly downgraded; a field that nobody here knows is refused too. What is listed here was checked: it is part of
the selection (:mod:`llm42.protocol.selection`), or it shapes the prompt, the stop or the response, all of which vLLM's
frontend does from committed tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llm42.router.refused import Refused
from llm42.router.shapes import require_shapes

FLAG = "is_deterministic"
EXPECTED = "expected_fingerprint"
RECEIPT = "receipt"
STATS = "determinism_stats"
Endpoint = Literal["completions", "chat"]
Mode = Literal["off", "seeded", "on"]

FREE = frozenset(
    """model user seed stream stream_options stream_interval max_tokens stop stop_token_ids ignore_eos
    include_stop_str_in_output skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    truncation_side add_special_tokens return_tokens_as_token_ids return_token_ids request_id session_id priority
    temperature top_p top_k min_p length_penalty metadata store service_tier safety_identifier prompt_cache_key
    presence_penalty frequency_penalty repetition_penalty min_tokens logit_bias bad_words allowed_token_ids
    logprobs prompt_logprobs echo response_format structured_outputs cache_salt
    vllm_xargs expected_fingerprint receipt determinism_stats""".split()
)
"""Fields of a deterministic request that may have whatever value vLLM takes; docs/api.md lists them."""
FREE_OF: dict[Endpoint, frozenset[str]] = {
    "completions": frozenset({"prompt"}),
    "chat": frozenset(
        """messages top_logprobs tools tool_choice parallel_tool_calls max_completion_tokens reasoning_effort
        add_generation_prompt continue_final_message chat_template chat_template_kwargs documents
        include_reasoning""".split()
    ),
}
_OURS = frozenset({FLAG, EXPECTED, RECEIPT, STATS})
"""What vLLM would drop without a word."""
_SMALLEST = 2.0**-64
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    # Values under which a parameter that is not verified yet does nothing.
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "routed_experts_prompt_start": (0,),
}


@dataclass(frozen=True, slots=True)
class Admission:
    """``body`` is what vLLM's frontend shall see: the flag moved to where it survives, our own fields gone."""

    deterministic: bool
    body: dict[str, Any]
    expected_fingerprint: str | None = None
    samples: bool = False
    """Whether it asks for random choices."""
    with_receipts: bool = False
    with_stats: bool = False


def admit(body: Mapping[str, Any], endpoint: Endpoint, mode: Mode, generation_config: Mapping[str, Any]) -> Admission:
    """Decide one request. ``generation_config`` holds the model's own sampling defaults.

    Raises:
        Refused: the request is deterministic and asks for something that is not verified, the flag itself is
            malformed, or vLLM would fail on it.
    """
    require_shapes(body)
    extra = body.get("vllm_xargs")
    flag = _flag(body)
    deterministic = (
        flag if flag is not None else mode == "on" or (mode == "seeded" and body.get("seed") not in (None, -1))
    )
    expected = _expected(body, deterministic)
    if deterministic:
        _require_verifiable(body, endpoint, generation_config)
    rewritten = {name: value for name, value in body.items() if name not in _OURS}
    if isinstance(extra, Mapping) or (extra is None and deterministic):
        others = {name: value for name, value in (extra or {}).items() if name != FLAG}
        rewritten["vllm_xargs"] = {**others, FLAG: 1} if deterministic else others
    with_receipts, with_stats = _receipt(body, deterministic), _wish(body, STATS, "stats", deterministic)
    if (with_receipts or with_stats) and body.get("stream"):
        options = body.get("stream_options")
        # A stream tells with its usage how many tokens it has sent: receipt and stats are for these.
        rewritten["stream_options"] = {**(options if isinstance(options, Mapping) else {}), "include_usage": True}
    return Admission(deterministic, rewritten, expected, _samples(body, generation_config), with_receipts, with_stats)


def prompts_of(body: Mapping[str, Any]) -> int:
    """How many prompts it has; one where vLLM will refuse it."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int | float) else 1


def _flag(body: Mapping[str, Any]) -> bool | None:
    for name in body:
        if name != FLAG and name.strip().lower().replace("-", "_").replace("_", "") == FLAG.replace("_", ""):
            raise Refused(name, f"{name} is not a parameter: did you mean {FLAG}?")
    wrapped = body.get("extra_body")
    if isinstance(wrapped, Mapping) and FLAG in wrapped:
        raise Refused("extra_body", f"extra_body belongs to the Python client: send {FLAG} at the top level")
    extra = body.get("vllm_xargs")
    said = [body.get(FLAG), extra.get(FLAG) if isinstance(extra, Mapping) else None]
    values = set()
    for value in said:
        if value is None:
            continue
        if value not in (True, False):  # 0 and 1 are equal to them: vllm_xargs has no booleans
            raise Refused(FLAG, f"{FLAG} must be true or false, got {value!r}")
        values.add(bool(value))
    if len(values) == 2:
        raise Refused(FLAG, f"{FLAG} is given twice, at the top level and in vllm_xargs, and the two differ")
    return values.pop() if values else None


def _expected(body: Mapping[str, Any], deterministic: bool) -> str | None:
    value = body.get(EXPECTED)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise Refused(EXPECTED, f"{EXPECTED} must be the system_fingerprint of an earlier answer, got {value!r}")
    if not deterministic:
        raise Refused(EXPECTED, f"{EXPECTED} binds deterministic requests only: send {FLAG}: true, or leave it out")
    return value


def _wish(body: Mapping[str, Any], name: str, things: str, deterministic: bool) -> bool:
    """Whether ``name`` asks for something to be said that only deterministic requests have."""
    value = body.get(name)
    if value is None or value is False:
        return False
    if value is not True:
        raise Refused(name, f"{name} must be true or false, got {value!r}")
    if not deterministic:
        raise Refused(name, f"only deterministic requests have {things}: send {FLAG}: true, or leave {name} out")
    return True


def _receipt(body: Mapping[str, Any], deterministic: bool) -> bool:
    if not _wish(body, RECEIPT, "receipts", deterministic):
        return False
    if body.get("stop") and (prompts_of(body) > 1 or body.get("n") not in (None, 1)):
        raise Refused(RECEIPT, f"{RECEIPT} with several choices and stop strings: send one prompt and n 1, or no stop")
    return True


def _samples(body: Mapping[str, Any], generation_config: Mapping[str, Any]) -> bool:
    temperature = body.get("temperature")
    if temperature is None:
        temperature = generation_config.get("temperature")
    return bool(temperature != 0)  # vLLM's own default is 1


def _require_verifiable(body: Mapping[str, Any], endpoint: Endpoint, generation_config: Mapping[str, Any]) -> None:
    samples = _samples(body, generation_config)
    for name in sorted(body):
        value = body[name]
        if value is None or name == FLAG or value in _NEUTRAL.get(name, ()):
            continue
        remedy = _remedy(name, value, endpoint, samples)
        if remedy is not None:
            raise _unverified(name, value, remedy)
    extra = body.get("vllm_xargs")
    if isinstance(extra, Mapping):
        for name in extra:
            if name != FLAG:
                raise _unverified(f"vllm_xargs.{name}", extra[name], "leave it out")
    _require_verifiable_structure(body)


def _require_verifiable_structure(body: Mapping[str, Any]) -> None:
    """What :mod:`llm42.internals.structured` refuses too, but by then a stream has begun."""
    structured, wanted = body.get("structured_outputs"), body.get("response_format")
    for name in ("whitespace_pattern", "disable_additional_properties"):
        if structured is not None and structured.get(name):
            raise _unverified(f"structured_outputs.{name}", structured[name], "leave it out")
    formatted = isinstance(wanted, Mapping) and wanted.get("type") != "text"
    called = body.get("tool_choice") not in (None, "auto", "none")
    if body.get("ignore_eos") is True and (structured or formatted or called):
        raise _unverified("ignore_eos", True, "leave it out, for the output ends where its grammar does")


def _remedy(name: str, value: Any, endpoint: Endpoint, samples: bool) -> str | None:
    """What to send instead of a value that is not neutral; None if it can be verified as it is."""
    if name == "seed" and (isinstance(value, bool) or not isinstance(value, int)):
        return "send a whole number"
    if name == "n":
        if type(value) is not int:  # vLLM would read "16.0" as 16: what quotas count must be what is made
            return "send a whole number"
        return None if samples else "send 1, or a temperature above 0"  # several greedy ones would be equal
    if name == "repetition_penalty" and isinstance(value, int | float) and not _SMALLEST <= value <= 1 / _SMALLEST:
        return f"send one in [{_SMALLEST:g}, {1 / _SMALLEST:g}]"  # or logits leave the range of fp32
    if name in ("logprobs", "top_logprobs", "prompt_logprobs") and value == -1:
        return "send how many"
    if name in FREE or name in FREE_OF[endpoint]:
        return None
    neutral = _NEUTRAL.get(name)
    return f"send {neutral[0]!r}" if neutral else "leave it out"


def _unverified(name: str, value: Any, remedy: str) -> Refused:
    return Refused(
        name,
        f"{name} is {value!r}, which is not verified for deterministic requests: {remedy}, "
        f"or send {FLAG}: false for an ordinary answer",
    )

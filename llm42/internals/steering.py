"""What a request's ``SamplingParams`` ask of :func:`llm42.sampling.steer`.

Relies on vLLM 0.32.0: ``all_stop_token_ids`` and ``bad_words_token_ids`` as the input processor completes them (from
the generation config and the tokenizer, so it has to have seen the parameters), among the former the end-of-sequence
token even under ``ignore_eos``.
"""

from vllm import SamplingParams

from llm42.protocol.errors import NotVerified
from llm42.protocol.steering import MAX_BAD_WORD_TOKENS, Grammar, Steering


def steering_of(params: SamplingParams, prompt_tokens: int, grammar: Grammar | None = None) -> Steering | None:
    """None where nothing is asked. What means the same becomes the same.

    Raises NotVerified for more than a verifier enforces.
    """
    if params.bad_words and params.bad_words_token_ids is None:
        raise ValueError("bad_words have no token ids: the input processor has not seen these parameters")
    bad_words = {tuple(word) for word in params.bad_words_token_ids or ()}
    if (tokens := sum(map(len, bad_words))) > MAX_BAD_WORD_TOKENS:
        raise NotVerified("bad_words", f"bad_words have {tokens} tokens, more than {MAX_BAD_WORD_TOKENS}: send fewer")
    stops = tuple(sorted(params.all_stop_token_ids)) if params.min_tokens else ()
    asked = Steering(
        prompt_tokens,
        presence_penalty=float(params.presence_penalty) + 0.0,  # no -0.0
        frequency_penalty=float(params.frequency_penalty) + 0.0,
        repetition_penalty=float(params.repetition_penalty),
        logit_bias=tuple(sorted((token, float(bias)) for token, bias in (params.logit_bias or {}).items() if bias)),
        min_tokens=params.min_tokens if stops else 0,
        stops=stops,
        bad_words=tuple(sorted(bad_words)),
        allowed=None if params.allowed_token_ids is None else tuple(sorted(set(params.allowed_token_ids))),
        grammar=grammar,
    )
    return None if asked == Steering(prompt_tokens) else asked

"""xgrammar for the tokenizer of a vLLM model: set up, asked and refusing as vLLM's own structured outputs do.

Relies on vLLM 0.32.0: ``XgrammarBackend``, which knows tokenizers (Mistral's and others) and every kind of grammar,
reads nothing of its configuration but ``structured_outputs_config.disable_any_whitespace``, ``model_config`` and
``speculative_config``, and keeps the former as an attribute; ``XgrammarGrammar.ctx``, the compiled grammar;
``validate_xgrammar_grammar``, which makes choices a grammar, and refuses what would be ignored or crash; and on
tokenizers naming in ``all_special_ids`` and ``added_tokens_decoder`` what detokenizing leaves out.
"""

import copy
import functools
import json
import threading
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, validate_xgrammar_grammar
from vllm.v1.structured_output.request import get_structured_output_key
from xgrammar import CompiledGrammar

from llm42.protocol.steering import Grammar
from llm42.sampling.grammar import GrammarMasks
from llm42.sampling.grammar_compiler import Compile


def make_grammar_masks(model_config: Any) -> GrammarMasks:
    """For vLLM's ``ModelConfig``, one with ``skip_tokenizer_init`` too.

    The tokenizer is set up when the first grammar is compiled, where nobody waits for it: it takes about a second. One
    that xgrammar does not know makes grammars fail, and nothing else.
    """
    lock = threading.Lock()

    @functools.cache
    def made() -> tuple[Compile, list[int]]:
        tokenizer = tokenizer_of(model_config)
        return make_compile(model_config, tokenizer), special_ids(tokenizer)

    def compile(grammar: Grammar) -> CompiledGrammar:
        with lock:
            compiler, _ = made()
        return compiler(grammar)

    return GrammarMasks(compile, int(model_config.get_vocab_size()), lambda: made()[1])


def tokenizer_of(model_config: Any) -> Any:
    """The tokenizer of a ``ModelConfig``, also where the engine goes without."""
    config = copy.copy(model_config)
    config.skip_tokenizer_init = False
    return cached_tokenizer_from_config(config)


def make_compile(model_config: Any, tokenizer: Any) -> Compile:
    """What compiles as vLLM does, and raises what vLLM or xgrammar raises; threads may share it."""
    settings = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(disable_any_whitespace=False),
        model_config=model_config,
        speculative_config=None,
    )
    loose = XgrammarBackend(settings, tokenizer=tokenizer, vocab_size=model_config.get_vocab_size())
    tight = copy.copy(loose)  # the compiler is the same one
    tight.disable_any_whitespace = True

    def compile(grammar: Grammar) -> CompiledGrammar:
        asked = _params(grammar)
        validate_xgrammar_grammar(SamplingParams(structured_outputs=asked))
        backend = loose if grammar.any_whitespace else tight
        compiled: CompiledGrammar = backend.compile_grammar(*get_structured_output_key(asked)).ctx
        return compiled

    return compile


def special_ids(tokenizer: Any) -> list[int]:
    """Tokens that detokenizing leaves out, rising."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return sorted({*tokenizer.all_special_ids, *(token for token, entry in added.items() if entry.special)})


def _params(grammar: Grammar) -> StructuredOutputsParams:
    match grammar.kind:
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "choice":
            return StructuredOutputsParams(choice=json.loads(grammar.text))
        case kind:
            return StructuredOutputsParams(**{kind: grammar.text})

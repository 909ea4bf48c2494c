"""A toy vocabulary with grammars in it, and the masks of a grammar without any cache."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo

from llm42.protocol import Grammar

TEXTS = ["<s>", "</s>", "a", "b", "ab", "ba", "aa", "1", "2", "12", '"', "{", "}", ":", ",", '":', '{"', "[", "]", " "]
TOYS = [*TEXTS, *"xyz<>/s", *(f"w{number}" for number in range(20))]
"""Not a multiple of 32."""
BEGIN, END, A, B, ONE = 0, 1, 2, 3, 7

GRAMMARS = [
    Grammar("regex", "(ab|ba|aa)*1?"),
    Grammar("regex", "[ab12]{2,9}"),
    Grammar("regex", "[ab12]{2,9}", stops=(END, A)),
    Grammar("json", '{"type": "array", "items": {"enum": [1, 2, 12, "a", "ab"]}}'),
    Grammar("json_object", ""),
    Grammar("grammar", 'root ::= "a" root "b" | "1"'),
]

_toys = TokenizerInfo(TOYS, stop_token_ids=[END])
_compiler = GrammarCompiler(_toys, max_threads=1, cache_enabled=False)


def compile_toy(grammar: Grammar) -> CompiledGrammar:
    match grammar.kind:
        case "regex":
            return _compiler.compile_regex(grammar.text)
        case "json":
            return _compiler.compile_json_schema(grammar.text, any_whitespace=False)
        case "json_object":
            return _compiler.compile_json_schema('{"type": "object"}', any_whitespace=False)
        case _:
            return _compiler.compile_grammar(grammar.text)


def fresh_masks(
    compiled: CompiledGrammar, stops: Sequence[int], output: Sequence[int], first: int, count: int
) -> Tensor:
    """What :meth:`GrammarMasks.masks` has to return, a new matcher for each row."""
    vocabulary = compiled.tokenizer_info.vocab_size
    rows = torch.zeros(count, -(-vocabulary // 32), dtype=torch.int32)
    for row, length in enumerate(range(first, first + count)):
        if length < 0:
            rows[row] = -1
            continue
        matcher = GrammarMatcher(compiled, override_stop_tokens=list(stops) or None)
        known = length <= len(output) and all(matcher.accept_token(token) for token in output[:length])
        if known and not matcher.is_terminated():
            matcher.fill_next_token_bitmask(rows, row)
            rows[row, -1] &= (1 << vocabulary % 32) - 1  # xgrammar's last word is full of ones
    return rows


def permitted(row: Tensor) -> list[int]:
    """Ids of the bits in one row of masks."""
    found: list[int] = np.unpackbits(row.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()
    return found

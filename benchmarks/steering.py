"""How much does steering cost? One window of logits, as the verifier steers, and one row, as the drafter does.

On one thread, over random logits, at the end of a history of few and of many tokens, half of it prompt:

    python benchmarks/steering.py --json

Milliseconds of CPU time, medians. `window` is `steer` of [window, vocabulary]; `row` is that of [1, vocabulary].
"""

import argparse
import json
import os
from typing import Any

from cpu_time import milliseconds

PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--histories", type=int, nargs="+", default=[256, 4096, 32768])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    result = measure(options)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from llm42.sampling.steer import steer

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(options.window, options.vocabulary, generator=generator) * 3
    bits = torch.randint(-(2**31), 2**31, (options.window, -(-options.vocabulary // 32)), generator=generator)
    many, few = bits.int(), (bits & bits.roll(1) & bits.roll(2) & bits.roll(3) & bits.roll(4)).int()
    result: dict[str, Any] = {"window": options.window, "vocabulary": options.vocabulary}
    for length in options.histories:
        # Squared, so that some tokens come often, as in a text.
        tokens = (torch.rand(length, generator=generator).square() * options.vocabulary).long()
        for name, steering in steerings(length // 2, options.vocabulary).items():
            for kind, given in {", 1 in 2": many, ", 1 in 32": few}.items() if steering.grammar else {"": None}.items():
                start = length - options.window
                row = None if given is None else given[:1]
                spent = {
                    "window": milliseconds(lambda: steer(logits, steering, tokens, start, given), options.repeats),  # noqa: B023  called at once
                    "row": milliseconds(lambda: steer(logits[:1], steering, tokens, length - 1, row), options.repeats),  # noqa: B023
                }
                result[f"{length} tokens, {name}{kind}"] = spent
    return result


def steerings(prompt_tokens: int, vocabulary: int) -> dict[str, Any]:
    from llm42.protocol.steering import Grammar, Steering

    bias = tuple((token, 1.0) for token in range(0, vocabulary, vocabulary // 300))
    words = tuple((token, token + 1, token + 2) for token in range(128))
    return {
        "nothing": Steering(prompt_tokens),
        "presence and frequency": Steering(prompt_tokens, **PENALTIES),
        "repetition": Steering(prompt_tokens, repetition_penalty=1.1),
        "all penalties": Steering(prompt_tokens, repetition_penalty=1.1, **PENALTIES),
        "300 biases": Steering(prompt_tokens, logit_bias=bias),
        "128 bad words": Steering(prompt_tokens, bad_words=words),
        "min_tokens": Steering(prompt_tokens, min_tokens=10**6, stops=(2, 3)),
        "half of the ids allowed": Steering(prompt_tokens, allowed=tuple(range(0, vocabulary, 2))),
        "grammar": Steering(prompt_tokens, grammar=Grammar("json_object", "")),
    }


if __name__ == "__main__":
    main()

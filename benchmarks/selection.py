"""How much does choosing cost? One window of logits, as the verifier chooses, and one row, as the drafter does.

On one thread, over peaked logits (normal, deviation 3), flat ones (deviation 0.1) and, with a model, its own along a
greedy continuation:

    python benchmarks/selection.py --model demo --dtype bfloat16 --json

Milliseconds of CPU time, medians. `window` is `select` of [window, vocabulary]; `row` is `choose_each` of one row of
that vocabulary, `shared` the same for each of 16 together; `margin` is what each of these costs besides, where drafts
tell theirs.
"""

import argparse
import json
import os
from typing import Any

from cpu_time import milliseconds

TOGETHER = 16
SELECTIONS = {
    "greedy": (0.0, 1.0, 0, 0.0),
    "temperature 0.8": (0.8, 1.0, 0, 0.0),
    "temperature 0.8, top_p 0.95": (0.8, 0.95, 0, 0.0),
    "temperature 0.8, top_p 0.95, top_k 50": (0.8, 0.95, 50, 0.0),
    "temperature 0.8, min_p 0.05": (0.8, 1.0, 0, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--model", help="also on the logits of this model")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    result = measure(options)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from llm42.protocol import Selection
    from llm42.sampling import select

    torch.set_num_threads(1)
    noise = torch.randn(options.window, options.vocabulary, generator=torch.Generator().manual_seed(0))
    logits = {"peaked": noise * 3, "flat": noise * 0.1}
    if options.model:
        logits[options.model] = model_logits(options.model, options.dtype, options.window)
    result: dict[str, Any] = {"window": options.window, "vocabulary": options.vocabulary, "dtype": options.dtype}
    for kind, given in logits.items():
        wide = given.float()
        for name, parameters in SELECTIONS.items():
            selection = Selection(*parameters, seed=1)
            window = milliseconds(lambda: select(given, selection, 32), options.repeats)  # noqa: B023  called at once
            result[f"{kind}, {name}"] = {"window": window, **rows(wide, selection, options.repeats)}
    return result


def rows(logits: Any, selection: Any, repeats: int) -> dict[str, float]:
    """Of drafts: one alone, and each of several; greedy ones are vLLM's own."""
    from dataclasses import replace

    from llm42.sampling import choose_each, greedy_margins, race_margins

    together = logits[:TOGETHER]
    if selection.greedy:
        return {"margin": round(milliseconds(lambda: greedy_margins(together), repeats) / TOGETHER, 3)}
    selections = [replace(selection, seed=seed) for seed in range(TOGETHER)]
    positions = list(range(32, 32 + TOGETHER))
    tokens = choose_each(together, selections, positions)
    alone = milliseconds(lambda: choose_each(logits[:1], selections[:1], positions[:1]), repeats)
    shared = milliseconds(lambda: choose_each(together, selections, positions), repeats)
    margin = milliseconds(lambda: race_margins(together, selections, positions, tokens), repeats)
    return {"row": alone, "shared": round(shared / TOGETHER, 3), "margin": round(margin / TOGETHER, 3)}


def model_logits(model: str, dtype: str, window: int) -> Any:
    """[window, vocabulary]: at the tokens of a greedy continuation, from transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llm42.models import resolve_model

    path = resolve_model(model)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    text = "The history of the city begins with a harbour, which the first settlers"
    prompt = AutoTokenizer.from_pretrained(path)(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        tokens = network.generate(prompt, max_new_tokens=window, min_new_tokens=window, do_sample=False)
        return network(tokens).logits[0, -window:].clone()


if __name__ == "__main__":
    main()

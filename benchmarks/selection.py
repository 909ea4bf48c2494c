"""How much does choosing cost? One window of logits, as the verifier chooses, and one row, as the drafter does.

On one thread, over peaked logits (normal, deviation 3), flat ones (deviation 0.1) and, with a model, its own along a
greedy continuation:

    python benchmarks/selection.py --model demo --dtype bfloat16 --json

Milliseconds of CPU time, medians. `window` is `select` of [window, vocabulary]; `row` is `choose` of [1, vocabulary];
`margin` is what a row costs besides where drafts tell their margins: greedy ones are worked on `window` at a time.
"""

import argparse
import json
import os
from typing import Any

from cpu_time import milliseconds

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
    from llm42.sampling import choose, greedy_margins, race_margin, select

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
            row = milliseconds(lambda: choose(wide[:1], selection, 32), options.repeats)  # noqa: B023
            token, _ = choose(wide[:1], selection, 32)
            margin = (
                milliseconds(lambda: greedy_margins(wide), options.repeats) / options.window  # noqa: B023
                if selection.greedy
                else milliseconds(lambda: race_margin(wide[:1], selection, 32, token), options.repeats)  # noqa: B023
            )
            result[f"{kind}, {name}"] = {"window": window, "row": row, "margin": round(margin, 3)}
    return result


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

"""Faults to plant into a loaded model, in its worker: an op in the middle of it that misbehaves as real ones do.

``planted(engine, fault)`` sends one there through ``collective_rpc``; the audit then meets it on its own path.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from llm42.verifier.engine import ReplayEngine

LAYER = 1
STEP = 2.0**-6
"""Relative; enough to be seen in bfloat16."""

Op = Callable[[Tensor, int], Tensor]
"""Takes activations [rows, window, hidden] and the number of calls so far."""


def by_row_index(x: Tensor, _: int) -> Tensor:
    return x * (1 + STEP * torch.arange(len(x))).view(-1, 1, 1).to(x.dtype)


def by_last_row_only(x: Tensor, _: int) -> Tensor:
    return torch.cat([x[:-1], x[-1:] * (1 + STEP)])


def by_other_rows(x: Tensor, _: int) -> Tensor:
    """Each row takes something of the loudest of the others."""
    loudest = x.abs().amax(dim=(1, 2))
    others = torch.stack([torch.cat([loudest[:row], loudest[row + 1 :]]).max() for row in range(len(x))])
    return x + STEP * others.view(-1, 1, 1)


def quantised_per_tensor(x: Tensor, _: int) -> Tensor:
    """Dynamic quantisation with one scale for the whole pass."""
    return _quantised(x, x.abs().max())


def quantised_per_row(x: Tensor, _: int) -> Tensor:
    """With a scale for each row of the pass, later slots included."""
    return _quantised(x, x.abs().amax(dim=(1, 2), keepdim=True))


def by_next_slot(x: Tensor, _: int) -> Tensor:
    return x + STEP * torch.cat([x[:, 1:], x[:, -1:]], dim=1)


def every_call_differs(x: Tensor, calls: int) -> Tensor:
    return x * (1 + STEP * (calls % 7))


def every_fifth_call_differs(x: Tensor, calls: int) -> Tensor:
    return x if calls % 5 else x * (1 + STEP)


def _quantised(x: Tensor, largest: Tensor) -> Tensor:
    scale = largest / 127
    return (x / scale).round() * scale


def _plant(worker: Any, op: Op) -> None:
    replay, calls = worker._llm42_pass, 0

    def hook(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        shaped = output.view(replay.rows, replay.window, -1)
        return op(shaped, calls).to(output.dtype).view(output.shape)

    worker.planted = worker.model_runner.model.model.layers[LAYER].mlp.register_forward_hook(hook)


def _uproot(worker: Any) -> None:
    worker.planted.remove()


def overwrite_page(runner: Any, block: int) -> None:
    """Flip the lowest bit of each value of a page, in all layers."""
    for layer in runner.kv_caches:
        values = layer[block]
        integers = values.view(torch.int16 if values.element_size() == 2 else torch.int32)
        integers ^= 1


def overwrite_page_of(worker: Any, block: int) -> None:
    overwrite_page(worker.model_runner, block)


def flip_weight_bit(worker: Any) -> None:
    """The lowest exponent bit of one weight of a norm; done twice, it is undone."""
    weight = worker.model_runner.model.model.layers[LAYER].input_layernorm.weight.data
    bits = weight.view(torch.int16 if weight.element_size() == 2 else torch.int32)
    bits[0] ^= 1 << (7 if weight.element_size() == 2 else 23)


def in_worker(engine: ReplayEngine, function: Callable[..., Any], *args: object) -> Any:
    """Run ``function(worker, *args)`` on the thread that runs the passes; the worker must be in this process."""
    client = engine._model._core.client
    [result] = engine._model._thread.submit(client.collective_rpc, function, None, args).result(60)
    return result


@contextmanager
def planted(engine: ReplayEngine, op: Op) -> Iterator[None]:
    """The op behind the MLP of one layer."""
    in_worker(engine, _plant, op)
    try:
        yield
    finally:
        in_worker(engine, _uproot)


@contextmanager
def kv_split(engine: ReplayEngine, threads: int) -> Iterator[None]:
    """vLLM's split of long contexts over idle threads, left on."""
    in_worker(engine, _leave_kv_split_on, threads)
    try:
        yield
    finally:
        in_worker(engine, _turn_kv_split_off)


def _leave_kv_split_on(_worker: Any, threads: int) -> None:
    from vllm.v1.attention.backends import cpu_attn

    torch._C.set_num_threads(threads)  # vLLM has disarmed torch.set_num_threads
    # vLLM reads the variable at every pass, but from a snapshot that it took at start.
    cpu_attn.envs = SimpleNamespace(VLLM_CPU_ATTN_SPLIT_KV=True)


def _turn_kv_split_off(_worker: Any) -> None:
    from vllm import envs
    from vllm.v1.attention.backends import cpu_attn

    torch._C.set_num_threads(1)
    cpu_attn.envs = envs

"""What llm42.internals relies on in vLLM and does not otherwise test: names, signatures, habits."""

import dataclasses
import inspect

import pytest

import llm42.internals
from llm42.internals import VersionMismatchError, require_ray, require_vllm
from llm42.internals.block_pool import PagePool


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    require_vllm()
    require_ray()
    monkeypatch.setattr(llm42.internals, "VLLM_VERSION", "0.0.1")
    with pytest.raises(VersionMismatchError, match=r"vllm is 0\.32\.0.*needs exactly 0\.0\.1"):
        require_vllm()


def test_the_extension_meets_no_worker_attribute() -> None:
    """vLLM asserts this too, but only once per process."""
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    from llm42.internals.replay import ReplayExtension

    ours = {name for name in vars(ReplayExtension) if not name.startswith("__")}
    assert all(name.lstrip("_").startswith("llm42_") for name in ours)
    for worker in (CPUWorker, Worker):
        assert not ours & {name for base in worker.__mro__ if base is not ReplayExtension for name in vars(base)}


def test_forward_context_and_attention_metadata() -> None:
    from vllm.forward_context import set_forward_context
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.worker.utils import AttentionGroup

    assert {"num_tokens", "slot_mapping"} <= set(inspect.signature(set_forward_context).parameters)
    fields = {field.name for field in dataclasses.fields(CommonAttentionMetadata)}
    assert {"max_query_len", "max_seq_len", "seq_lens_cpu_upper_bound", "slot_mapping", "positions"} <= fields
    required = {
        field.name
        for field in dataclasses.fields(CommonAttentionMetadata)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    assert required == {
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
    }
    build = inspect.signature(AttentionGroup.build_metadata).parameters
    assert build["common_prefix_len"].default == 0, "no cascade attention"


def test_the_cpu_split_switch_is_read_at_every_metadata_build() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    assert "envs.VLLM_CPU_ATTN_SPLIT_KV" in inspect.getsource(CPUAttentionMetadataBuilder.build)


def test_on_a_cpu_no_adapter_is_the_last_slot_s() -> None:
    """Why there is a slot more than adapters. Once this fails, vLLM has mended it, and a slot may be saved."""
    import torch
    from vllm.lora.ops.torch_ops import bgmv_expand

    slots, out = torch.tensor([[[1.0]], [[2.0]]]), torch.zeros(2, 1)
    bgmv_expand(torch.ones(2, 1), slots, out, torch.tensor([0, -1]))
    assert out.flatten().tolist() == [1.0, 2.0]


def test_block_zero_is_nobodys_and_eviction_is_by_age() -> None:
    pool = PagePool(5)
    assert (pool.capacity, pool.free) == (4, 4)
    pages = pool.take(4)
    assert {page.block_id for page in pages} == {1, 2, 3, 4}
    for index, page in enumerate(pages[:3]):
        pool.publish(page, bytes([index]) * 32)
    pool.release(pages[::-1])
    assert [pool.find(bytes([index]) * 32) for index in range(3)] == pages[:3]
    [first] = pool.take(1)
    assert first is pages[3], "a scratch page goes first"
    assert pool.take(1) == [pages[2]], "then the tail"
    assert pool.find(bytes([2]) * 32) is None
    assert pool.evictions == 1
    pool.hold([pages[0]])
    assert pool.take(1) == [pages[1]], "a held page is not taken"
    assert pool.free == 0
    with pytest.raises(ValueError, match="free blocks"):
        pool.take(1)


def test_a_page_is_published_once_and_found_while_held() -> None:
    pool = PagePool(4)
    [page] = pool.take(1)
    assert not pool.idle(page)
    pool.publish(page, b"k" * 32)
    assert pool.find(b"k" * 32) is page
    assert pool.find(b"other" * 8) is None
    with pytest.raises(AssertionError):
        pool.publish(page, b"again" * 8)


def test_the_schedulers_word_of_requests_and_memory() -> None:
    from vllm.v1.metrics.stats import SchedulerStats

    stats = SchedulerStats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)

"""One replay pass of fixed shape on vLLM's own model, kernels, KV pool and ranks.

:class:`ReplayExtension` is the engine's ``worker_extension_cls``; the verifier calls it by ``collective_rpc``.
Arguments and results are bytes, lists, ints, floats and strings only: arrays vanish without a word on their way
through vLLM's multiprocess client.

Relies on vLLM 0.32.0, model runner V1: ``worker.model_runner`` with ``model``, ``device``, ``vllm_config``,
``kv_cache_config`` and ``attn_groups``; ``AttentionGroup.build_metadata``; ``CommonAttentionMetadata``;
``set_forward_context`` taking metadata and slot mappings per layer; each layer writing its K/V before it
attends; and block 0 being nobody's (vLLM's null block).
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from llm42.internals.adapters import SlotAdapters
from llm42.internals.facts import worker_facts
from llm42.internals.grammar_tokenizer import make_grammar_masks
from llm42.internals.served_models import require_served
from llm42.internals.weights import LOAD_FORMAT  # noqa: F401  importing it registers the loader, here in the worker
from llm42.protocol.steering import Grammar
from llm42.sampling.choices import choices, chunk_of, int32
from llm42.sampling.grammar import GrammarMasks
from llm42.verifier.heads import Piece, head_blocks

DIGEST_BYTES = 16
"""Of the logits of one slot; see :meth:`ReplayExtension.llm42_digest_pass`."""


class ReplayPass:
    """The arithmetic of ``[rows x window]`` passes, and its buffers: one shape, whatever is asked.

    A row is one window of one sequence. ``context`` bounds positions, in tokens; it is ``max_seq_len`` in every
    pass, so that no kernel can choose by the batch. ``adapters`` are directories by name.
    """

    def __init__(self, runner: Any, rows: int, window: int, context: int, adapters: Mapping[str, str]) -> None:
        device = runner.device
        self.adapters = SlotAdapters(runner, adapters) if adapters else None
        self.runner, self.rows, self.window, self.context = runner, rows, window, context
        self.block_size: int = runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        slots, blocks = rows * window, -(-context // self.block_size)
        self.offsets = torch.arange(window)
        self.query_start_cpu = torch.arange(0, slots + 1, window, dtype=torch.int32)
        self.query_start = self.query_start_cpu.to(device)
        self.tokens = torch.zeros(slots, dtype=torch.int32, device=device)
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self.kv_slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self.tables = torch.zeros(rows, blocks, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.chunk = chunk_of(window, device)

    def forward(self, tokens: bytes, starts: bytes, tables: bytes, adapters: Sequence[str]) -> Tensor:
        """Run the model; write the rows' K/V. Returns hidden states [rows, window, hidden] on the device.

        The first arguments are packed int32: token ids [rows, window], the position of slot 0 [rows], and KV block
        ids [rows, blocks of the context]. ``adapters`` names that of each row, "" for none.
        """
        start, table = int32(starts), int32(tables).view(self.rows, -1)
        positions = start.unsqueeze(-1) + self.offsets
        kv_slots = table.gather(1, positions // self.block_size) * self.block_size + positions % self.block_size
        seq_lens = start + self.window
        self.tokens.copy_(int32(tokens))
        self.positions.copy_(positions.view(-1))
        self.kv_slots.copy_(kv_slots.view(-1))
        self.tables.copy_(table)
        self.seq_lens.copy_(seq_lens)
        common = CommonAttentionMetadata(
            query_start_loc=self.query_start,
            query_start_loc_cpu=self.query_start_cpu,
            seq_lens=self.seq_lens,
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=self.rows,
            num_actual_tokens=self.rows * self.window,
            max_query_len=self.window,
            max_seq_len=self.context,
            block_table_tensor=self.tables,
            slot_mapping=self.kv_slots,
            positions=self.positions,
            causal=True,
        )
        if self.adapters is not None:
            self.adapters.wear([adapter for adapter in adapters for _ in range(self.window)])
        metadata: dict[str, Any] = {}
        for group in self.runner.attn_groups[0]:
            metadata.update(dict.fromkeys(group.layer_names, group.build_metadata(common)))
        with set_forward_context(
            metadata,
            self.runner.vllm_config,
            num_tokens=self.rows * self.window,
            slot_mapping=dict.fromkeys(metadata, self.kv_slots),
        ):
            hidden: Tensor = self.runner.model(
                input_ids=self.tokens, positions=self.positions, intermediate_tensors=None, inputs_embeds=None
            )
        return hidden.view(self.rows, self.window, -1)

    def heads(
        self, hidden: Tensor, asked: Sequence[Sequence[int]], lead: int, adapters: Sequence[str]
    ) -> Iterator[tuple[Tensor | None, list[Piece]]]:
        """LM head of the slots in ``asked`` (row, first, behind the last), as :func:`head_blocks` places them: of each
        block its logits [window, vocabulary], None on a rank that does not gather, and what is where in them."""
        flat, blocks = hidden.view(self.rows * self.window, -1), head_blocks(self.rows, self.window, asked, lead)
        places = torch.tensor([block.slots for block in blocks]).to(hidden.device)
        for block, slots in zip(blocks, places, strict=True):
            if self.adapters is not None:
                self.adapters.wear([adapters[slot // self.window] for slot in block.slots])
            logits: Tensor | None = self.runner.model.compute_logits(flat[slots])
            yield logits, block.pieces


class ReplayExtension:
    """What the verifier asks of every rank. Names must not meet any attribute of vLLM's workers."""

    model_runner: Any
    rank: int
    _llm42_pass: ReplayPass | None = None
    _llm42_grammars: GrammarMasks | None = None

    def llm42_setup(self, rows: int, window: int, context: int, adapters: dict[str, str]) -> dict[str, Any] | None:
        """Refuse what is not served, load ``adapters`` (directories by name), fix the shape of all passes, and state
        what bits depend on.

        Raises :class:`~llm42.internals.served_models.NotServedError`. Returns facts for the fingerprint (rank 0).
        """
        require_served(self.model_runner)
        self._llm42_pass = ReplayPass(self.model_runner, rows, window, context, adapters)
        self._llm42_grammars = make_grammar_masks(self.model_runner.model_config)
        return worker_facts(self.model_runner) if self.rank == 0 else None

    @torch.inference_mode()
    def llm42_replay_pass(
        self,
        tokens: bytes,
        starts: bytes,
        tables: bytes,
        adapters: list[str],
        asked: list[list[int]],
        lead: int,
        orders: list[list[Any]],
    ) -> tuple[list[list[Any]], list[float]] | None:
        """One pass (see :meth:`ReplayPass.forward`) and the choices that ``asked`` wants: a row, its first slot, and
        the one behind its last. How, ``orders`` says (see :func:`~llm42.sampling.choices.choices`); for ``lead`` see
        :func:`~llm42.verifier.heads.head_blocks`.

        Returns, on rank 0, for each asked row, packed per slot from the first that was asked for to the last: token
        ids (int32), logprobs (fp32), ranks (int32), validity (one byte), the most probable token ids (int32) and
        their logprobs (fp32); then the seconds spent in the model, in the LM head and in ``select``. A row that
        cannot be chosen from has instead what kept it from that, its neighbours have their choices: the class of a
        :class:`~llm42.protocol.errors.ReplayError`, and why.
        """
        replay, grammars = self._llm42_pass, self._llm42_grammars
        assert replay is not None, "llm42_setup has not been called"
        assert grammars is not None
        clock = _Clock(replay.runner.device)
        hidden = replay.forward(tokens, starts, tables, adapters)
        in_model, in_head, in_select = clock.lap(), 0.0, 0.0
        positions = int32(starts).tolist()
        chosen: list[list[Any]] = [[] for _ in asked]
        for logits, pieces in replay.heads(hidden, asked, lead, adapters):
            in_head += clock.lap()
            if logits is None:
                continue
            for piece in pieces:
                start, order = positions[asked[piece.number][0]], orders[piece.number]
                of_row = logits[piece.places]
                chosen[piece.number] = choices(of_row, start, piece.slot, replay.chunk, order, grammars)
            in_select += clock.lap()
        return (chosen, [in_model, in_head, in_select]) if self.rank == 0 else None

    def llm42_prepare_grammar(self, fields: list[Any]) -> list[str] | None:
        """Whether a grammar can be enforced, on rank 0: see :meth:`~llm42.sampling.grammar.GrammarMasks.prepare`."""
        assert self._llm42_grammars is not None, "llm42_setup has not been called"
        state = self._llm42_grammars.prepare(Grammar.of_fields(fields))
        return list(state) if self.rank == 0 else None

    @torch.inference_mode()
    def llm42_digest_pass(
        self, tokens: bytes, starts: bytes, tables: bytes, adapters: list[str], asked: list[list[int]], lead: int
    ) -> list[bytes] | None:
        """The same pass for the audit: on rank 0, for each asked row, :data:`DIGEST_BYTES` for each of its asked slots
        that stand for all bits of its logits."""
        replay = self._llm42_pass
        assert replay is not None, "llm42_setup has not been called"
        hidden = replay.forward(tokens, starts, tables, adapters)
        digests = [b"" for _ in asked]
        for logits, pieces in replay.heads(hidden, asked, lead, adapters):
            if logits is None:
                continue
            for piece in pieces:
                digests[piece.number] = b"".join(map(_digest, logits[piece.places].cpu()))
        return digests if self.rank == 0 else None


class _Clock:
    """Seconds between laps, with the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def lap(self) -> float:
        last, self._last = self._last, self._now()
        return self._last - last

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return time.perf_counter()


def _digest(logits: Tensor) -> bytes:
    raw = logits.contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(raw.data, digest_size=DIGEST_BYTES).digest()

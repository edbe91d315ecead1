"""Log-probs of sampling and training against a plain forward pass, for every architecture."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures import WINDOW
from forward_paths import ARCHITECTURES, PreparedModel, make_model, prepare, table_row
from grpo_cl.policy.inference.fused_decode import FusedDecoder, query_tiles
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.kernels.packing import pack
from grpo_cl.policy.kernels.prefix_groups import group_by_prefix
from grpo_cl.policy.model.logprobs import LMHead, PaddedBatch
from parameters import mostly_slow
from paths import ROOT
from sampling import finish, logits, request, sampler, some_ids

pytest.importorskip("triton")

CPU = torch.device("cpu")
TEMPERATURE = 0.8
CASES = [(name, has_adapter) for name in ARCHITECTURES for has_adapter in (False, True)]
FAST = [("Gemma", False), ("Mistral, sliding window", False)]
LONGER_THAN_WINDOWS = tuple(range(2 * WINDOW["sliding_window"]))


def plain_logprobs(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """The log-prob of each token but the first, from the model's own forward pass."""
    scores = (logits(model, ids).float() / TEMPERATURE).log_softmax(-1)
    return scores[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


def sampled_turns(prepared: PreparedModel) -> list[tuple[list[int], list[int], list[float]]]:
    """Histories of two turns of three sequences, with the replies and their log-probs."""
    engine, rng = sampler(prepared.module, slots=3), Random(1)
    histories = [some_ids(rng, 3, 7) for _ in range(3)]
    added, turns = histories, list[tuple[list[int], list[int], list[float]]]()
    for _ in range(2):
        engine.submit(
            request(number, ids, max_new_tokens=3, temperature=TEMPERATURE, seed=number)
            for number, ids in enumerate(added)
        )
        done = finish(engine, len(histories))
        turns += [(ids, done[n].ids, done[n].logprobs) for n, ids in enumerate(histories)]
        added = [some_ids(rng, 2, 5) for _ in histories]
        histories = [
            [*ids, *done[number].ids, *more]
            for number, (ids, more) in enumerate(zip(histories, added, strict=True))
        ]
    return turns


def fused_sampling_logprobs(
    decoder: FusedDecoder, model: PreTrainedModel, ids: list[int]
) -> Tensor:
    """The log-prob of each token but the first: a prefill of all but two, then a decoding step."""
    runner = ModelRunner(model, context=len(ids), slots=1, device=CPU, max_prefill_tokens=len(ids))
    *prompt, token, _ = ids
    tiles = torch.tensor(query_tiles([0] * len(prompt), decoder.tile_size)).t().contiguous()
    plans = [runner.write_plan(Chunk(0, 0, prompt)), runner.write_plan(Chunk(0, len(prompt), [0]))]
    with runner.inference_mode():
        runner.reserve(len(ids))
        hidden = decoder.hidden_states(runner.cache, plans[0], torch.tensor(prompt), None, tiles)
        prefill = LMHead(model)(hidden)
        decode = decoder(runner.cache, plans[1], torch.tensor([token]), None)
    scores = (torch.cat([prefill, decode]).float() / TEMPERATURE).log_softmax(-1)
    return scores.gather(1, torch.tensor(ids)[1:, None])[:, 0]


def training_logprobs(prepared: PreparedModel, sequences: list[tuple[int, ...]]) -> Tensor:
    longest = max(map(len, sequences))
    ids_BT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in sequences])
    attention_BT = (torch.arange(longest) < torch.tensor([*map(len, sequences)])[:, None]).long()
    batch = PaddedBatch(ids_BT, attention_BT, pack(sequences, group_by_prefix(sequences)))
    with torch.no_grad():
        return prepared.computer.logprobs(
            batch, mask_BT=None, temperature=TEMPERATURE, max_logits=2**20
        ).logprobs_BT


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # peft corrects it for GPT-2
@pytest.mark.parametrize("case", mostly_slow(CASES, fast=FAST), ids=str)
def test_sampling_and_training_give_the_logprobs_of_the_plain_model(case: tuple[str, bool]) -> None:
    name, has_adapter = case
    plain = make_model(name, has_adapter=has_adapter)
    prepared = prepare(make_model(name, has_adapter=has_adapter))
    for ids, reply, reported in sampled_turns(prepared):
        expected = plain_logprobs(plain, [*ids, *reply])[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(reported), expected, atol=1e-4)
    if prepared.decoder is not None:
        ids = [9, 3, 1, 4, 1, 5, 9, 2]
        actual = fused_sampling_logprobs(prepared.decoder, prepared.module, ids)
        assert torch.allclose(actual, plain_logprobs(plain, ids), atol=1e-4)
    shared = (1, 2, 3, 7)
    sequences: list[tuple[int, ...]] = [(*shared, 8, 8), shared, (5, 6), (*shared[:3], 4, 9)]
    for part in (sequences, [LONGER_THAN_WINDOWS, *sequences]):
        for row, ids in zip(training_logprobs(prepared, part), part, strict=True):
            assert torch.allclose(row[1 : len(ids)], plain_logprobs(plain, ids), atol=1e-4)
    # An adapter changes no path, and the documentation names the paths of every architecture.
    assert table_row(name, prepared.paths) in (ROOT / "docs/training.md").read_text()

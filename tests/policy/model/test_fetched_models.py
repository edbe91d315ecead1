"""The larger models of ``fetch-model``: they are downloaded, continue a text and are trained.

They take gigabytes and minutes, so the tests run only where GRPO_CL_FETCHED names a directory, in
which the models are kept: ``GRPO_CL_FETCHED=models pytest -m slow tests/policy/model/…``.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.download import fetch_model
from grpo_cl.policy.model.policy_model import PolicyModel
from sampling import finish, request, sampler
from tiny_learners import random_batch, settings
from tiny_policies import load

FETCHED = os.environ.get("GRPO_CL_FETCHED")
PROMPT = "The capital of France is"
CONTINUATIONS = {
    "gemma-3-270m": " the capital of the country of France. It is the largest city in France",
    "tinyllama-1.1b": "the second largest city in the country. It is located in the center",
}
CPU = DistributedContext(device=torch.device("cpu"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(FETCHED is None, reason="GRPO_CL_FETCHED names no directory"),
]


@pytest.fixture(scope="module", params=CONTINUATIONS)
def fetched(request: pytest.FixtureRequest) -> tuple[str, Path]:
    name: str = request.param
    return name, fetch_model(name, Path(str(FETCHED)) / name)


def plain_logprobs(path: Path, ids: list[int]) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return scores[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


def test_greedy_text_and_logprobs_are_those_of_transformers(fetched: tuple[str, Path]):
    name, path = fetched
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids: list[int] = tokenizer(PROMPT).input_ids
    assert ids[0] == tokenizer.bos_token_id
    policy = load(path, kl_coef=0.0, model_dtype="float32")
    engine = sampler(policy.module, slots=1)
    engine.submit([request(0, ids, max_new_tokens=16)])
    (reply,) = finish(engine, 1).values()
    assert CONTINUATIONS[name] in tokenizer.decode(reply.ids)
    whole = [*ids, *reply.ids]
    expected = plain_logprobs(path, whole)
    learned = torch.tensor(policy.token_logprobs(whole))
    assert torch.allclose(learned, expected, atol=1e-3)
    # Greedy samples are reported at temperature 1.
    assert torch.allclose(torch.tensor(reply.logprobs), expected[len(ids) - 1 :], atol=1e-3)


def test_one_update_changes_the_policy(fetched: tuple[str, Path]):
    _, path = fetched
    config = settings(model_name_or_path=str(path), lora={"r": 4}, model_dtype="float32")
    policy = PolicyModel.load(config, device=CPU.device)
    before = policy.token_logprobs([2, 30, 40, 50])
    numbers = Learner(policy, config, CPU).update(*random_batch(4))
    assert numbers["grad_norm"] > 0
    assert policy.token_logprobs([2, 30, 40, 50]) != before

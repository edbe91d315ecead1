from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from grpo_cl.errors import ConfigError
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.vllm_engine import VLLMSampler, merged_weights
from tiny_learners import settings, tiny_module, with_adapter
from tiny_policies import config, load, save_model


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_a_run_is_told_what_to_install(tmp_path: Path):
    model = save_model(tmp_path)
    with pytest.raises(ConfigError, match=r"needs the package vllm, .* install vllm>=0\.20,<0\.27"):
        VLLMSampler(load(model), config(model, sampling={"engine": "vllm"}), Ranks())


def test_the_weights_of_a_plain_policy_go_out_as_they_are():
    module = tiny_module("float32", tied=True)
    expected = module.state_dict()
    found = dict(merged_weights(module))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_an_adapter_adds_goes_out_with_the_weights():
    module = with_adapter(tiny_module("float32", tied=False), settings(lora={"r": 4}))
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(len(name)))
    found = dict(merged_weights(module))
    expected = module.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)

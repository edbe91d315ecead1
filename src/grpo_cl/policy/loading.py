"""Where a policy's weights come from, and how they become a module and a tokenizer."""

import json
import re
import struct
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] — of whichever client the hub uses
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.import_utils import is_flash_attn_2_available

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.gguf import SUFFIX, mended, require_gguf
from grpo_cl.policy.tabular import TABULAR, new_tabular, register, tabular_tokenizer

TINY = "tiny"
TINY_DIR = Path(__file__).parent / "tiny"
ADAPTER_FILE = "adapter_config.json"
HUB_TIMEOUT_S = 10.0

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_WAY_OUT = (
    "give a local directory or a GGUF file, `tiny` for the embedded policy, "
    "or run `grpo-cl fetch-model smollm2-135m`"
)
# What transformers and its readers raise for files that are absent, damaged or of another kind.
_UNREADABLE = (OSError, ValueError, KeyError, SafetensorError, struct.error)


class Source(NamedTuple):
    """Where the files of a model are."""

    name: str
    """What an adapter records as its base: a hub id, or an absolute path."""
    place: str
    """What transformers is given: a directory, or a hub id."""
    gguf_file: str | None = None
    adapter_dir: Path | None = None
    """A LoRA adapter on top of the model."""

    @property
    def directory(self) -> Path | None:
        """The model's own directory; None for a model of the hub."""
        path = Path(self.place)
        return path if path.is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """What every ``from_pretrained`` is told; a model's own code is never run."""
        found: dict[str, Any] = {"trust_remote_code": False}
        return found | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def resolve(name: str) -> Source:
    """Find a model by local path, GGUF file, hub id, or the word ``tiny`` or ``tabular``."""
    if name == TINY:
        return _embedded()
    if name == TABULAR:
        return Source(name=TABULAR, place=TABULAR)
    path = Path(name).expanduser()
    if path.is_file():
        return _gguf(path.absolute())
    if path.is_dir():
        return _local(path.absolute())
    if path.is_absolute() or not _HUB_ID.fullmatch(name):
        raise ConfigError(f"no model at {name!r}; {_WAY_OUT}")
    _ask_hub(name)
    return Source(name=name, place=name)


def _embedded() -> Source:
    if not (TINY_DIR / "config.json").is_file():
        raise ConfigError(
            f"the embedded policy `tiny` is not in this installation ({TINY_DIR}); "
            "install the package again, or give the path of another model"
        )
    return Source(name=str(TINY_DIR), place=str(TINY_DIR))


def _gguf(path: Path) -> Source:
    if path.suffix.lower() != SUFFIX:
        raise ConfigError(f"{path} is a file but not a GGUF; give a model's directory instead")
    require_gguf(path)
    return Source(name=str(path), place=str(path.parent), gguf_file=path.name)


def _local(path: Path) -> Source:
    if (path / "config.json").is_file():
        return Source(name=str(path), place=str(path))
    if (path / ADAPTER_FILE).is_file():
        base = json.loads((path / ADAPTER_FILE).read_text()).get("base_model_name_or_path")
        if not base:
            raise ConfigError(f"the adapter in {path} does not name its base model; add it there")
        return resolve(str(base))._replace(adapter_dir=path)
    raise ConfigError(f"no model in {path}: it has neither config.json nor {ADAPTER_FILE}")


def _ask_hub(name: str) -> None:
    # transformers would try for most of a minute before it says that there is no network.
    try:
        snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no path and no model id; {_WAY_OUT}") from error
    else:
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise ConfigError(
            f"the hub does not give model {name!r} (status {status}); "
            "check the name, log in with `hf auth login` if it is gated, or give a local path"
        ) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise ConfigError(
            f"model {name!r} was not found locally and the hub could not be reached; {_WAY_OUT}"
        ) from error


def load_tokenizer(source: Source) -> PreTrainedTokenizerFast:
    """The model's tokenizer, with a token to pad with."""
    if source.place == TABULAR:
        return tabular_tokenizer()
    try:
        loaded = AutoTokenizer.from_pretrained(source.place, **source.options)
    except _UNREADABLE as error:
        raise _unreadable("tokenizer", source, error) from error
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise ConfigError(f"{source.name} has no tokenizer.json; save its fast tokenizer with it")
    if source.gguf_file:
        loaded = mended(loaded, Path(source.place) / source.gguf_file)
    if loaded.pad_token is None:
        if loaded.eos_token is None:
            raise ConfigError(f"the tokenizer of {source.name} has neither pad nor eos token")
        loaded.pad_token = loaded.eos_token
    return loaded


_LOADING = Lock()
"""Transformers takes the tying of weights from its class while it loads, and two at once would
give each other's back: in a server that loads beside others no weight would be tied again."""


def load_module(source: Source, config: GRPOConfig) -> PreTrainedModel | PeftModel:
    """The policy's module on the CPU, with adapters where the run asks for them."""
    register()
    is_new = source.place == TABULAR
    module = new_tabular(config.model_dtype) if is_new else _load_base(source, config)
    if config.gradient_checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if source.adapter_dir is not None:
        return _with_saved_adapter(module, source.adapter_dir, config.lora)
    return with_new_adapter(module, source, config) if config.lora.r else module


def _load_base(source: Source, config: GRPOConfig) -> PreTrainedModel:
    options: dict[str, Any] = {"dtype": config.model_dtype, "output_loading_info": True}
    if source.gguf_file:
        # Where a kernel for packed weights is installed they would stay packed and untrainable.
        options["quantization_config"] = GgufConfig(dequantize=True)
    else:
        options["use_safetensors"] = True
    if config.flash_attention:
        _require_flash_attention(config)
        options["attn_implementation"] = "flash_attention_2"
    try:
        with _LOADING:
            loaded = AutoModelForCausalLM.from_pretrained(source.place, **source.options, **options)
    except _UNREADABLE as error:
        raise _unreadable("model", source, error) from error
    module, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)
    absent = sorted(report["missing_keys"])
    if absent:
        raise ConfigError(
            f"{source.name} lacks {len(absent)} weights of its architecture ({absent[0]}, …), "
            "which would be random; it is incomplete or no causal language model"
        )
    return module


def _require_flash_attention(config: GRPOConfig) -> None:
    if not is_flash_attn_2_available():
        raise ConfigError(
            "flash_attention=true needs a CUDA GPU and the package flash-attn; "
            "install it with `pip install flash-attn`, or set flash_attention=false to use SDPA"
        )
    if config.model_dtype == "float32":
        raise ConfigError("flash_attention=true does not work in float32; set model_dtype=bfloat16")


def _unreadable(what: str, source: Source, error: Exception) -> ConfigError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ConfigError(
        f"cannot load the {what} of {source.name}: {lines[0].rstrip('.')}; "
        "it must be a causal language model that transformers knows, in safetensors or GGUF"
    )


def with_new_adapter(module: PreTrainedModel, source: Source, config: GRPOConfig) -> PeftModel:
    """The module with an adapter that changes nothing yet, as the run's ``lora`` asks for it."""
    lora = config.lora
    targets = list(lora.targets) if lora.targets != ("all-linear",) else "all-linear"
    settings = PeftLoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        base_model_name_or_path=source.name,
        task_type="CAUSAL_LM",
    )
    # peft draws the first weights from the global generator; the run's seed must decide them.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            return cast(PeftModel, get_peft_model(module, settings))
        except ValueError as error:
            raise ConfigError(
                f"lora.targets {', '.join(lora.targets)} do not fit {source.name}: {error}"
            ) from error


def _with_saved_adapter(
    module: PreTrainedModel, adapter_dir: Path, lora: LoraConfig
) -> PreTrainedModel | PeftModel:
    """Go on with the adapter, or make it part of the weights if all of them are trained."""
    try:
        adapted = PeftModel.from_pretrained(module, str(adapter_dir), is_trainable=lora.r > 0)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"cannot load the adapter in {adapter_dir}: {error}") from error
    if lora.r == 0:
        merged = cast(PreTrainedModel, cast(Any, adapted).merge_and_unload())
        merged.requires_grad_(requires_grad=True)  # peft had frozen the base
        return merged
    rank = cast(PeftLoraConfig, adapted.peft_config["default"]).r
    if rank != lora.r:
        raise ConfigError(
            f"the adapter in {adapter_dir} has rank {rank} and lora.r is {lora.r}; "
            f"set lora.r={rank} to go on with it, or lora.r=0 to merge it"
        )
    return adapted

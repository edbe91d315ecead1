"""Resolves a model name, and loads its module and tokenizer."""

import gc
import json
import struct
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] — of the HTTP client that the hub uses
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    StrictDataclassError,
)
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.import_utils import is_flash_attn_2_available

from grpo_cl.config import MODEL_HINT, GRPOConfig, LoraConfig, require_model_place
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.gguf import SUFFIX, fix_gguf_tokenizer, require_gguf
from grpo_cl.policy.model.size_limits import require_plausible_size
from grpo_cl.policy.model.tabular import (
    TABULAR,
    TabularConfig,
    new_tabular,
    register,
    tabular_tokenizer,
)
from grpo_cl.runs.checkpoints import require_sealed

TINY = "tiny"
TINY_DIR = Path(__file__).parents[1] / "tiny"
ADAPTER_FILE = "adapter_config.json"
HUB_TIMEOUT_S = 10.0

# Errors of transformers and its readers for missing, damaged or unsupported files. It does not
# validate what it reads: a list for a mapping is a TypeError, deep JSON a RecursionError.
_LOAD_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    SafetensorError,
    StrictDataclassError,
    struct.error,
)


class ModelSource(NamedTuple):
    """The files of a model."""

    name: str
    """The base model that an adapter records: a hub id or an absolute path; empty for a model with
    random weights."""
    place: str
    """The argument of ``from_pretrained``: a directory or a hub id."""
    gguf_file: str | None = None
    adapter_dir: Path | None = None
    """A LoRA adapter on top of the model."""

    @property
    def directory(self) -> Path | None:
        """The model's directory; None for a model of the hub."""
        path = Path(self.place)
        return path if path.is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of every ``from_pretrained``; code in a model repository is never run."""
        options: dict[str, Any] = {"trust_remote_code": False}
        return options | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def resolve(name: str) -> ModelSource:
    """Find a model by local path, GGUF file or hub id, or as ``tiny`` or ``tabular``."""
    if name == TINY:
        return _embedded()
    if name == TABULAR:
        return ModelSource(name=TABULAR, place=TABULAR)
    path = Path(name).expanduser()
    if path.is_file():
        return _gguf(path.absolute())
    if path.is_dir():
        return _local(path.absolute())
    require_model_place(name)
    _check_hub(name)
    return ModelSource(name=name, place=name)


def _embedded() -> ModelSource:
    if not (TINY_DIR / "config.json").is_file():
        raise ConfigError(
            f"the embedded policy `tiny` is not in this installation ({TINY_DIR}); "
            "install the package again, or give the path of another model"
        )
    return ModelSource(name=str(TINY_DIR), place=str(TINY_DIR))


def _gguf(path: Path) -> ModelSource:
    if path.suffix.lower() != SUFFIX:
        raise ConfigError(f"{path} is a file but not a GGUF; give a model's directory instead")
    require_gguf(path)
    return ModelSource(name=str(path), place=str(path.parent), gguf_file=path.name)


def _local(path: Path) -> ModelSource:
    require_sealed(path)
    if (path / "config.json").is_file():
        require_plausible_size(path, str(path))
        return ModelSource(name=str(path), place=str(path))
    if (path / ADAPTER_FILE).is_file():
        base = json.loads((path / ADAPTER_FILE).read_text()).get("base_model_name_or_path")
        if not base:
            raise ConfigError(f"the adapter in {path} does not name its base model; add it there")
        return resolve(str(base))._replace(adapter_dir=path)
    raise ConfigError(f"no model in {path}: it has neither config.json nor {ADAPTER_FILE}")


def _check_hub(name: str) -> None:
    # Without a network transformers would retry for most of a minute.
    try:
        snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is neither a path nor a model id; {MODEL_HINT}") from error
    else:
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise ConfigError(
            f"the hub does not serve model {name!r} (status {status}); "
            "check the name, log in with `hf auth login` if it is gated, or give a local path"
        ) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise ConfigError(
            f"model {name!r} was not found locally and the hub could not be reached; {MODEL_HINT}"
        ) from error


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerFast:
    """The model's tokenizer, with a padding token."""
    if source.place == TABULAR:
        return tabular_tokenizer()
    try:
        loaded = AutoTokenizer.from_pretrained(source.place, **source.options)
    except _LOAD_ERRORS as error:
        raise _load_error("tokenizer", source, error) from error
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise ConfigError(f"{source.name} has no tokenizer.json; save its fast tokenizer with it")
    if source.gguf_file:
        loaded = fix_gguf_tokenizer(loaded, Path(source.place) / source.gguf_file)
    if loaded.pad_token is None:
        if loaded.eos_token is None:
            raise ConfigError(f"the tokenizer of {source.name} has neither pad nor eos token")
        loaded.pad_token = loaded.eos_token
    return loaded


def load_model_config(source: ModelSource) -> PreTrainedConfig:
    """The model's configuration, without its weights."""
    register()
    if source.place == TABULAR:
        return TabularConfig()
    try:
        return AutoConfig.from_pretrained(source.place, **source.options)
    except _LOAD_ERRORS as error:
        raise _load_error("model", source, error) from error


_LOADING = Lock()
"""transformers changes weight tying on the class while it loads: concurrent loads, as in a server,
would restore each other's value and leave weights untied."""


def load_module(source: ModelSource, config: GRPOConfig) -> PreTrainedModel | PeftModel:
    """The policy's module on the CPU, with a LoRA adapter if the run has one."""
    register()
    is_tabular = source.place == TABULAR
    module = new_tabular(config.model_dtype) if is_tabular else _load_base(source, config)
    if config.gradient_checkpointing:
        if not module.supports_gradient_checkpointing:
            raise ConfigError(
                f"{source.name} does not support gradient_checkpointing=true; leave it out"
            )
        module.gradient_checkpointing_enable({"use_reentrant": False})
    if source.adapter_dir is not None:
        return _with_saved_adapter(module, source.adapter_dir, config.lora)
    return with_new_adapter(module, source, config) if config.lora.r else module


def _load_base(source: ModelSource, config: GRPOConfig) -> PreTrainedModel:
    options: dict[str, Any] = {"dtype": config.model_dtype, "output_loading_info": True}
    if source.gguf_file:
        # With a kernel for quantized weights installed they would stay quantized and untrainable.
        options["quantization_config"] = GgufConfig(dequantize=True)
    else:
        options["use_safetensors"] = True
    if config.flash_attention:
        _require_flash_attention(config)
        options["attn_implementation"] = "flash_attention_2"
    try:
        with _LOADING:
            loaded = AutoModelForCausalLM.from_pretrained(source.place, **source.options, **options)
    except _LOAD_ERRORS as error:
        raise _load_error("model", source, error) from error
    gc.collect()  # loading leaves reference cycles, and a run freezes what exists when it begins
    module, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"{source.name} lacks {len(missing)} weights of its architecture ({missing[0]}, …), "
            "which would be random; it is incomplete or not a causal language model"
        )
    return module


def _require_flash_attention(config: GRPOConfig) -> None:
    if not is_flash_attn_2_available():
        raise ConfigError(
            "flash_attention=true needs a CUDA GPU and the package flash-attn; "
            "install it with `pip install flash-attn`, or set flash_attention=false to use SDPA"
        )
    if config.model_dtype == "float32":
        raise ConfigError("flash_attention=true does not support float32; set model_dtype=bfloat16")


def _load_error(part: str, source: ModelSource, error: Exception) -> ConfigError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ConfigError(
        f"cannot load the {part} of {source.name}: {lines[0].rstrip('.')}; "
        "it must be a causal language model that transformers supports, in safetensors or GGUF"
    )


def with_new_adapter(module: PreTrainedModel, source: ModelSource, config: GRPOConfig) -> PeftModel:
    """The module with a new LoRA adapter, whose output is zero."""
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
    # peft initialises the adapter from the global generator; the run's seed must decide it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            return cast(PeftModel, get_peft_model(module, settings))
        except ValueError as error:
            raise ConfigError(
                f"lora.targets {', '.join(lora.targets)} do not match {source.name}: {error}"
            ) from error


def _with_saved_adapter(
    module: PreTrainedModel, adapter_dir: Path, lora: LoraConfig
) -> PreTrainedModel | PeftModel:
    """Continue with the adapter, or merge it if all weights are trained."""
    try:
        adapted = PeftModel.from_pretrained(module, str(adapter_dir), is_trainable=lora.r > 0)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"cannot load the adapter in {adapter_dir}: {error}") from error
    if lora.r == 0:
        merged = cast(PreTrainedModel, cast(Any, adapted).merge_and_unload())
        merged.requires_grad_(requires_grad=True)  # peft freezes the base model
        return merged
    rank = cast(PeftLoraConfig, adapted.peft_config["default"]).r
    if rank != lora.r:
        raise ConfigError(
            f"the adapter in {adapter_dir} has rank {rank} and lora.r is {lora.r}; "
            f"set lora.r={rank} to continue it, or lora.r=0 to merge it"
        )
    return adapted

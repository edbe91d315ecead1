"""A served policy whose weights can be replaced: all of them, or LoRA adapters by name."""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from transformers import PreTrainedModel

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.loading import load_module, resolve
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.weights import restore

_LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
"""Raised by peft and safetensors for an adapter that is damaged or of another model."""
_STRUCTURE = ("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora")
"""Settings that two adapters must share for one to be loaded over the other."""


class AdapterPool:
    """A base policy under its own name, and one LoRA adapter under each further name."""

    def __init__(self, model: PolicyModel, config: GRPOConfig, name: str) -> None:
        if isinstance(model.module, PeftModel):
            raise ConfigError(
                "the adapter pool loads adapters itself; load the policy with lora.r=0"
            )
        self.model = model
        self.name = name
        self._config = config
        self._base: PreTrainedModel = model.module
        self._peft_model: PeftModel | None = None
        # peft restricts adapter names: no dots, and no part of "lora_".
        self._peft_names: dict[str, str] = {}
        self._numbers = count()

    @property
    def names(self) -> list[str]:
        """The policy's name, then the names of the adapters."""
        return [self.name, *self._peft_names]

    @contextmanager
    def active(self, name: str) -> Generator[None]:
        """Inside the block the module is the base policy, or the policy with adapter ``name``."""
        if self._peft_model is None:
            yield
        elif name == self.name:
            with self._peft_model.disable_adapter():
                yield
        else:
            self._peft_model.set_adapter(self._peft_names[name])
            yield

    def reload(self, folder: Path) -> None:
        """Load all weights from ``folder``; a ``ConfigError`` leaves them unchanged."""
        if self._peft_model is not None:
            raise ConfigError("adapters are loaded; unload them before the weights are replaced")
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} holds no model: it has no config.json")
        loaded = load_module(resolve(str(folder)), self._config)
        weights = {name: weight.detach() for name, weight in loaded.named_parameters()}
        shapes = {name: weight.shape for name, weight in self._base.named_parameters()}
        if {name: weight.shape for name, weight in weights.items()} != shapes:
            raise ConfigError(f"the weights in {folder} are of another architecture or size")
        restore(self._base, weights)

    def load_adapter(self, name: str, folder: Path, *, in_place: bool) -> None:
        """Load the adapter of ``folder`` under ``name``; ``in_place`` may replace an adapter."""
        if name == self.name or (name in self.names and not in_place):
            raise ConfigError(f"{name!r} is taken; load in place to replace an adapter")
        for file in (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME):
            if not (folder / file).is_file():
                raise ConfigError(f"{folder} holds no adapter: it has no {file}")
        try:
            self._load(name, folder)
        except _LOAD_ERRORS as error:
            raise ConfigError(f"the adapter in {folder} does not fit: {error}") from error

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter."""
        if self._peft_model is None or name not in self._peft_names:
            raise ConfigError(f"no adapter {name!r} is loaded; there is {', '.join(self.names)}")
        peft_name = self._peft_names.pop(name)
        if self._peft_names:
            self._peft_model.delete_adapter(peft_name)
        else:
            self._base = cast(PreTrainedModel, cast(Any, self._peft_model).unload())
            self._peft_model = None

    def _load(self, name: str, folder: Path) -> None:
        settings = PeftConfig.from_pretrained(str(folder))
        is_new = name not in self._peft_names
        if not is_new and not _same_structure(self._settings(name), settings):
            self.unload_adapter(name)
            is_new = True
        if is_new:
            self._peft_names[name] = f"adapter_{next(self._numbers)}"
        peft_name = self._peft_names[name]
        with torch.random.fork_rng(devices=[]):  # peft draws initial weights before it loads
            if self._peft_model is None:
                wrapped = get_peft_model(self._base, settings, adapter_name=peft_name)
                self._peft_model = cast(PeftModel, wrapped)
            try:
                self._peft_model.load_adapter(str(folder), adapter_name=peft_name)
            except _LOAD_ERRORS:
                if is_new:
                    self.unload_adapter(name)
                raise
        self._peft_model.eval()

    def _settings(self, name: str) -> PeftConfig:
        assert self._peft_model is not None
        return self._peft_model.peft_config[self._peft_names[name]]


def _same_structure(old: PeftConfig, new: PeftConfig) -> bool:
    left, right = old.to_dict(), new.to_dict()
    same = all(left.get(name) == right.get(name) for name in _STRUCTURE)
    return same and set(left["target_modules"]) == set(right["target_modules"])

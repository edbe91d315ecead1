"""Weights that are replaced while a policy is at work: all of them, or adapters by name."""

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
from grpo_cl.policy.loading import load_module, resolve
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.reference import restore

_UNFIT = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
"""What peft and its readers raise for an adapter that is damaged or of another model."""
_SHAPE = ("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora")
"""Settings that two adapters must share for one to take the other's place."""


class Voices:
    """A policy under its own name, and with each adapter under that one's."""

    def __init__(self, model: PolicyModel, config: GRPOConfig, name: str) -> None:
        if isinstance(model.module, PeftModel):
            raise ConfigError("voices load adapters themselves; load the policy with lora.r=0")
        self.model = model
        self.name = name
        self._config = config
        self._base: PreTrainedModel = model.module
        self._adapted: PeftModel | None = None
        # peft cannot have just any name: without dots, and nothing that is part of "lora_".
        self._peft_names: dict[str, str] = {}
        self._numbers = count()

    @property
    def names(self) -> list[str]:
        """The policy's name first, then those of the adapters."""
        return [self.name, *self._peft_names]

    @contextmanager
    def speaking(self, name: str) -> Generator[None]:
        """The module is the policy, or the policy with the adapter ``name``."""
        if self._adapted is None:
            yield
        elif name == self.name:
            with self._adapted.disable_adapter():
                yield
        else:
            self._adapted.set_adapter(self._peft_names[name])
            yield

    def reload(self, folder: Path) -> None:
        """Take all weights from ``folder``; where they do not fit, nothing changes."""
        if self._adapted is not None:
            raise ConfigError("adapters are loaded; unload them before the weights are replaced")
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} holds no model: it has no config.json")
        loaded = load_module(resolve(str(folder)), self._config)
        fresh = {name: weight.detach() for name, weight in loaded.named_parameters()}
        shapes = {name: weight.shape for name, weight in self._base.named_parameters()}
        if {name: weight.shape for name, weight in fresh.items()} != shapes:
            raise ConfigError(f"the weights in {folder} are of another architecture or size")
        restore(self._base, fresh)

    def load_adapter(self, name: str, folder: Path, *, in_place: bool) -> None:
        """Speak with the adapter of ``folder`` under a name; only ``in_place`` replaces one."""
        if name == self.name or (name in self.names and not in_place):
            raise ConfigError(f"{name!r} is taken; load in place to replace an adapter")
        for file in (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME):
            if not (folder / file).is_file():
                raise ConfigError(f"{folder} holds no adapter: it has no {file}")
        try:
            self._adapt(name, folder)
        except _UNFIT as error:
            raise ConfigError(f"the adapter in {folder} does not fit: {error}") from error

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        if self._adapted is None or name not in self._peft_names:
            raise ConfigError(f"no adapter {name!r} is loaded; there is {', '.join(self.names)}")
        known = self._peft_names.pop(name)
        if self._peft_names:
            self._adapted.delete_adapter(known)
        else:
            self._base = cast(PreTrainedModel, cast(Any, self._adapted).unload())
            self._adapted = None

    def _adapt(self, name: str, folder: Path) -> None:
        settings = PeftConfig.from_pretrained(str(folder))
        is_new = name not in self._peft_names
        if not is_new and not _alike(self._settings(name), settings):
            self.unload_adapter(name)
            is_new = True
        if is_new:
            self._peft_names[name] = f"voice_{next(self._numbers)}"
        peft_name = self._peft_names[name]
        with torch.random.fork_rng(devices=[]):  # peft draws weights, which are then replaced
            if self._adapted is None:
                made = get_peft_model(self._base, settings, adapter_name=peft_name)
                self._adapted = cast(PeftModel, made)
            try:
                self._adapted.load_adapter(str(folder), adapter_name=peft_name)
            except _UNFIT:
                if is_new:
                    self.unload_adapter(name)
                raise
        self._adapted.eval()

    def _settings(self, name: str) -> PeftConfig:
        assert self._adapted is not None
        return self._adapted.peft_config[self._peft_names[name]]


def _alike(one: PeftConfig, other: PeftConfig) -> bool:
    left, right = one.to_dict(), other.to_dict()
    same = all(left.get(name) == right.get(name) for name in _SHAPE)
    return same and set(left["target_modules"]) == set(right["target_modules"])

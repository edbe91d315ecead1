"""SkyRL without flash-attn, which has no wheel: scaled dot-product attention on padded batches."""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from grpo_cl.errors import ConfigError

FLASH_ATTENTION, PACKING = "trainer.flash_attn", "trainer.remove_microbatch_padding"
"""SkyRL's settings that need flash-attn."""

_PADDING = "flash_attn.bert_padding"


def has_flash_attn() -> bool:
    """Whether flash-attn is installed."""
    return find_spec("flash_attn") is not None


def replace_flash_attn() -> None:
    """Let this process import SkyRL's models if flash-attn is not installed.

    They import two functions of it, for packed batches only. Only this submodule is replaced:
    other packages look for ``flash_attn`` and must not find it.
    """
    if not has_flash_attn():
        module = ModuleType(_PADDING)
        vars(module).update(pad_input=_refuse, unpad_input=_refuse)
        sys.modules[_PADDING] = module


def _refuse(*_: object, **__: object) -> NoReturn:
    raise ConfigError(f"{PACKING}=true needs flash-attn, which is not installed; set it to false")

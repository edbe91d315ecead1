"""Arguments of the training command; settings of AReaL before 1.0 become those of 1.0.4.

Old settings of a file become Hydra overrides, which come before those of the command line: the
same rules translate both, and the command line wins.
"""

import argparse
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from grpo_cl.errors import ConfigError

logger = logging.getLogger(__name__)

CONFIG = Path(__file__).with_name("areal.yaml")
"""The default settings file; ``--config`` names another."""

TRAINING_BACKENDS = ("fsdp", "megatron", "archon")
INFERENCE_BACKENDS = ("sglang", "vllm")
ROLES = ("rollout", "actor", "ref", "critic")
_COMPONENT = re.compile(
    rf"(?P<backend>{'|'.join((*INFERENCE_BACKENDS, *TRAINING_BACKENDS))})?"
    r"(?:\[(?P<name>\w+)\])?[.:]?(?P<sizes>\(.+\)|(?:[cdempt][1-9]\d*)+)"
)
"""One part of ``allocation_mode``: ``sglang.d4p1t1``, ``fsdp[actor]:d4``, ``d2p2m1``."""
_OVERRIDE = re.compile(r"\+{0,2}(?P<key>[^=~+@][^=@]*)=(?P<value>.*)", re.DOTALL)
_OLD_WORKER = "areal.scheduler.rpc"
_WEIGHT_CAPS = ("actor.behave_imp_weight_cap", "actor.behav_imp_weight_cap")
_WEIGHT_MODE = "actor.behave_imp_weight_mode"
_USER_URLS = ("user_llm_base_url", "user_base_url")
_WEIGHT_ACTIONS = {"token_mask": "mask", "token_truncate": "clamp"}


class OldSetting(NamedTuple):
    """A setting with the others of its source, the file or the command line."""

    key: str
    value: Any
    source: Mapping[str, Any]
    """All settings of the source by their full keys."""
    file: Mapping[str, Any]
    """The settings of the file that the source overrides."""

    def refusal(self, advice: str) -> ConfigError:
        """The error for a setting without a counterpart."""
        return ConfigError(f"{self.key}={self.value} cannot be used with AReaL 1.0.4: {advice}")


class Replacement(NamedTuple):
    """The current settings for an old one; none if it has no effect."""

    settings: Mapping[str, Any] = {}
    implied: Mapping[str, Any] = {}
    """Settings that apply unless the file or the command line has them."""


Rule = Callable[[OldSetting], Replacement]


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """``--config FILE`` and overrides with the settings of AReaL 1.0.4.

    Raises ``ConfigError`` for an old setting that cannot be translated.
    """
    parser = argparse.ArgumentParser(
        prog="python -m grpo_cl.integrations.areal",
        usage="%(prog)s [--config FILE] [key=value ...]",
        description="Train with AReaL; docs/engines/areal.md lists the settings.",
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help=f"default: {CONFIG}")
    known, overrides = parser.parse_known_args(arguments)
    file = dict(_leaves(_read_settings(known.config)))
    return [
        "--config",
        str(known.config),
        *_deletions(file),
        *_assignments(_translated(file, {})),
        *_current_overrides(overrides, file),
    ]


def _read_settings(path: Path) -> Mapping[str, Any]:
    try:
        settings: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the settings file {str(path)!r}: {error}") from error
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{str(path)!r} holds no settings; write them as YAML, `key: value`")
    return cast(Mapping[str, Any], settings)


def _current_overrides(overrides: Sequence[str], file: Mapping[str, Any]) -> list[str]:
    """The overrides of the command line, translated ones first."""
    settings: dict[str, Any] = {}
    kept: list[str] = []
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        leaves = dict(_leaves({match["key"]: _parse(match["value"])})) if match else {}
        settings |= leaves
        if not any(_rule(key, value) for key, value in leaves.items()):
            kept.append(override)
        else:
            kept += _assignments({k: v for k, v in leaves.items() if not _rule(k, v)})
    return [*_assignments(_translated(settings, file)), *kept]


def _translated(source: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """The current settings for the old ones of a source; ``file`` is what it overrides."""
    current: dict[str, Any] = {}
    implied: dict[str, Any] = {}
    for key, value in source.items():
        rule = _rule(key, value)
        if rule is None:
            continue
        old = OldSetting(key, value, source, file)
        replacement = rule(old)
        _require_no_conflict(old, replacement.settings)
        if replacement.settings and value is not None:
            shown = " ".join(f"{name}={new}" for name, new in replacement.settings.items())
            logger.warning("%s=%s is now %s", key, value, shown)
        current |= replacement.settings
        implied |= replacement.implied
    given = [*source, *file]
    return {
        name: new
        for name, new in implied.items()
        if not any(key == name or key.startswith(f"{name}.") for key in given)
    } | current


def _require_no_conflict(old: OldSetting, settings: Mapping[str, Any]) -> None:
    for name, new in settings.items():
        given = old.source.get(name, new)
        if given != new and _rule(name, given) is None:
            raise ConfigError(
                f"{old.key}={old.value} is now {name}={new}, but {name} is also set, to {given}; "
                f"remove {old.key}"
            )


def _deletions(file: Mapping[str, Any]) -> list[str]:
    """Overrides that remove the old settings of a file, which AReaL would reject."""
    nodes = {
        next(name for name in _prefixes(key) if name in RULES): value
        for key, value in file.items()
        if any(name in RULES for name in _prefixes(key))
    }
    # Hydra cannot delete a null, so it gets a value first.
    return [
        override
        for name, value in nodes.items()
        for override in ([f"++{name}=0"] if value is None else []) + [f"~{name}"]
    ]


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [f"++{key}={_render(value)}" for key, value in settings.items()]


def _render(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    match value:
        case None | bool() | int() | float():
            return str(yaml.safe_dump(value).split("\n")[0])
        case dict():
            items = cast(dict[str, Any], value).items()
            return "{" + ", ".join(f"{name}: {_render(item)}" for name, item in items) + "}"
        case list():
            return "[" + ", ".join(map(_render, cast(list[Any], value))) + "]"
        case _:
            text = str(value).replace("\\", "\\\\").replace("'", "\\'")
            return f"'{text}'"


def _parse(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings by their full keys."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast(Mapping[str, Any], value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _prefixes(key: str) -> list[str]:
    """The sections of a key, outermost first, and the key."""
    parts = key.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _rule(key: str, value: Any) -> Rule | None:
    """The rule for an old setting; None for a current one."""
    section, _, name = key.rpartition(".")
    if section in ROLES and name == "backend":
        return _backend_name if value in (*TRAINING_BACKENDS, *INFERENCE_BACKENDS) else None
    if name == "scheduling_spec" and _OLD_WORKER in str(value):
        return _refused(f"write areal.infra.rpc for {_OLD_WORKER} in its cmd")
    return next((RULES[name] for name in reversed(_prefixes(key)) if name in RULES), None)


def _renamed(*keys: str) -> Rule:
    return lambda old: Replacement(dict.fromkeys(keys, old.value))


def _refused(advice: str) -> Rule:
    def refuse(old: OldSetting) -> Replacement:
        if old.value in (None, {}):
            return Replacement()
        raise old.refusal(advice)

    return refuse


def _only(*, accepted: object, advice: str) -> Rule:
    """Accept the value that this integration has anyway."""

    def check(old: OldSetting) -> Replacement:
        if old.value != accepted:
            raise old.refusal(advice)
        return Replacement()

    return check


def _ignored(reason: str) -> Rule:
    def ignore(old: OldSetting) -> Replacement:
        logger.warning("%s=%s has no effect: %s", old.key, old.value, reason)
        return Replacement()

    return ignore


def _backend_name(old: OldSetting) -> Replacement:
    if "allocation_mode" not in old.source:
        raise ConfigError(f"{old.key}={old.value} has no number of GPUs; write {old.value}:d4")
    return Replacement()


def _backends(old: OldSetting) -> Replacement:
    """The backend of each role, from ``allocation_mode``."""
    backends: dict[str, str] = {}
    for component in _split_components(str(old.value or "")):
        match = _COMPONENT.fullmatch(component)
        role, backend = _allocation(match, old) if match else ("", "")
        if role not in ROLES or role in backends:
            raise _unreadable(old)
        backends[role] = backend
    if not {"rollout", "actor"} <= backends.keys():
        raise _unreadable(old)
    # They ran on the GPUs of the actor.
    shared = {
        role
        for role in ("ref", "critic")
        if role not in backends and any(key.startswith(f"{role}.") for key in old.source)
    }
    return Replacement(
        {f"{role}.backend": backend for role, backend in backends.items()}
        | {f"{role}.backend": "${actor.backend}" for role in sorted(shared)},
        _scheduling([*backends, *sorted(shared)])
        | {
            f"{role}.scheduling_strategy": {"type": "colocation", "target": "actor"}
            for role in sorted(shared)
        },
    )


def _scheduling(roles: Sequence[str]) -> dict[str, Any]:
    """What a launcher did: workers with a GPU each, on this machine."""
    default = dict(_leaves(_read_settings(CONFIG)))
    spec = {f"{role}.scheduling_spec": "${actor.scheduling_spec}" for role in roles}
    names = ("scheduler.type", "actor.scheduling_spec")
    return spec | {name: default[name] for name in names}


def _split_components(mode: str) -> list[str]:
    """The parts between plus signs; a mode with GPUs shared by ``|`` stays one part."""
    return [part.strip() for part in re.split(r"\+(?![^(]*\))", mode)]


def _allocation(match: re.Match[str], old: OldSetting) -> tuple[str, str]:
    """The role and backend of one component."""
    sizes = match["sizes"].replace("m", "t") if match["sizes"][0] != "(" else match["sizes"]
    backend = match["backend"] or old.source.get("actor.backend")
    if backend not in (*INFERENCE_BACKENDS, *TRAINING_BACKENDS):
        backend = "megatron" if re.search(r"[pe](?!1(?!\d))|\(", sizes) else "fsdp"
    role = match["name"] or ("rollout" if backend in INFERENCE_BACKENDS else "actor")
    return role, f"{backend}:{sizes}"


def _unreadable(old: OldSetting) -> ConfigError:
    return old.refusal(
        "it cannot be read as backends for rollouts and training; set rollout.backend, such as "
        "sglang:d6, and actor.backend, such as fsdp:d2 (and scheduling_strategy to share GPUs)"
    )


def _rejection_sampling(old: OldSetting) -> Replacement:
    """Truncation or masking of importance weights, from a cap and a mode."""
    cap = next((old.source[key] for key in _WEIGHT_CAPS if key in old.source), 5.0)
    mode = old.source.get(_WEIGHT_MODE, "token_mask")
    if cap is None or mode == "disabled":
        return Replacement({"actor.rejection_sampling": None})
    if mode not in _WEIGHT_ACTIONS:
        raise old.refusal("set actor.rejection_sampling with level, action, metric and upper")
    rule = {"level": "token", "action": _WEIGHT_ACTIONS[mode], "metric": "ratio", "upper": cap}
    return Replacement({"actor.rejection_sampling": rule})


def _synchronous(old: OldSetting) -> Replacement:
    return Replacement({} if old.value else {"rollout.max_head_offpolicyness": 0})


def _group_size(old: OldSetting) -> Replacement:
    if str(old.value).startswith("${"):
        return Replacement()
    raise old.refusal("the size of a group is gconfig.n_samples")


def _lora(old: OldSetting) -> Replacement:
    if not old.value:
        return Replacement({"actor.use_lora": False})
    serving = ("rollout.use_lora", "sglang.enable_lora", "vllm.enable_lora")
    implied = dict.fromkeys(serving, True) | {"actor.weight_update_mode": "disk"}
    return Replacement({"actor.use_lora": True}, implied)


def _lora_rank(old: OldSetting) -> Replacement:
    ranks = {f"{server}.max_lora_rank": old.value for server in INFERENCE_BACKENDS}
    return Replacement({"actor.lora_rank": old.value}, ranks)


def _lora_targets(old: OldSetting) -> Replacement:
    modules = [old.value] if isinstance(old.value, str) else old.value
    return Replacement({"actor.target_modules": modules})


def _user_model(old: OldSetting) -> Replacement:
    # Inspect speaks the Responses API with openai/NAME, which servers of open models lack.
    settings = {**old.file, **old.source}
    if old.value and any(settings.get(f"econfig.{name}") for name in _USER_URLS):
        name = f"openai-api/local/{str(old.value).removeprefix('openai/')}"
        return Replacement({"econfig.user_model": name})
    return Replacement({"econfig.user_model": old.value})


def _max_steps(old: OldSetting) -> Replacement:
    # The number of steps was the only limit.
    limits = {"econfig.options.rollout.max_steps": old.value, "econfig.max_turns": None}
    return Replacement(limits)


_NO_DROPOUT = (
    "its engines create LoRA adapters without dropout and have no setting for it; leave it out, or "
    "train locally with lora.dropout"
)

RULES: Mapping[str, Rule] = {
    "allocation_mode": _backends,
    "async_training": _synchronous,
    "launcher": _ignored("resources of the workers are set in actor.scheduling_spec"),
    "rollout.openai": _ignored("this workflow samples token ids, without AReaL's proxy"),
    "actor.peft": _refused(
        "LoRA has actor.use_lora, lora_rank, lora_alpha and target_modules; leave it out"
    ),
    "actor.peft.enable": _lora,
    "actor.peft.r": _lora_rank,
    "actor.peft.lora_alpha": _renamed("actor.lora_alpha"),
    "actor.peft.target_modules": _lora_targets,
    "actor.peft.lora_dropout": _only(accepted=0, advice=_NO_DROPOUT),
    "actor.lora_dropout": _only(accepted=0, advice=_NO_DROPOUT),
    "actor.peft.inference_mode": _only(
        accepted=False, advice="the adapter is trained; leave it out"
    ),
    "actor.peft.bias": _only(accepted="none", advice="LoRA trains no biases; leave it out"),
    "actor.peft.task_type": _only(
        accepted="CAUSAL_LM", advice="the policy is a causal LM; leave it out"
    ),
    "actor.group_size": _group_size,
    "actor.dynamic_sampling": _renamed("econfig.drop_flat_groups"),
    **dict.fromkeys((*_WEIGHT_CAPS, _WEIGHT_MODE), _rejection_sampling),
    **dict.fromkeys(
        ("actor.ds_auto_tp", "ref.ds_auto_tp"),
        _refused("tensor parallelism is the t of actor.backend, such as fsdp:d1t4"),
    ),
    "econfig.max_steps": _max_steps,
    "econfig.user_llm": _user_model,
    "econfig.user_llm_base_url": _renamed("econfig.user_base_url"),
    "econfig.user_llm_args": _refused(
        "set econfig.options.user, which has the keys of a run's `user`"
    ),
    "econfig.user_llm_args.temperature": _renamed("econfig.options.user.temperature"),
    "econfig.user_llm_args.max_tokens": _renamed("econfig.options.user.max_tokens"),
    "econfig.user_llm_args.max_completion_tokens": _renamed("econfig.options.user.max_tokens"),
    "econfig.turn_discount": _only(
        accepted=1, advice="every turn of an episode has the same reward; leave it out"
    ),
    "econfig.invalid_format_penalty": _ignored("AReaL's own recipe does not read it either"),
    "econfig.add_thinking_tool": _only(
        accepted=False, advice="the agent has the tools of the domain only"
    ),
    "econfig.save_trajectories": _renamed("rollout.dump_to_file"),
}
"""By key or section; the rule of the longest matching key applies."""

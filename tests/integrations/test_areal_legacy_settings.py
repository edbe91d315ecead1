"""Settings of AReaL before 1.0; the engine's tests load the results in AReaL itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_cl.errors import ConfigError
from grpo_cl.integrations.areal.legacy_settings import CONFIG, current_arguments


def overrides(*arguments: str) -> dict[str, Any]:
    """The values of the resulting overrides; for a setting that is set twice, the last."""
    config, path, *rest = current_arguments(arguments)
    assert (config, path) == ("--config", str(CONFIG))
    pairs = [override.lstrip("+").partition("=") for override in rest]
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def test_current_settings_are_passed_on_unchanged() -> None:
    given = ["actor.backend=fsdp:d2", "+actor.c_clip=3", "econfig.options={reward: {basis: db}}"]
    assert current_arguments(given) == ["--config", str(CONFIG), *given]


@pytest.mark.parametrize(
    ("mode", "rollout", "actor"),
    [
        ("sglang.d4p1t1+d4p1t1", "sglang:d4p1t1", "fsdp:d4p1t1"),
        ("sglang.d4p1m1+d2p2m1", "sglang:d4p1t1", "megatron:d2p2t1"),
        ("sglang:d16+fsdp:d8", "sglang:d16", "fsdp:d8"),
        ("vllm[rollout]:d4t2+archon[actor]:d4p2t1", "vllm:d4t2", "archon:d4p2t1"),
        (
            "sglang:d8t4+megatron:(attn:d4p4t2|ffn:d2p4e4)",
            "sglang:d8t4",
            "megatron:(attn:d4p4t2|ffn:d2p4e4)",
        ),
    ],
)
def test_allocation_mode_becomes_a_backend_per_role(mode: str, rollout: str, actor: str) -> None:
    assert overrides(f"allocation_mode={mode}") == {
        "rollout.backend": rollout,
        "actor.backend": actor,
    }


@pytest.mark.parametrize("mode", ["d4", "sglang:d4|fsdp:d4", "sglang.d4p1t1+eval", "sglang:d4+x2"])
def test_allocation_mode_without_both_backends_is_refused_with_the_current_settings(
    mode: str,
) -> None:
    with pytest.raises(ConfigError, match=r"set rollout\.backend, .* and actor\.backend"):
        current_arguments([f"allocation_mode={mode}"])


def test_lora_of_the_tau_branch_becomes_the_actors() -> None:
    assert overrides(
        "+actor.peft.enable=True",
        "+actor.peft.r=8",
        "+actor.peft.lora_alpha=64",
        "+actor.peft.lora_dropout=0.0",
        "+actor.peft.inference_mode=False",
        "+actor.peft.target_modules=all-linear",
    ) == {
        "actor.use_lora": True,
        "actor.lora_rank": 8,
        "actor.lora_alpha": 64,
        "actor.target_modules": ["all-linear"],
    }


def test_episode_settings_of_the_recipe_become_those_of_econfig() -> None:
    assert overrides(
        "econfig.domain=airline",
        "econfig.max_steps=50",
        "econfig.user_llm=openai/self-hosted-Qwen2.5-72B",
        "econfig.user_llm_base_url=http://localhost:8000/v1/",
        "econfig.user_llm_args={temperature: 0.5, max_completion_tokens: 512}",
        "econfig.save_trajectories=true",
        "econfig.turn_discount=1.0",
        "econfig.add_thinking_tool=false",
    ) == {
        "econfig.domain": "airline",
        "econfig.options.rollout.max_steps": 50,
        "econfig.max_turns": None,
        "econfig.user_model": "openai-api/local/self-hosted-Qwen2.5-72B",
        "econfig.user_base_url": "http://localhost:8000/v1/",
        "econfig.options.user.temperature": 0.5,
        "econfig.options.user.max_tokens": 512,
        "rollout.dump_to_file": True,
    }


def test_user_model_without_a_url_stays_with_its_provider() -> None:
    assert overrides("econfig.user_llm=openai/gpt-4.1") == {"econfig.user_model": "openai/gpt-4.1"}


def test_caps_on_importance_weights_become_rejection_sampling() -> None:
    masked = {"level": "token", "action": "mask", "metric": "ratio", "upper": 5.0}
    assert overrides("actor.behav_imp_weight_cap=5.0") == {"actor.rejection_sampling": masked}
    cap, mode = "actor.behave_imp_weight_cap=2.0", "actor.behave_imp_weight_mode"
    assert overrides(cap, f"{mode}=token_truncate") == {
        "actor.rejection_sampling": masked | {"action": "clamp", "upper": 2.0}
    }
    assert overrides(cap, f"{mode}=disabled") == {"actor.rejection_sampling": None}


def test_synchronous_training_is_a_bound_of_zero_on_off_policyness() -> None:
    assert overrides("async_training=false") == {"rollout.max_head_offpolicyness": 0}
    assert overrides("async_training=true") == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+actor.peft.lora_dropout=0.1", "create LoRA adapters without dropout .* lora.dropout"),
        ("actor.lora_dropout=0.1", "create LoRA adapters without dropout"),
        ("+actor.peft.use_dora=true", r"actor\.use_lora, lora_rank, lora_alpha"),
        ("actor.ds_auto_tp.autotp_size=4", r"the t of actor\.backend, such as fsdp:d1t4"),
        ("actor.group_size=8", r"gconfig\.n_samples"),
        ("actor.backend=fsdp", "has no number of GPUs; write fsdp:d4"),
        ("actor.behave_imp_weight_mode=other", r"set actor\.rejection_sampling"),
        ("econfig.add_thinking_tool=true", "the tools of the domain only"),
        ("econfig.turn_discount=0.9", "every turn of an episode has the same reward"),
        ("econfig.user_llm_args.top_k=3", r"set econfig\.options\.user"),
        (
            "actor.scheduling_spec=[{cmd: python3 -m areal.scheduler.rpc.rpc_server}]",
            r"write areal\.infra\.rpc",
        ),
    ],
)
def test_setting_without_a_counterpart_is_refused_with_the_current_one(
    override: str, message: str
) -> None:
    key, _, value = override.lstrip("+").partition("=")
    with pytest.raises(ConfigError, match=message) as refused:
        current_arguments([override])
    assert str(refused.value).startswith(f"{key}={yaml.safe_load(value)}")


def test_old_and_current_setting_with_different_values_are_refused() -> None:
    given = ["allocation_mode=sglang:d4+fsdp:d4", "actor.backend=fsdp:d2"]
    with pytest.raises(ConfigError, match=r"now actor.backend=fsdp:d4, but .* to fsdp:d2; remove"):
        current_arguments(given)
    same = ["allocation_mode=sglang:d4+fsdp:d4", "actor.backend=fsdp:d4"]
    assert current_arguments(same)[-1] == "actor.backend=fsdp:d4"


def test_old_settings_of_a_file_are_deleted_and_set_before_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("econfig: {max_steps: 20, user_llm: null, domain: retail}\n")
    assert current_arguments(["--config", str(path), "econfig.max_steps=30"]) == [
        "--config",
        str(path),
        "~econfig.max_steps",
        "++econfig.user_llm=0",  # Hydra deletes no null
        "~econfig.user_llm",
        "++econfig.options.rollout.max_steps=20",
        "++econfig.max_turns=null",
        "++econfig.user_model=null",
        "++econfig.options.rollout.max_steps=30",
        "++econfig.max_turns=null",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("a: [", "cannot read the settings file"), ("- a", "no settings")],
)
def test_unusable_settings_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "settings.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        current_arguments(["--config", str(path)])
    assert str(path) in str(refused.value)

"""What to type: a shell script for each engine and stage, and one that runs all stages."""

from shlex import quote
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.plans.plan import Plan, Stage


class Engine(NamedTuple):
    """How one stage is trained: words for ``python -m grpo_cl.engines.NAME``."""

    title: str
    words: tuple[str, ...]
    """Shell words. Variables: $table, $model to begin with, $out for the model that comes of it;
    in braces: settings of the run."""


ENGINES: dict[str, Engine] = {
    "areal": Engine(
        "AReaL",
        (
            'train_dataset.path="$table"',
            "train_dataset.batch_size={batch}",
            "train_dataset.shuffle=false",
            "valid_dataset=null",
            "total_train_epochs=1",
            "total_train_steps={steps}",
            'actor.path="$model"',
            "actor.optimizer.lr={learning_rate}",
            "gconfig.n_samples={samples}",
            "gconfig.temperature={temperature}",
            "gconfig.max_new_tokens={max_new_tokens}",
            "saver.freq_steps={steps}",
            'cluster.fileroot="$out"',
            "econfig.user_strategy={user}",
        ),
    ),
    "skyrl": Engine(
        "SkyRL",
        (
            "data.train_data=\"['$table']\"",
            "data.shuffle=false",
            "data.val_data=\"['$table']\"",
            "trainer.eval_before_train=false",
            "trainer.eval_interval=-1",
            "trainer.epochs=1",
            "trainer.train_batch_size={batch}",
            "trainer.policy_mini_batch_size={batch}",
            'trainer.policy.model.path="$model"',
            "trainer.policy.optimizer_config.lr={learning_rate}",
            "trainer.resume_mode=null",
            "trainer.hf_save_interval={steps}",
            'trainer.export_path="$out"',
            "generator.n_samples_per_prompt={samples}",
            "generator.sampling_params.temperature={temperature}",
            "generator.sampling_params.max_generate_length={max_new_tokens}",
            "environment.skyrl_gym.grpo_cl.user_strategy={user}",
        ),
    ),
    "trl": Engine(
        "TRL",
        (
            '--train_file "$table"',
            '--model_name_or_path "$model"',
            '--output_dir "$out"',
            "--max_steps {steps}",
            "--num_generations {samples}",
            "--per_device_train_batch_size {samples}",
            "--gradient_accumulation_steps {batch}",
            "--learning_rate {learning_rate}",
            "--beta {kl_coef}",
            "--temperature {temperature}",
            "--save_strategy no",
        ),
    ),
    "verl": Engine(
        "verl",
        (
            'data.train_files="$table"',
            'data.val_files="$table"',
            "data.train_batch_size={batch}",
            "data.shuffle=False",
            'actor_rollout_ref.model.path="$model"',
            "actor_rollout_ref.actor.optim.lr={learning_rate}",
            "actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
            '"actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]"',
            "actor_rollout_ref.rollout.n={samples}",
            "actor_rollout_ref.rollout.temperature={temperature}",
            "trainer.val_before_train=False",
            "trainer.total_training_steps={steps}",
            "trainer.save_freq={steps}",
            "trainer.resume_mode=disable",
            'trainer.default_local_dir="$out"',
        ),
    ),
}

_HEAD = """#!/bin/sh
# {what}
# RUN is where the engine's run is kept, PYTHON the engine's Python, GRPO_CL this package's command.
set -eu
plan=$(cd "$(dirname "$0"){up}" && pwd)
run=${{RUN:-"$plan/runs/{engine}"}}
: "${{PYTHON:=python}}" "${{GRPO_CL:=grpo-cl}}"
"""

_STAGE = """stage="$run"/{name}
table="$plan"/{table}
out="$stage"/model
model={model}
mkdir -p "$stage"
export GRPO_CL_ROLLOUTS="$stage"/rollouts GRPO_CL_CONFIG="$plan"/{config}
"$PYTHON" -m grpo_cl.engines.{engine} \\
    {words} \\
    "$@"
"""

_EVALUATE = """"$GRPO_CL" evaluate --config "$plan"/{config} {model} \\
    --out "$run"/{name}/evaluation.json
"""

_IMPORT = """"$GRPO_CL" import-run "$plan" --run "$run" --out "$run"/imported
"""


def stage_script(engine: str, stage: Stage, plan: Plan, config: GRPOConfig) -> str:
    """Train one stage in an engine, from the model of the stage before, and measure it."""
    chosen = ENGINES[engine]
    what = f"{chosen.title}: stage {stage.index + 1} of {len(plan.stages)}, {stage.domain}."
    settings = {
        "batch": stage.tasks_per_step,
        "steps": stage.steps,
        "samples": config.num_samples_per_prompt,
        "temperature": config.temperature,
        "max_new_tokens": config.max_new_tokens,
        "learning_rate": config.learning_rate,
        "kl_coef": config.kl_coef,
        "user": quote(config.rollout.user),
    }
    words = " \\\n    ".join(word.format(**settings) for word in chosen.words)
    model = _found(stage.checkpoint_in) if stage.index else quote(stage.checkpoint_in)
    trained = _STAGE.format(
        name=quote(stage.name),
        table=quote(stage.table),
        model=model,
        config=plan.config,
        engine=engine,
        words=words,
    )
    measured = f'--model_name_or_path "{_found(stage.name)}"'
    evaluate = _EVALUATE.format(config=plan.config, model=measured, name=quote(stage.name))
    return _HEAD.format(what=what, up="/..", engine=engine) + trained + evaluate


def engine_script(engine: str, plan: Plan) -> str:
    """All stages in turn, and the run read back; words after the script go to every stage."""
    what = f"{ENGINES[engine].title}: all {len(plan.stages)} stages of the plan, and the report."
    first = _EVALUATE.format(config=plan.config, model="", name="base").replace("  \\\\", " \\\\")
    stages = "".join(f'"$plan"/{quote(s.name)}/{engine}.sh "$@"\n' for s in plan.stages)
    ready = 'export RUN="$run" PYTHON GRPO_CL\nmkdir -p "$run"/base\n'
    return _HEAD.format(what=what, up="", engine=engine) + ready + first + stages + _IMPORT


def _found(stage: str) -> str:
    """The model that a stage left, wherever the engine put it."""
    return f'$("$GRPO_CL" import-run "$plan" --run "$run" --checkpoint {quote(stage)})'

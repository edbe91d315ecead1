"""Shell scripts: one per engine and stage, and one per engine that runs all stages."""

from shlex import quote
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.integrations.plan.records import Plan, Stage


class Engine(NamedTuple):
    """Command-line arguments of ``python -m grpo_cl.integrations.NAME`` for one stage."""

    title: str
    arguments: tuple[str, ...]
    """Shell variables: $table, $model (initial model), $out (folder of the trained model); in
    braces: settings of the run."""


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
            "trainer.ckpt_interval=-1",
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
# {title}
# RUN: folder of the engine's run; PYTHON: the engine's Python; GRPO_CL: the grpo-cl command.
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
"$PYTHON" -m grpo_cl.integrations.{engine} \\
    {arguments} \\
    "$@"
"""

_EVALUATE = """"$GRPO_CL" evaluate --config "$plan"/{config} {model} \\
    --out "$run"/{name}/evaluation.json
"""

_IMPORT = """"$GRPO_CL" import-run "$plan" --run "$run" --out "$run"/imported
"""


def stage_script(engine: str, stage: Stage, plan: Plan, config: GRPOConfig) -> str:
    """Trains one stage in an engine from the previous stage's model, and evaluates it."""
    target = ENGINES[engine]
    title = f"{target.title}: stage {stage.index + 1} of {len(plan.stages)}, {stage.domain}."
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
    arguments = " \\\n    ".join(argument.format(**settings) for argument in target.arguments)
    model = _model_of(stage.checkpoint_in) if stage.index else quote(stage.checkpoint_in)
    train = _STAGE.format(
        name=quote(stage.name),
        table=quote(stage.table),
        model=model,
        config=plan.config,
        engine=engine,
        arguments=arguments,
    )
    trained_model = f'--model_name_or_path "{_model_of(stage.name)}"'
    evaluate = _EVALUATE.format(config=plan.config, model=trained_model, name=quote(stage.name))
    return _HEAD.format(title=title, up="/..", engine=engine) + train + evaluate


def engine_script(engine: str, plan: Plan) -> str:
    """Runs all stages and imports the run; arguments of the script are passed to every stage."""
    title = f"{ENGINES[engine].title}: all {len(plan.stages)} stages of the plan, and the report."
    base = _EVALUATE.format(config=plan.config, model="", name="base").replace("  \\\\", " \\\\")
    stages = "".join(f'"$plan"/{quote(s.name)}/{engine}.sh "$@"\n' for s in plan.stages)
    setup = 'export RUN="$run" PYTHON GRPO_CL\nmkdir -p "$run"/base\n'
    return _HEAD.format(title=title, up="", engine=engine) + setup + base + stages + _IMPORT


def _model_of(stage: str) -> str:
    """A shell expression for the path of the model that a stage saved."""
    return f'$("$GRPO_CL" import-run "$plan" --run "$run" --checkpoint {quote(stage)})'

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from grpo_cl.campaigns import read_campaign
from grpo_cl.cli import main
from grpo_cl.cli.demo import _unused_dir
from grpo_cl.cli.options import read_config
from grpo_cl.cli.sft import sft_config
from grpo_cl.config import GRPOConfig
from grpo_cl.config.sft import SFTOptions, SFTSettings
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.chat import chat_for
from grpo_cl.policy.learner.sft_data import (
    CHUNK,
    DemonstrationSpec,
    demonstration_specs,
    fresh_batch,
    fresh_batches,
    generate_examples,
    generate_examples_parallel,
    shuffled_batches,
    tokenize_example,
    tokenize_examples,
)
from grpo_cl.policy.model.loading import load_tokenizer, resolve
from paths import CONFIGS
from tiny_learners import random_traces
from tiny_policies import byte_tokenizer, config, load, save_model

SMALL = ("--width", "64", "--layers", "1", "--steps", "1", "--workers", "1")


def test_count_is_for_all_domains_or_for_each() -> None:
    assert SFTOptions(count=(5,)).counts == (5, 5, 5)
    assert SFTOptions(count=(1, 1, 2)).counts == (1, 1, 2)


def test_demonstrations_have_the_difficulty_of_the_config_by_default() -> None:
    words = "tasks.difficulty.airline=0.1 tasks.difficulty.retail=0.6 --task_order airline retail"
    config = read_config(words.split())

    def levels(*given: float) -> list[tuple[str, float | None]]:
        options = SFTOptions(domain=("airline", "retail"), count=(1,), difficulty=given or None)
        specs = demonstration_specs(SFTSettings(options=options, config=config))
        return [(spec.domain, spec.difficulty) for spec in specs]

    assert levels() == [("airline", 0.1), ("retail", 0.6)]
    assert levels(0.0, 0.5) == [
        ("airline", 0.0),
        ("retail", 0.0),
        ("airline", 0.5),
        ("retail", 0.5),
    ]


def test_own_tasks_are_demonstrated_beside_those_of_every_difficulty() -> None:
    options = SFTOptions(domain=("airline", "telecom"), count=(9,), own=4, difficulty=(0.0, 0.5))
    specs = demonstration_specs(SFTSettings(options=options, config=GRPOConfig()))
    assert [(spec.domain, spec.num_tasks) for spec in specs if spec.own] == [
        ("airline", 4),
        ("telecom", 4),
    ]
    assert [spec.num_tasks for spec in specs if not spec.own] == [9] * 4


def test_demonstrations_of_own_tasks_are_of_training_tasks() -> None:
    train = set(load_domain("telecom").splits["train"])
    spec = compact_spec("telecom", 12)._replace(own=True)
    found = [example.scene.task.id for example in generate_examples(spec)]
    assert len(found) == 12
    assert set(found) <= train
    assert found == [example.scene.task.id for example in generate_examples(spec)]
    others = generate_examples(spec._replace(seed=1))
    assert found != [example.scene.task.id for example in others]
    with pytest.raises(
        ConfigError,
        match=r"only 0 of 1 own tasks of telecom have .* sampling\.max_context or leave --own out",
    ):
        fresh_batch([spec], 0, size=1, context=20)


def test_wrong_number_of_counts_is_an_error_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    assert main(["sft", "--new_tiny", "--count", "1", "2", "--out", str(out)]) == 2
    assert "--count has 2 values for 3 domains; give one value, or one per domain" in (
        capsys.readouterr().err
    )
    assert not out.exists()


def test_unknown_setting_is_an_error_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    assert main(["sft", "--new_tiny", "--out", str(out), "--learning_rat", "1"]) == 2
    found = capsys.readouterr()
    assert "did you mean 'learning_rate'?" in found.err
    assert found.out == ""
    assert not out.exists()


def test_sft_of_a_tiny_policy_uses_its_training_settings() -> None:
    new = sft_config([], SFTOptions(steps=7, new_tiny=True))
    embedded = sft_config(["--model_name_or_path", "tiny"], SFTOptions(steps=7))
    for chosen in (new, embedded):
        assert (chosen.rollout.prompt, chosen.sampling.dialect) == ("compact", "compact")
        assert (chosen.model_dtype, chosen.learning_rate) == ("float32", 3e-4)
        assert chosen.optimizer.decay_steps == 7


def test_sft_refuses_a_schedule_that_ends_before_its_steps() -> None:
    with pytest.raises(ConfigError, match=r"200 ends learning before step 500; give --optimizer"):
        sft_config(["--optimizer.decay_steps", "200"], SFTOptions(steps=500))
    constant = sft_config(["--optimizer.decay_steps", "0"], SFTOptions(steps=500))
    assert constant.optimizer.decay_steps == 0


def test_sft_of_another_model_uses_full_prompts_and_its_own_dialect() -> None:
    chosen = sft_config(["--model_name_or_path", "some/model"], SFTOptions())
    assert (chosen.rollout.prompt, chosen.sampling.dialect) == ("full", "auto")
    assert (chosen.model_dtype, chosen.learning_rate, chosen.kl_coef) == ("bfloat16", 1e-4, 0.0)
    assert chosen.sampling.max_context is None


def test_full_prompts_contain_policy_tools_and_ticket(tmp_path: Path) -> None:
    chosen = config(save_model(tmp_path))
    spec = DemonstrationSpec("retail", 0, 1, 0.0, is_compact=False, config=chosen)
    (first, *_) = found = tokenize_examples(spec, context=10**6)
    assert first is not None
    text = byte_tokenizer().decode(list(first.ids[: first.turns[0][0]]))
    places = [text.index(part) for part in ("your tools", "cancel_pending_order", "<policy>")]
    assert places == sorted(places)
    assert text.index("<ticket>") > text.index("</policy>")
    chat = chat_for(byte_tokenizer(), "auto")
    assert found == [
        tokenize_example(chat, example, context=10**6) for example in generate_examples(spec)
    ]
    assert tokenize_examples(spec, context=100) == [None] * len(found)


def test_the_campaign_of_smollm2_has_the_settings_of_its_config() -> None:
    campaign = read_campaign(CONFIGS / "campaign_smollm2.yaml")
    config_alone = read_config(["--config", str(CONFIGS / "smollm2.yaml")])
    assert GRPOConfig.model_validate(campaign.base) == config_alone


def test_fewer_demonstrations_than_a_batch_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"3 demonstrations do not fill a batch of 4; raise"):
        next(shuffled_batches(random_traces(3), size=4, seed=0))


def test_batches_can_start_at_any_step() -> None:
    traces = random_traces(5)
    first = list(islice(shuffled_batches(traces, size=2, seed=0), 9))
    for start in range(9):
        rest = shuffled_batches(traces, size=2, seed=0, start=start)
        assert list(islice(rest, 9 - start)) == first[start:]


def compact_spec(domain: str, num_tasks: int, difficulty: float = 0.0) -> DemonstrationSpec:
    tiny = GRPOConfig(model_name_or_path="tiny")
    return DemonstrationSpec(domain, 0, num_tasks, difficulty, is_compact=True, config=tiny)


def test_a_fresh_batch_is_full_and_a_function_of_its_step() -> None:
    specs = [compact_spec("airline", 3), compact_spec("healthcare", 1, 0.2)]
    first, second = (fresh_batch(specs, step, size=6, context=4096) for step in (0, 1))
    assert len(first) == len(second) == 6
    assert first == fresh_batch(specs, 0, size=6, context=4096)
    assert {trace.ids for trace in first}.isdisjoint(trace.ids for trace in second)


def test_counts_are_the_ratio_of_the_domains_in_fresh_batches() -> None:
    specs = [compact_spec("healthcare", 30), compact_spec("telecom", 10), compact_spec("toy", 0)]
    traces = [t for step in range(2) for t in fresh_batch(specs, step, size=20, context=4096)]
    tokenizer = load_tokenizer(resolve("tiny"))
    firsts = [tokenizer.decode(list(trace.ids[slice(*trace.turns[0])])) for trace in traces]
    telecom = sum("check_network_status" in first for first in firsts)
    assert 3 <= telecom <= 17
    with pytest.raises(ConfigError, match="--count is 0 for every domain; with --fresh give one"):
        fresh_batches([specs[2]], size=2, start=0, workers=1, context=99)


def test_a_context_that_no_demonstration_fits_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"only 0 of 1 tasks of healthcare at difficulty 0\.0"):
        fresh_batch([compact_spec("healthcare", 1)], 0, size=1, context=20)


@pytest.mark.slow
def test_fresh_batches_can_start_at_any_step_with_any_number_of_workers() -> None:
    specs = [compact_spec("healthcare", 1), compact_spec("telecom", 1)]
    expected = [fresh_batch(specs, step, size=3, context=4096) for step in range(7)]
    for start, workers in ((0, 1), (3, 2)):
        batches = fresh_batches(specs, size=3, start=start, workers=workers, context=4096)
        assert list(islice(batches, 7 - start)) == expected[start:]
        batches.close()


def test_every_trace_is_in_an_epoch_once() -> None:
    traces = random_traces(4)
    endless = shuffled_batches(traces, size=2, seed=0)
    epoch = [*next(endless), *next(endless)]
    assert sorted(epoch, key=traces.index) == traces


@pytest.mark.slow
def test_number_of_demonstrated_tasks_is_the_requested_one() -> None:
    spec = DemonstrationSpec("retail", 0, CHUNK + 3, 0.0, is_compact=True)
    first, rest = generate_examples_parallel([spec], workers=1)
    assert CHUNK // 2 < len(first) <= CHUNK
    assert len(rest) <= 3


@pytest.mark.slow
def test_sft_creates_a_policy_from_counts_per_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    words = ("sft", "--new_tiny", "--count", "4", "4", "8", "--batch_size", "4", "--out", str(out))
    assert main([*words, *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "Step 0: loss=" in printed
    assert f"saved to {out}" in printed
    found = re.search(r"^(\d+) demonstrations in", printed, re.MULTILINE)
    assert found is not None and 8 <= int(found[1]) <= 16
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1


def test_context_of_a_model_can_be_extended_without_training(tmp_path: Path) -> None:
    model, out = save_model(tmp_path / "model"), tmp_path / "far"
    words = ("sft", "--model_name_or_path", str(model), "--model_dtype", "float32")
    given = ("--context", "128", "--steps", "0", "--count", "0", "--out", str(out))
    assert main([*words, *given]) == 0
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == 128
    weights = [load(folder, kl_coef=0.0).fingerprint() for folder in (model, out)]
    assert weights[0] == weights[1]


def test_a_demo_goes_beside_an_earlier_one(tmp_path: Path) -> None:
    wanted = tmp_path / "demo"
    assert _unused_dir(wanted) == wanted
    wanted.mkdir()
    assert _unused_dir(wanted) == tmp_path / "demo-2"
    (tmp_path / "demo-2").touch()
    assert _unused_dir(wanted) == tmp_path / "demo-3"

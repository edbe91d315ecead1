import json
from argparse import Namespace
from pathlib import Path

import pytest

from grpo_cl.bench import read_campaign
from grpo_cl.cli import main
from grpo_cl.cli.demo import _free
from grpo_cl.cli.options import read_config
from grpo_cl.cli.sft import _config, _counts, _lessons
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat import chat_for
from grpo_cl.policy.sft import CHUNK, Lesson, all_examples, batches, examples, trace, traces
from tiny_learners import random_traces
from tiny_policies import byte_tokenizer, config, load, save_model

CONFIGS = Path(__file__).parent.parent / "configs"

SMALL = ("--width", "64", "--layers", "1", "--steps", "1", "--workers", "1")


def counts(*given: int) -> list[int]:
    domains = ["airline", "retail", "telecom"]
    return _counts(Namespace(count=list(given), domain=domains))


def test_a_count_is_for_all_domains_or_for_each() -> None:
    assert counts(5) == [5, 5, 5]
    assert counts(1, 1, 2) == [1, 1, 2]


def test_demonstrations_are_as_hard_as_the_tasks_of_a_run_unless_told_otherwise() -> None:
    words = "tasks.difficulty.airline=0.1 tasks.difficulty.retail=0.6 --task_order airline retail"
    config = read_config(words.split())

    def levels(*given: float) -> list[tuple[str, float | None]]:
        names, told = ["airline", "retail"], list(given) or None
        asked = Namespace(domain=names, count=[1], difficulty=told, seed=0, mistakes=0.0)
        return [(lesson.domain, lesson.difficulty) for lesson in _lessons(asked, config)]

    assert levels() == [("airline", 0.1), ("retail", 0.6)]
    assert levels(0.0, 0.5) == [
        ("airline", 0.0),
        ("retail", 0.0),
        ("airline", 0.5),
        ("retail", 0.5),
    ]


def test_counts_that_are_neither_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    assert main(["sft", "--new_tiny", "--count", "1", "2", "--out", str(out)]) == 2
    assert "--count has 2 numbers for 3 domains; give one for all or one for each" in (
        capsys.readouterr().err
    )
    assert not out.exists()


def test_a_wrong_setting_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    assert main(["sft", "--new_tiny", "--out", str(out), "--learning_rat", "1"]) == 2
    found = capsys.readouterr()
    assert "did you mean 'learning_rate'?" in found.err
    assert found.out == ""
    assert not out.exists()


def described(*settings: str, new_tiny: bool = False) -> GRPOConfig:
    given = Namespace(settings=list(settings), new_tiny=new_tiny, steps=7, out=Path("made"))
    return _config(given)


def test_a_tiny_policy_is_taught_as_it_is_trained() -> None:
    for chosen in (described(new_tiny=True), described("--model_name_or_path", "tiny")):
        assert (chosen.rollout.prompt, chosen.sampling.dialect) == ("compact", "compact")
        assert (chosen.model_dtype, chosen.learning_rate) == ("float32", 3e-4)
        assert chosen.optimizer.decay_steps == 7


def test_another_model_is_taught_whole_prompts_in_its_own_dialect() -> None:
    chosen = described("--model_name_or_path", "some/model")
    assert (chosen.rollout.prompt, chosen.sampling.dialect) == ("full", "auto")
    assert (chosen.model_dtype, chosen.learning_rate, chosen.kl_coef) == ("bfloat16", 1e-4, 0.0)
    assert chosen.sampling.max_context is None


def test_a_lesson_with_whole_prompts_shows_policy_tools_and_ticket(tmp_path: Path) -> None:
    chosen = config(save_model(tmp_path))
    lesson = Lesson("retail", 0, 1, 0.0, is_compact=False, config=chosen)
    (first, *_) = found = traces(lesson, context=10**6)
    assert first is not None
    text = byte_tokenizer().decode(list(first.ids[: first.turns[0][0]]))
    places = [text.index(part) for part in ("your tools", "cancel_pending_order", "<policy>")]
    assert places == sorted(places)
    assert text.index("<ticket>") > text.index("</policy>")
    chat = chat_for(byte_tokenizer(), "auto")
    assert found == [trace(chat, example, context=10**6) for example in examples(lesson)]
    assert traces(lesson, context=100) == [None] * len(found)


def test_the_campaign_of_smollm2_has_the_settings_of_its_config() -> None:
    campaign = read_campaign(CONFIGS / "campaign_smollm2.yaml")
    described_alone = read_config(["--config", str(CONFIGS / "smollm2.yaml")])
    assert GRPOConfig.model_validate(campaign.base) == described_alone


def test_fewer_demonstrations_than_a_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"3 demonstrations do not fill a batch of 4; raise"):
        next(batches(random_traces(3), size=4, seed=0))


def test_every_trace_is_met_once_in_an_epoch() -> None:
    traces = random_traces(4)
    endless = batches(traces, size=2, seed=0)
    epoch = [*next(endless), *next(endless)]
    assert sorted(epoch, key=traces.index) == traces


@pytest.mark.slow
def test_as_many_tasks_are_demonstrated_as_were_asked_for() -> None:
    lesson = Lesson("retail", 0, CHUNK + 3, 0.0, is_compact=True)
    first, rest = all_examples([lesson], workers=1)
    assert CHUNK // 2 < len(first) <= CHUNK
    assert len(rest) <= 3


@pytest.mark.slow
def test_a_policy_is_made_from_counts_of_each_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    words = ("sft", "--new_tiny", "--count", "4", "4", "8", "--batch_size", "4", "--out", str(out))
    assert main([*words, *SMALL]) == 0
    said = capsys.readouterr().out
    assert "Step 0: loss=" in said
    assert f"saved to {out}" in said
    demonstrations = int(said.split()[0])
    assert 8 <= demonstrations <= 16
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1


def test_a_model_may_be_stretched_and_taught_nothing(tmp_path: Path) -> None:
    model, out = save_model(tmp_path / "model"), tmp_path / "far"
    words = ("sft", "--model_name_or_path", str(model), "--model_dtype", "float32")
    given = ("--context", "128", "--steps", "0", "--count", "0", "--out", str(out))
    assert main([*words, *given]) == 0
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == 128
    weights = [load(folder, kl_coef=0.0).fingerprint() for folder in (model, out)]
    assert weights[0] == weights[1]


def test_a_demo_goes_beside_an_earlier_one(tmp_path: Path) -> None:
    wanted = tmp_path / "demo"
    assert _free(wanted) == wanted
    wanted.mkdir()
    assert _free(wanted) == tmp_path / "demo-2"
    (tmp_path / "demo-2").touch()
    assert _free(wanted) == tmp_path / "demo-3"

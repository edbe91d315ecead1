import pytest

from grpo_cl.envs import TOYS, Domain, load_domain
from grpo_cl.envs.base import State
from grpo_cl.envs.toy.domain import NUM_SIGNALS, OPTIONS, signal_of
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.rollout.baselines import score_baselines
from grpo_cl.types import Task, ToolCall, UserScenario


@pytest.fixture(params=list(TOYS))
def toy(request: pytest.FixtureRequest) -> Domain:
    return load_domain(request.param)


def choose(option: object, **more: object) -> ToolCall:
    return ToolCall.model_validate({"name": "choose", "arguments": {"option": option, **more}})


def test_the_gold_choice_scores_one_and_idle_or_transfer_policies_score_zero(toy: Domain) -> None:
    for task in toy.tasks("base"):
        audit = score_baselines(toy, task)
        assert (audit.gold, audit.idle, audit.transfer) == (1, 0, 0)


def test_training_and_test_tasks_have_the_same_signals_but_different_ids(toy: Domain) -> None:
    train, test = toy.tasks("train"), toy.tasks("test")
    assert len(train) == len(test) == NUM_SIGNALS
    assert not {task.id for task in train} & {task.id for task in test}
    assert [signal_of(task) for task in train] == [signal_of(task) for task in test]


def test_domains_share_neither_signals_nor_correct_options() -> None:
    tasks = [load_domain(name).tasks("train") for name in TOYS]
    assert (
        len({signal_of(task) for domain_tasks in tasks for task in domain_tasks})
        == len(TOYS) * NUM_SIGNALS
    )
    answers = [
        {str(task.gold_actions[0].arguments) for task in domain_tasks} for domain_tasks in tasks
    ]
    assert [len(options) for options in answers] == [1] * len(TOYS)
    assert len(set.union(*answers)) == len(TOYS) == len(OPTIONS) - 1


def test_only_the_first_choice_counts(toy: Domain) -> None:
    environment = toy.environment(toy.task("train-03"))
    assert not environment.call(choose("stay")).error
    again = environment.call(choose("up"))
    assert (again.error, again.content) == (True, "Error: an option was chosen already")
    signal = signal_of(toy.task("train-03"))
    assert environment.state() == State({("choices", signal): "stay"}, {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (choose("north"), "option must be one of stay, left, right, up, down"),
        (choose(["up"]), "option must be one of"),
        (choose("up", why="because"), "option must be one of"),
        (ToolCall(name="choose"), "option must be one of"),
        (ToolCall(name="think"), "Tool 'think' not found."),
        (choose("up").model_copy(update={"requestor": "user"}), "Tool 'choose' not found."),
    ],
)
def test_a_wrong_call_returns_an_error_and_changes_nothing(call: ToolCall, message: str) -> None:
    domain = load_domain("toy_up")
    environment = domain.environment(domain.task("test-00"))
    before = environment.state_hash()
    result = environment.call(call)
    assert result.error
    assert message in result.content
    assert environment.state_hash() == before


def test_generated_tasks_depend_on_the_seed_and_are_found_by_id(toy: Domain) -> None:
    tasks = toy.generate(seed=3, count=40, split="test")
    assert tasks == toy.generate(seed=3, count=40, split="test")
    assert tasks != toy.generate(seed=4, count=40, split="test")
    assert len({task.id for task in tasks}) == 40
    assert len({signal_of(task) for task in tasks}) == NUM_SIGNALS
    assert all(toy.has_task(task.id) and toy.task(task.id) == task for task in tasks)
    assert not {task.id for task in tasks} & {t.id for t in toy.generate(seed=3, count=40)}


def test_unknown_names_raise_with_the_known_ones() -> None:
    domain = load_domain("toy_left")
    assert not domain.has_task("train-99")
    with pytest.raises(TaskDataError, match="no task 'train-99'; ids are like train-00"):
        domain.task("train-99")
    with pytest.raises(ConfigError, match="no split 'dev'; known: train, test, base"):
        domain.tasks("dev")
    with pytest.raises(ConfigError, match="Did you mean 'toy_left'"):
        load_domain("toy_lft")


def test_a_task_of_another_domain_has_no_signal() -> None:
    task = Task(id="7", domain="airline", user_scenario=UserScenario(instructions="Cancel."))
    with pytest.raises(TaskDataError, match="task '7' of domain 'airline' has no signal"):
        signal_of(task)


def test_tool_schemas_match_the_tools(toy: Domain) -> None:
    solo = [tool["function"]["name"] for tool in toy.tools(solo=True)]
    assert solo == ["choose", "done"]
    assert [tool["function"]["name"] for tool in toy.tools()] == ["choose"]
    parameters = toy.tools()[0]["function"]["parameters"]
    assert parameters["properties"]["option"]["enum"] == list(OPTIONS)
    assert not toy.user_tools

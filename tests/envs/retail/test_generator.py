"""Generated retail tasks are solved by their gold actions, obey the policy and are reproducible."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from inspect_evals.tau2.retail.data_model import GiftCard, RetailDB

from generation import retail as generate
from grpo_cl.envs import load_domain
from grpo_cl.envs.base import Domain
from grpo_cl.envs.generation.customers import customers
from grpo_cl.errors import ConfigError
from grpo_cl.types import Action, Task
from retail_tasks import customer, instructions_of, writes


def after(retail: Domain, task: Task, actions: Sequence[Action]) -> dict[Any, Any]:
    environment = retail.environment(task)
    for action in actions:
        result = environment.call(action.call)
        assert not result.error, (task.id, action, result.content)
    return dict(environment.state().agent)


@pytest.mark.slow
def test_gold_calls_succeed_and_change_the_database_unless_the_task_is_a_refusal(
    retail: Domain, mixed: list[Task], hardest: list[Task]
) -> None:
    for task in mixed + hardest:
        assert (after(retail, task, task.gold_actions) == {}) == task.is_refusal


def test_the_order_of_the_requests_does_not_change_the_final_state(
    retail: Domain, hardest: list[Task]
) -> None:
    for task in hardest:
        steps = writes(task)
        assert after(retail, task, steps) == after(retail, task, steps[::-1])


def test_generating_and_replaying_does_not_change_the_shared_database(
    retail: Domain, database: RetailDB
) -> None:
    before = database.get_hash()
    for task in generate(database, seed=0, count=50, split="test", difficulty=None):
        after(retail, task, task.gold_actions)
    assert database.get_hash() == before


def test_tasks_depend_on_the_seed_only(database: RetailDB) -> None:
    first = generate(database, seed=3, count=30, split="train", difficulty=None)
    again = generate(database, seed=3, count=30, split="train", difficulty=None)
    other = generate(database, seed=4, count=30, split="train", difficulty=None)
    assert first == again
    assert not {task.ticket for task in first} & {task.ticket for task in other}


def test_a_larger_count_keeps_the_first_tasks(database: RetailDB) -> None:
    short = generate(database, seed=5, count=10, split="train", difficulty=0.5)
    long = generate(database, seed=5, count=40, split="train", difficulty=0.5)
    assert long[:10] == short


def test_train_and_test_share_no_customer_and_no_order(
    database: RetailDB, mixed: list[Task]
) -> None:
    tests = generate(database, seed=11, count=200, split="test", difficulty=None)
    for tasks, split in ((mixed, "train"), (tests, "test")):
        users = {user.user_id for user in customers(database.users, folder="retail", split=split)}
        for task in tasks:
            assert customer(database, task).user_id in users
            for number in re.findall(r"#W\d+", f"{instructions_of(task)} {task.gold_actions}"):
                assert database.orders[number].user_id in users


@pytest.mark.parametrize("name", ["airline", "retail"])
def test_customers_of_tau2_test_tasks_are_not_in_the_training_split(name: str) -> None:
    domain = load_domain(name)
    users = domain.database.model.users  # type: ignore[attr-defined]
    members = [customers(users, folder=name, split=split) for split in ("train", "test")]
    ids = [{user.user_id for user in users} for users in members]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == set(users)
    tested = " ".join(task.model_dump_json() for task in domain.tasks("test"))
    assert not [user for user in ids[0] if user in tested]
    assert len(ids[0]) > 300


@pytest.mark.slow
@pytest.mark.parametrize("difficulty", [0.0, 1.0])
def test_thousands_of_tasks_have_different_gold_actions(
    database: RetailDB, difficulty: float
) -> None:
    tasks = generate(database, seed=1, count=2000, split="train", difficulty=difficulty)
    golds = {str([action.arguments for action in writes(task)]) for task in tasks}
    refusals = sum(task.is_refusal for task in tasks)
    assert len(golds) >= 2000 - refusals
    assert len({task.ticket for task in tasks}) == 2000


def test_the_easiest_tasks_have_one_write_and_no_forbidden_request(database: RetailDB) -> None:
    for task in generate(database, seed=2, count=300, split="train", difficulty=0.0):
        assert len(writes(task)) == 1
        assert not task.is_refusal
        assert "refused" not in str(task.description)
        assert instructions_of(task).unknown_info is None


def test_writes_grow_with_difficulty(database: RetailDB) -> None:
    means: list[float] = []
    for difficulty in (0.0, 0.3, 0.6, 1.0):
        tasks = generate(database, seed=6, count=200, split="train", difficulty=difficulty)
        counts = [len(writes(task)) for task in tasks if not task.is_refusal]
        means.append(sum(counts) / len(counts))
    assert means == sorted(means)
    assert means[0] == 1
    assert 3 <= means[-1] <= 4


@pytest.mark.slow
def test_refusals_are_a_small_share(mixed: list[Task], database: RetailDB) -> None:
    hardest = generate(database, seed=8, count=1000, split="train", difficulty=1.0)
    assert 0.02 < sum(task.is_refusal for task in mixed) / len(mixed) < 0.12
    assert 0.10 < sum(task.is_refusal for task in hardest) / len(hardest) < 0.18


def test_some_tasks_with_writes_contain_a_forbidden_request(hardest: list[Task]) -> None:
    with_forbidden = [t for t in hardest if not t.is_refusal and "refused:" in str(t.description)]
    assert 0.15 < len(with_forbidden) / len(hardest) < 0.45


def test_every_kind_of_write_occurs(mixed: list[Task]) -> None:
    names = {action.name for task in mixed for action in writes(task)}
    assert names == {
        "cancel_pending_order",
        "exchange_delivered_order_items",
        "modify_pending_order_address",
        "modify_pending_order_items",
        "modify_pending_order_payment",
        "modify_user_address",
        "return_delivered_order_items",
    }


def test_writes_concern_the_customers_own_orders_once_each(
    database: RetailDB, hardest: list[Task]
) -> None:
    for task in hardest:
        user = customer(database, task)
        handled: dict[Any, list[str]] = {}
        for action in writes(task):
            handled.setdefault(action.arguments.get("order_id"), []).append(action.name)
        assert handled.pop(None, ["modify_user_address"]) == ["modify_user_address"]
        for number, names in handled.items():
            assert number in user.orders
            # An order may be redirected first; after its items changed it is closed.
            assert len(names) == 1 or names == [
                "modify_pending_order_address",
                "modify_pending_order_items",
            ]


def test_new_items_are_other_available_variants_of_the_same_product(
    database: RetailDB, hardest: list[Task]
) -> None:
    swaps: list[Any] = [
        action.arguments
        for task in hardest
        for action in writes(task)
        if "new_item_ids" in action.arguments
    ]
    for swap in swaps:
        products = {i.item_id: i.product_id for i in database.orders[swap["order_id"]].items}
        for old, new in zip(swap["item_ids"], swap["new_item_ids"], strict=True):
            assert new != old
            assert database.products[products[old]].variants[new].available


def test_a_pending_order_changes_one_item_only(hardest: list[Task]) -> None:
    changes: list[Any] = [
        action.arguments
        for task in hardest
        for action in writes(task)
        if action.name == "modify_pending_order_items"
    ]
    assert changes
    assert all(len(change["item_ids"]) == 1 for change in changes)


def test_refunds_of_returns_go_to_the_original_method_or_a_gift_card(
    database: RetailDB, hardest: list[Task]
) -> None:
    for task in hardest:
        methods = customer(database, task).payment_methods
        for action in writes(task):
            if action.name == "return_delivered_order_items":
                arguments: Any = action.arguments
                history = database.orders[arguments["order_id"]].payment_history
                original = history[0].payment_method_id
                method = methods[arguments["payment_method_id"]]
                assert method.id == original or isinstance(method, GiftCard)


def test_an_invalid_difficulty_or_split_is_rejected(database: RetailDB) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        generate(database, seed=0, count=1, split="train", difficulty=1.5)
    with pytest.raises(ConfigError, match="dev"):
        generate(database, seed=0, count=1, split="dev", difficulty=None)


def test_ids_contain_generator_split_and_seed(mixed: list[Task]) -> None:
    assert all(task.domain == "retail" for task in mixed)
    assert all(task.id.startswith("retail-gen-train-11-") for task in mixed)
    assert len({task.id for task in mixed}) == len(mixed)

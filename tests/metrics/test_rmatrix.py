import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.envs import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix, measure
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout.baselines import scripted_recording
from grpo_cl.rollout.recordings import execute
from grpo_cl.storage.files import write_json
from grpo_cl.types import ActionCheck, Reward, RewardType

EMPTY = RMatrix(domains=("airline", "retail"))


def cell(mean: float) -> Cell:
    return Cell(mean=mean, tasks={"t": (1, 2)}, components={"DB": mean})


def check(*, name: bool, arguments: bool) -> ActionCheck:
    return ActionCheck(
        action_id="a",
        name="book",
        requestor="assistant",
        is_write=True,
        match=arguments,
        name_match=name,
        arguments_match=arguments,
    )


def reward(value: float, database: float, *checks: ActionCheck) -> Reward:
    return Reward(
        value=value,
        basis=(RewardType.DB,),
        basis_name="tau2",
        components={RewardType.DB: database},
        action_checks=checks,
        tool_accuracy=sum(c.match for c in checks) / len(checks) if checks else None,
    )


def test_the_file_has_the_documented_form():
    matrix = EMPTY.with_cell("airline", "retail", cell(0.25)).with_cell(BASE, "airline", cell(0.5))
    assert matrix.to_json() == {
        "domains": ["airline", "retail"],
        "rows": [
            {
                "after": "base",
                "cells": {
                    "airline": {"mean": 0.5, "tasks": {"t": [1, 2]}, "components": {"DB": 0.5}}
                },
            },
            {
                "after": "airline",
                "cells": {
                    "retail": {"mean": 0.25, "tasks": {"t": [1, 2]}, "components": {"DB": 0.25}}
                },
            },
        ],
    }


def test_a_written_matrix_is_read_back(tmp_path: Path):
    facts = {"airline": DomainFacts(idle=0.35, basis=(RewardType.DB,))}
    full = Cell(mean=1.0, tasks={"t": (2, 2)}, reward_std=0.0, tool_accuracy=1.0)
    matrix = RMatrix(domains=("airline",), facts=facts).with_cell("airline", "airline", full)
    write_json(tmp_path / "r.json", matrix.to_json())
    assert RMatrix.load(tmp_path / "r.json") == matrix


def test_missing_cells_stay_missing_and_are_never_zero():
    matrix = EMPTY.with_cell("retail", "retail", cell(0.5))
    assert matrix.scores() == [[None, None], [None, None], [None, 0.5]]
    assert matrix.component("DB") == [[None, None], [None, None], [None, 0.5]]
    assert matrix.component("COMMUNICATE")[2] == [None, None]
    assert matrix.cell(BASE, "airline") is None
    assert EMPTY.scores() == []


def test_a_second_evaluation_replaces_the_first():
    matrix = EMPTY.with_cell(BASE, "airline", cell(0.1)).with_cell(BASE, "airline", cell(0.2))
    assert matrix.scores() == [[0.2, None]]


def test_cells_outside_of_the_matrix_are_refused():
    with pytest.raises(ValueError, match="telecom"):
        EMPTY.with_cell("telecom", "airline", cell(0.1))
    with pytest.raises(ValueError, match="telecom"):
        EMPTY.with_cell(BASE, "telecom", cell(0.1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"domains": ["base"]},
        {"domains": ["a"], "rows": [{"after": "b", "cells": {}}]},
        {"domains": ["a"], "rows": [{"after": "a", "cells": {}}, {"after": "base", "cells": {}}]},
        {"domains": ["a"], "rows": [{"after": "a", "cells": {}}, {"after": "a", "cells": {}}]},
        {
            "domains": ["a"],
            "rows": [{"after": "a", "cells": {"b": {"mean": 1.0, "tasks": {}}}}],
        },
        {
            "domains": ["a"],
            "rows": [{"after": "a", "cells": {"a": {"mean": 1.0, "tasks": {"t": [2, 1]}}}}],
        },
        {
            "domains": ["a"],
            "rows": [
                {
                    "after": "a",
                    "cells": {
                        "a": {"mean": 1.0, "tasks": {}, "component_tasks": {"DB": {"t": 1.0}}}
                    },
                }
            ],
        },
    ],
)
def test_an_inconsistent_matrix_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        RMatrix.model_validate(wrong)


def test_a_damaged_file_is_named(tmp_path: Path):
    (tmp_path / "r.json").write_text(json.dumps({"domains": 3}))
    with pytest.raises(ConfigError, match=r"r\.json is not an R-matrix"):
        RMatrix.load(tmp_path / "r.json")
    with pytest.raises(ConfigError, match="no R-matrix at"):
        RMatrix.load(tmp_path / "absent.json")


def test_a_cell_weighs_tasks_equally_and_keeps_counts():
    right = check(name=True, arguments=True)
    half = check(name=True, arguments=False)
    measured = measure(
        {
            "often": [reward(1.0, 1.0, right), reward(0.0, 1.0, half), reward(0.0, 0.0, half)],
            "once": [reward(1.0, 1.0)],
        }
    )
    assert measured.mean == pytest.approx((1 / 3 + 1) / 2)
    assert measured.tasks == {"often": (1, 3), "once": (1, 1)}
    assert measured.pass_rate == pytest.approx(2 / 3)
    assert measured.components == pytest.approx(
        {"DB": (2 / 3 + 1) / 2, "tool_name": 1.0, "tool_arguments": 1 / 3}
    )
    assert measured.reward_std == 0.5
    assert measured.tool_accuracy == pytest.approx(1 / 3)
    assert measured.numbers() == pytest.approx(
        {"reward_mean": 2 / 3, "reward_std": 0.5, "pass_rate": 2 / 3, "tool_accuracy": 1 / 3}
    )


def test_a_cell_without_gold_actions_has_no_tool_accuracy():
    measured = measure({"t": [reward(1.0, 1.0)]})
    assert measured.tool_accuracy is None
    assert "tool_name" not in measured.components
    assert "tool_accuracy" not in measured.numbers()


def test_a_component_is_averaged_over_the_tasks_that_are_judged_by_it():
    """Two trials of one task that asks for a number, told once; a second task asks for nothing."""

    def told(*checks: bool) -> Reward:
        components = {RewardType.DB: 1.0, RewardType.COMMUNICATE: float(all(checks))}
        found = reward(float(all(checks)), 1.0)
        return found.model_copy(update={"components": components, "communicate_checks": checks})

    measured = measure({"asks": [told(True), told(False)], "does not": [told(), told()]})
    assert measured.components == {"DB": 1.0, "COMMUNICATE": 0.5}
    assert measured.component_tasks == {
        "DB": {"asks": 1.0, "does not": 1.0},
        "COMMUNICATE": {"asks": 0.5},
    }
    assert measured.mean == 0.75


def test_an_evaluation_without_episodes_is_refused():
    with pytest.raises(ValueError, match="at least one episode"):
        measure({})


def test_a_component_that_no_task_is_judged_by_is_missing(domain: Callable[[str], Domain]) -> None:
    """Retail tasks have no environment assertions; telecom tasks have them."""
    for name, absent in (("retail", "ENV_ASSERTION"), ("telecom", "COMMUNICATE")):
        env = domain(name)
        oracle = RewardOracle({name: env})
        tasks = env.tasks("test")[:3]
        idle = [execute(env, task, scripted_recording(task, ())).trajectory for task in tasks]
        cell = measure({one.task.id: [oracle.score(one)] for one in idle})
        assert absent not in cell.components
        assert {"DB", "ACTION"} <= set(cell.components)

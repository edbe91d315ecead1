"""Files that ``grpo-cl init`` writes; ``$name`` and ``$Class`` stand for the chosen name."""

from typing import NamedTuple


class FileTemplate(NamedTuple):
    """A file and its test."""

    source: str
    test: str
    next_steps: str
    """Commands to copy; ``$name`` is the name of the file."""


ALGORITHM = FileTemplate(
    '''"""A continual-learning algorithm: docs/algorithms.md lists the hooks."""

from grpo_cl import CLAlgorithm
from grpo_cl.types import Record


class Options(Record):
    """Set on the command line as cl_options.NAME."""

    pull: float = 0.1
    """How far the weights move back after each step: 0 not at all, 1 completely."""


class $Class(CLAlgorithm[Options]):
    """Moves the weights towards those at the end of the previous domain."""

    options_type = Options
    kept = None

    def post_step_hook(self, trainer, domain):
        """Called after every update."""
        if self.kept is None:
            return
        learner = trainer.policy.learner
        pull, weights = self.options.pull, learner.weights()
        learner.load_weights(
            {name: weight.lerp(self.kept[name], pull) for name, weight in weights.items()}
        )

    def post_task_hook(self, trainer, domain):
        """Called after the last step of a domain, before its evaluation."""
        self.kept = trainer.policy.learner.weights()
''',
    """from pathlib import Path

from grpo_cl.cli import main

HERE = Path(__file__).parent


def test_a_run_with_the_algorithm_ends_with_a_matrix(tmp_path):
    words = "train --model_name_or_path tabular --task_order toy_left toy_right"
    own = ["--cl_algorithm", f"{HERE / '$name.py'}:$Class", "--log_dir", str(tmp_path / "run")]
    assert main([*words.split(), "--num_steps_per_task", "2", "cl_options.pull=0.5", *own]) == 0
    assert (tmp_path / "run" / "r_matrix.json").exists()
""",
    """toy="--model_name_or_path tabular --task_order toy_left toy_right --learning_rate 0.5"
grpo-cl train $$toy --log_dir runs/baseline
grpo-cl train $$toy --cl_algorithm $name.py:$Class --log_dir runs/$name
grpo-cl compare runs/baseline runs/$name""",
)

DOMAIN = FileTemplate(
    '''"""A domain: tools over a database, and a function that draws tasks. docs/domains.md"""

from functools import cache

from pydantic import BaseModel

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.generation.tasks import TaskSpec, agent_task, in_split
from grpo_cl.envs.tau2 import GeneratedDomain, Side
from grpo_cl.envs.toolkit import Toolkit, function_schema, text_parameters
from grpo_cl.errors import ToolError

ROOMS = ("hall", "kitchen", "bath", "attic", "garden", "office", "nursery", "cellar")
LEVELS = ("off", "dim", "low", "medium", "bright")


class Lamp(BaseModel):
    level: str = "off"


class Board(BaseModel):
    lamps: dict[str, Lamp]


@cache  # once per process; an episode copies the records that it looks up
def database():
    return SharedDatabase(Board(lamps={room: Lamp() for room in ROOMS}))


class Tools(Toolkit):
    tools = frozenset({"set_lamp"})
    writes = tools

    def set_lamp(self, room, level):
        if room not in self.db.lamps or level not in LEVELS:  # the agent reads the text
            raise ToolError(f"rooms are {', '.join(ROOMS)} and levels {', '.join(LEVELS)}")
        self.db.lamps[room].level = level
        return "ok"


SCHEMA = function_schema("set_lamp", "Set a lamp.", text_parameters(room="Where.", level="How."))


class $Class(GeneratedDomain):
    """Lamps in eight rooms, set as a ticket asks."""

    name = folder = "$name"
    task_seed = 1
    agent_side = Side(toolkit=Tools, schemas=lambda: [SCHEMA], database=database)

    def policy_text(self, *, solo=False):
        return "Set each lamp as the ticket says, and no other lamp."

    def task_maker(self, split):
        def make(rng, difficulty):
            rooms = rng.sample(ROOMS, 1 + round(difficulty))
            wishes = [{"room": room, "level": rng.choice(LEVELS[1:])} for room in rooms]
            parts = [f"the {wish['room']} lamp to {wish['level']}" for wish in wishes]
            ticket = f"Please set {' and '.join(parts)}."
            if not in_split(ticket, split):  # a ticket is in train or in test, never in both
                return None
            spec = TaskSpec(
                purpose="Set lamps.",
                reason_for_call=ticket,
                known_info="",
                unknown_info=None,
                task_instructions="End the conversation when the lamps are set.",
                ticket=ticket,
                actions=[("set_lamp", wish) for wish in wishes],  # the solution
            )
            return agent_task(spec, domain=self.name)

        return make
''',
    """from pathlib import Path

from grpo_cl.cli import main

DOMAIN = f"{Path(__file__).parent / '$name.py'}:$Class"


def test_every_task_is_solved_by_its_gold_actions():
    assert main(["tasks", "check", "--domain", DOMAIN, "--generated", "20"]) == 0
""",
    """grpo-cl tasks check --domain $name.py:$Class --generated 20
grpo-cl play --domain $name.py:$Class --user solo --scripted
grpo-cl train --model_name_or_path MODEL --task_order $name.py:$Class --log_dir runs/$name""",
)

USER = FileTemplate(
    '''"""A user simulator: plays the customer of one episode. docs/users.md"""

from grpo_cl.types import Message
from grpo_cl.users.base import STOP, User


class $Class(User):
    """Says everything in the first message, agrees to everything, and leaves soon."""

    def __init__(self, task, user_tools):
        # user_tools has the schemas of tools that the customer has, as in telecom.
        self.request = task.ticket or str(task.user_scenario.instructions)
        self.num_messages = 0

    async def respond(self, messages):
        """The customer's next message, after the messages that a customer sees."""
        self.num_messages += 1
        if self.num_messages == 1:
            return Message(role="user", content=self.request)
        return Message(role="user", content="Yes." if self.num_messages < 4 else STOP)
''',
    """from pathlib import Path

from grpo_cl.cli import main

USER = f"{Path(__file__).parent / '$name.py'}:$Class"


def test_an_episode_with_the_user_ends():
    assert main(["play", "--domain", "mock", "--user", USER, "--scripted", "--count", "1"]) == 0
""",
    """grpo-cl play --domain retail --user $name.py:$Class --scripted --count 2
grpo-cl train --model_name_or_path tiny --rollout.user $name.py:$Class --log_dir runs/$name""",
)

REWARD = FileTemplate(
    '''"""A shaped reward, for training only: evaluations never use it. docs/rewards.md"""


def $name(reward, weights):
    """1 for a solved task, else half of the share of gold actions that were called.

    ``reward.value`` is the task's own reward, ``reward.components`` its parts by name,
    ``reward.action_checks`` says which gold actions were called, and ``weights`` is the setting
    reward.weights.
    """
    if reward.value >= 1:
        return 1.0
    checks = reward.action_checks
    if not checks:
        return reward.value
    return 0.5 * sum(check.match for check in checks) / len(checks)
''',
    """from pathlib import Path

from grpo_cl.rewards import find_shaping
from grpo_cl.types import Reward

PLACE = f"{Path(__file__).parent / '$name.py'}:$name"


def test_a_solved_task_is_worth_one_and_a_failed_one_less():
    shaping = find_shaping(PLACE)
    worth = [shaping(Reward(value=value, basis=(), basis_name="tau2"), {}) for value in (0.0, 1.0)]
    assert worth == [0.0, 1.0]
""",
    """grpo-cl train --model_name_or_path tiny --reward.shaping $name.py:$name \\
    --log_dir runs/$name""",
)

EXPERIMENT = FileTemplate(
    """# Two algorithms, two seeds each, compared: grpo-cl bench $name.yaml (docs/campaigns.md)
name: $name
out: runs/$name
workers: 2
seeds: [0, 1]
compute: steps
base:
  # `tabular` and the toy domains take seconds. For the embedded policy on real domains write
  # model_name_or_path: tiny, and task_order: [airline, retail, telecom].
  model_name_or_path: tabular
  task_order: [toy_left, toy_right]
  num_steps_per_task: 5
  learning_rate: 0.5
  evaluation: {max_tasks: 8}
  logging: {trackers: []}
algorithms:
  - name: sequential  # the baseline
  - name: replay
""",
    """from pathlib import Path

from grpo_cl.cli import main

FILE = Path(__file__).parent / "$name.yaml"


def test_the_campaign_can_be_planned(capsys):
    assert main(["bench", str(FILE), "--dry_run"]) == 0
    assert "4 runs" in capsys.readouterr().out
""",
    """grpo-cl bench $name.yaml --dry_run
grpo-cl bench $name.yaml""",
)

TEMPLATES = {
    "experiment": EXPERIMENT,
    "domain": DOMAIN,
    "algorithm": ALGORITHM,
    "user": USER,
    "reward": REWARD,
}

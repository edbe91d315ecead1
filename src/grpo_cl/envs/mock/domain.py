"""The mock domain of τ²-bench: a to-do list, used by tests and examples.

``inspect-evals`` has its data but no tools; these follow τ²-bench's descriptions.
"""

from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.tau2 import Side, Tau2Domain
from grpo_cl.envs.tau2_files import parse_database
from grpo_cl.envs.toolkit import COMMON_TOOLS, build_toolkit, function_schema, text_parameters
from grpo_cl.errors import ToolError
from grpo_cl.types import ToolSchema


class TodoItem(BaseModel):
    """One entry of a to-do list."""

    task_id: str
    title: str
    description: str | None = None
    status: Literal["pending", "completed"] = "pending"


class TodoUser(BaseModel):
    """An owner of to-do entries."""

    user_id: str
    name: str
    tasks: list[str] = []


class TodoDB(BaseModel):
    """All entries and their owners."""

    tasks: dict[str, TodoItem]
    users: dict[str, TodoUser]


class Notification(BaseModel):
    """A message in the user's inbox."""

    notification_id: str
    message: str
    task_id: str | None = None
    status: Literal["unread", "read"] = "unread"


class InboxDB(BaseModel):
    """The user's inbox."""

    notifications: dict[str, Notification] = {}


class _TodoFunctions(BaseModel):
    db: Any

    def create_task(self, user_id: str, title: str, description: str | None = None) -> TodoItem:
        if user_id not in self.db.users:
            raise ToolError(f"User {user_id} not found")
        task_id = f"task_{len(self.db.tasks) + 1}"
        item = TodoItem(task_id=task_id, title=title, description=description)
        self.db.tasks[task_id] = item
        self.db.users[user_id].tasks.append(task_id)
        return item

    def get_users(self) -> list[TodoUser]:
        return list(self.db.users.values())

    def update_task_status(self, task_id: str, status: str) -> TodoItem:
        if task_id not in self.db.tasks:
            raise ToolError(f"Task {task_id} not found")
        self.db.tasks[task_id].status = status
        return self.db.tasks[task_id]

    def assert_number_of_tasks(self, user_id: str, expected_number: int) -> bool:
        return len(self.db.users[user_id].tasks) == expected_number

    def assert_task_status(self, task_id: str, expected_status: str) -> bool:
        return task_id in self.db.tasks and self.db.tasks[task_id].status == expected_status


class _InboxFunctions(BaseModel):
    db: Any

    def check_notifications(self) -> list[Notification]:
        return list(self.db.notifications.values())

    def dismiss_notification(self, notification_id: str) -> str:
        if notification_id not in self.db.notifications:
            raise ToolError(f"Notification {notification_id} not found")
        self.db.notifications[notification_id].status = "read"
        return f"Notification {notification_id} dismissed."

    def add_notification(
        self, notification_id: str, message: str, task_id: str | None = None
    ) -> str:
        self.db.notifications[notification_id] = Notification(
            notification_id=notification_id, message=message, task_id=task_id
        )
        return f"Notification {notification_id} added."

    def assert_notification_status(self, notification_id: str, expected_status: str) -> bool:
        notification = self.db.notifications.get(notification_id)
        return notification is not None and notification.status == expected_status


MockTools = build_toolkit(
    _TodoFunctions,
    name="MockTools",
    tools=["create_task", "get_users", "update_task_status", "transfer_to_human_agents"],
    writes=["create_task", "update_task_status"],
    overrides=COMMON_TOOLS,
)
MockUserTools = build_toolkit(
    _InboxFunctions,
    name="MockUserTools",
    tools=["check_notifications", "dismiss_notification"],
    writes=["dismiss_notification"],
)

_CREATE: dict[str, Any] = {
    **text_parameters(
        user_id="The owner of the task.",
        title="The title of the task.",
        description="More about the task, if there is more.",
    ),
    "required": ["user_id", "title"],
}
_SCHEMAS: tuple[ToolSchema, ...] = (
    function_schema("create_task", "Create a task for a user.", _CREATE),
    function_schema("get_users", "List all users.", text_parameters()),
    function_schema(
        "update_task_status",
        "Change the status of a task.",
        text_parameters(
            task_id="The task to change.", status="The new status: 'pending' or 'completed'."
        ),
    ),
    function_schema(
        "transfer_to_human_agents",
        "Hand the user over to a human agent, when the policy or the tools leave no other way.",
        text_parameters(summary="What the user wants."),
    ),
)
_USER_SCHEMAS: tuple[ToolSchema, ...] = (
    function_schema("check_notifications", "Show your notifications.", text_parameters()),
    function_schema(
        "dismiss_notification",
        "Mark a notification as read.",
        text_parameters(notification_id="The notification to dismiss."),
    ),
)


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(TodoDB.model_validate(parse_database("mock")))


@cache
def _user_database() -> SharedDatabase:
    return SharedDatabase(InboxDB())


class MockDomain(Tau2Domain):
    """A to-do list with two rules."""

    name = "mock"
    folder = "mock"
    without_solution = frozenset(
        {"update_task_with_history_and_env_assertions", "update_task_with_user_tools"}
    )
    agent_side = Side(toolkit=MockTools, schemas=lambda: _SCHEMAS, database=_database)
    user_side = Side(toolkit=MockUserTools, schemas=lambda: _USER_SCHEMAS, database=_user_database)

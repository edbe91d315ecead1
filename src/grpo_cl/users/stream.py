"""The environment as the one who speaks: what it tells piece by piece, with no talking back."""

from collections.abc import Sequence

from typing_extensions import override

from grpo_cl.domains.base import Environment
from grpo_cl.types import Message
from grpo_cl.users.base import STOP, STOP_TOKENS, User


class Stream(User):
    """Brings whatever the environment tells next, and stops once it has told everything."""

    is_stream = True

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @override
    async def respond(self, messages: Sequence[Message]) -> Message:
        del messages  # the agent writes to the world and not to somebody
        told = self._environment.tell()
        if told is None:
            return Message(role="user", content=STOP)
        for token in STOP_TOKENS:
            told = told.replace(token, token.strip("#"))  # a text that speaks of a stop is none
        return Message(role="user", content=told)

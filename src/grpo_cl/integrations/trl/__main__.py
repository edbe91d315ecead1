"""``python -m grpo_cl.integrations.trl --domains retail --model tiny …``: train with TRL."""

import logging
import sys
from collections.abc import Sequence

from grpo_cl.errors import GRPOCLError
from grpo_cl.integrations import require_packages


def main(argv: Sequence[str]) -> int:
    """Train with TRL's own options; returns the exit status."""
    try:
        require_packages("trl", "trl", "datasets")
        from grpo_cl.integrations.trl.training import train  # noqa: PLC0415  # needs the engine

        train(argv)
    except GRPOCLError as error:
        logging.getLogger("grpo_cl").error("%s", error)  # noqa: TRY400  # the message is enough
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m grpo_cl.integrations.areal econfig.domain=airline …``: train with AReaL."""

import logging
import sys

from grpo_cl.errors import GRPOCLError
from grpo_cl.integrations import require_packages
from grpo_cl.integrations.areal.legacy_settings import current_arguments

if __name__ == "__main__":
    try:
        arguments = current_arguments(sys.argv[1:])
        require_packages("areal", "areal", "omegaconf", "hydra")
        from grpo_cl.integrations.areal.training import train

        train(arguments)
    except GRPOCLError as error:
        logging.getLogger("grpo_cl").error("%s", error)  # noqa: TRY400  # the message is enough
        sys.exit(2)

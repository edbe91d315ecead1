"""``python -m grpo_cl.integrations.skyrl trainer.epochs=100 …``: train with SkyRL."""

import logging
import sys

from grpo_cl.errors import GRPOCLError
from grpo_cl.integrations import require_packages

if __name__ == "__main__":
    try:
        require_packages("skyrl", "skyrl", "skyrl_gym", "ray", "omegaconf")
        from grpo_cl.integrations.skyrl.training import train

        train(sys.argv[1:])
    except GRPOCLError as error:
        logging.getLogger("grpo_cl").error("%s", error)  # noqa: TRY400  # the message is enough
        sys.exit(2)

"""``python -m grpo_cl.engines.skyrl trainer.epochs=100 …``: SkyRL trains on our episodes."""

import sys

from grpo_cl.engines.missing import require_packages
from grpo_cl.errors import GRPOCLError

if __name__ == "__main__":
    try:
        require_packages("skyrl", "skyrl", "skyrl_gym", "ray", "omegaconf")
        from grpo_cl.engines.skyrl.training import train

        train(sys.argv[1:])
    except GRPOCLError as error:
        sys.exit(str(error))

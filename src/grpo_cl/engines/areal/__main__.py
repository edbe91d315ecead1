"""``python -m grpo_cl.engines.areal econfig.domain=airline …``: AReaL trains on our episodes."""

import sys

from grpo_cl.engines.missing import require_packages
from grpo_cl.errors import GRPOCLError

if __name__ == "__main__":
    try:
        require_packages("areal", "areal", "omegaconf", "hydra")
        from grpo_cl.engines.areal.training import train

        train(sys.argv[1:])
    except GRPOCLError as error:
        sys.exit(str(error))

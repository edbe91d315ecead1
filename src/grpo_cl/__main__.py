"""``python -m grpo_cl``."""

import sys

from grpo_cl.cli import main

if __name__ == "__main__":
    sys.exit(main())

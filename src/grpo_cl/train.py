"""``python -m grpo_cl.train``: what ``torchrun`` starts on every process."""

import sys

from grpo_cl.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

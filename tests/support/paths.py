"""Where tests find the repository, their support modules and data beside the checkout."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
SHARED = ROOT.parent / "shared"

"""The ledger of an older version: recorded before writers signed, and before RL runs shared a fleet."""

from pathlib import Path

OLDER_LEDGER = Path(__file__).parent / "ledger"

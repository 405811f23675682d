"""What serving took back from rollouts: how fast they gave way, why, and what was lost."""

"""Statistics: the bootstrap, and intervals over clustered events."""

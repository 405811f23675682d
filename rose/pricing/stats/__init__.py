"""Statistics: the bootstrap, and intervals of events that occur in clusters."""

"""Statistics of pricing: the bootstrap, and intervals of rates and means over clustered events."""

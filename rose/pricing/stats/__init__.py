"""Statistics of pricing: the bootstrap, and intervals of rates and means over events that come together."""

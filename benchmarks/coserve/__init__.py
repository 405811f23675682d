"""What lending costs serving and what it harvests, on real engines that share a core."""

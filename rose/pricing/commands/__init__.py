"""The commands about money."""

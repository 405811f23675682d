"""The checks of `verify`, except the check of each writer's chain."""

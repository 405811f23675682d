"""Checks of `verify` besides the chain of each writer."""

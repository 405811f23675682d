"""Traces that this project made, as package data; README.md says how each was made."""

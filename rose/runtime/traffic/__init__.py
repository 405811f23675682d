"""Serving traffic: traces in the columns of the public Azure LLM inference traces, fitted to a host and replayed."""

"""Serving traffic: traces in the columns of the Azure LLM inference traces, fitted and replayed."""

"""Serving traffic. Traces have the columns of the public Azure LLM inference traces, and are fitted and replayed."""

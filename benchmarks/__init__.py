"""One command for each performance claim: `python -m benchmarks.NAME [--quick] [--json FILE]`."""

"""The figures over HTTP for other tools: JSON in the shape of OpenCost's allocations, and metrics for Prometheus."""

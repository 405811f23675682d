"""The figures over HTTP: JSON in the shape of OpenCost's allocations, and metrics for Prometheus."""

"""`python -m benchmarks.gpu`, and `rose accept`: what ROSE stands on, proved on this host's GPU, a stage at a time."""

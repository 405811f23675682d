"""`python -m rose.accept`, and `rose accept`: what ROSE stands on, proved on this host's GPU, a stage at a time."""

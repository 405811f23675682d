"""`rose accept`: proves what ROSE relies on with the GPU of this host, one stage after another."""

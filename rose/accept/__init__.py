"""`rose accept` tests the properties that ROSE relies on, on the GPU of this host, one stage after another."""

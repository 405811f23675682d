"""`rose accept`: tests on this host's GPU the properties that ROSE relies on, one stage after another."""

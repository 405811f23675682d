"""Background work: jobs, and figures for monitoring."""

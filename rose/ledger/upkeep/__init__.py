"""What goes on in the background: jobs, and figures for whoever watches."""

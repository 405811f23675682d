"""What goes on in the background: jobs, the books, and figures for whoever watches."""

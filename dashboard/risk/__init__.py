"""Whether borrowing harms serving, and whether it really saves: the evidence, question by question."""

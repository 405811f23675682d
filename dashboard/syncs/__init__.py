"""Weight syncs: whether new weights reach the engines, and what each takes."""

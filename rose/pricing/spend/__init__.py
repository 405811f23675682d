"""The cost and savings of a period by any dimensions."""

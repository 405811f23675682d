"""The cost and the savings of a period, divided by any dimensions."""

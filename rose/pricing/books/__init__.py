"""Price books shipped with the package. Every figure in them is an example with its source and date."""

"""A vendor's invoice beside the ledger: a FOCUS file of any provider, matched with the charges of the same days."""

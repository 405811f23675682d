"""The files of a ledger and their content: folder, rows, segments, chain, signatures and catalog."""

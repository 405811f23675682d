"""What borrowing costs, as documents: figures under names, for JSON and for tables, of one run of a ledger.

The same ledger and price book give the same document.
"""

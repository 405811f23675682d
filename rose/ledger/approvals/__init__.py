"""Rules of a ledger, and acts that one identity proposes and another one approves."""

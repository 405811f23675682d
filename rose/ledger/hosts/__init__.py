"""One ledger for many hosts: its door at the controller, the forwarder, and remote queries."""

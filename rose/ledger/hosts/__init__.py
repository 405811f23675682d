"""One ledger for many hosts: its service at the controller, the forwarder, and remote queries."""

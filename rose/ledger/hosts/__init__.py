"""One ledger for many hosts: the service at the controller, the forwarder, and queries from other hosts."""

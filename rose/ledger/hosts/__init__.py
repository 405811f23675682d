"""One ledger for many hosts: the gateway, the forwarder, and asking from afar."""

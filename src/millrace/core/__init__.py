"""Types, protocols, budget, host, ledger, errors: what every other layer may use."""

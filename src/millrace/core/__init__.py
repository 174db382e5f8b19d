"""Types, protocols, budget, drive loop, ledger, errors: what every other layer may use."""

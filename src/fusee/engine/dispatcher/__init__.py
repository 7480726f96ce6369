"""The loops that decide: promote, recover, expire, lift, prune, aggregate."""

"""Made by tools/generate_rpc.py; never edited."""

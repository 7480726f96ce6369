"""Bulk jobs: one handler over very many items, rate-limited and resumable."""

"""Access: API keys."""

"""Access: who calls (principals), what they may do (actions), and API keys."""

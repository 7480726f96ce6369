"""Tasks: cron schedules, policies, dependencies, backfills."""

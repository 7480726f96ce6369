"""The database: one contract over SQLite, PostgreSQL and MySQL/MariaDB."""

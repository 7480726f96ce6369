"""What brings runs to workers: the database itself, or messages. It carries hints, never the truth."""

"""A PostgreSQL scheduler that issues fencing tokens."""

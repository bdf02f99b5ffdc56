"""A YugabyteDB-shaped cluster: several addresses with zones over one real PostgreSQL."""
